"""What `auto` means for a submodel on this CPU: the fastest precision that passes the gate, measured once."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .. import devices
from ..compiler.cache import CompileCache, Entry
from ..compiler.ir import IR, Source
from ..compiler.precision import precision_property
from ..cpu_speed import macs_of_this_cpu
from ..plan import TITLES
from ..progress import Progress, with_heartbeat
from ..quantize.calibration import Recorder, spread
from ..quantize.gate import LIMIT, Sample, worst_cosine
from .quantization import Quantization

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger("ovnpu")

DEVICE = "CPU"
VERDICT = "verdict.json"
TRIAL_VERSION = "1"
WORTHWHILE = 1.3
"""How much faster than the best floating point an INT8 product must be before minutes are spent on quantizing."""
GATE_CALLS = 4


@dataclass(frozen=True)
class Verdict:
    """The choice for one kind of submodel on one CPU; seconds: of one call of one row in each precision that passed.

    refused: why others were not taken; spent_s: what trying took.
    """

    precision: str
    seconds: Mapping[str, float]
    refused: Mapping[str, str]
    spent_s: float

    @property
    def text(self) -> str:
        if not self.seconds:
            return f"auto is {self.precision} on this CPU, no other precision is faster here"
        times = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in self.seconds.items())
        others = "".join(f"; {name}: {why}" for name, why in self.refused.items())
        spent = f"tried in {self.spent_s:.0f} s, once"
        return f"auto is {self.precision} on this CPU, the fastest of {times} a call{others} ({spent})"


class Trial:
    """The verdict for `source`, or the run that leads to one: recorded in FP32, tried out at its end.

    It is remembered by architecture, not by weights: another LoRA is as fast. Whether the precision is exact enough for
    other weights is for the submodel's own checks.
    """

    def __init__(self, source: Source, cache: CompileCache):
        self._source, self._cache = source, cache
        self._title = TITLES[source.submodel]
        self._recorder: Recorder | None = None
        self._about = ""
        self._identity = {
            "submodel": source.submodel,
            "model": source.architecture,
            **devices.identity(DEVICE),
            "trial": TRIAL_VERSION,
        }
        self.verdict = self._remembered()
        self._candidates: list[str] = []
        if self.verdict is None:
            self._candidates = candidates(source.submodel)
            if self._candidates == ["fp32"]:
                self._decide(Verdict("fp32", {}, {}, 0.0))

    @property
    def precision(self) -> str:
        return self.verdict.precision if self.verdict else "fp32"

    @property
    def activity(self) -> str:
        return ""

    @property
    def notice(self) -> str:
        if self.verdict:
            return ""
        return "The precisions are tried out on this CPU at the end of this run, once; it runs in fp32."

    def start(self) -> None:
        """Before a run: what a run that was cancelled has recorded is forgotten."""
        self._recorder = None if self.verdict else Recorder()

    def record(self, inputs: Mapping) -> None:
        if self._recorder:
            self._recorder(inputs)

    def keep(self, about: str) -> bool:
        """After a run: whether the precisions can be tried on its calls now."""
        self._about = about
        return self._recorder is not None and not self._recorder.is_empty

    def make(self, ir: IR, progress: Progress) -> None:
        """Try the precisions on the calls of the last run and remember the verdict.

        Raises OSError if the recorded calls cannot be kept for INT8.
        """
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        started = time.monotonic()
        samples = recorder.samples()
        shapes = [{name: array.shape for name, array in sample.items()} for sample in samples]
        tests = spread([s for s, shape in zip(samples, shapes, strict=True) if shape == shapes[0]], GATE_CALLS)
        seconds, refused = {}, {}
        expected: list[list[np.ndarray]] = []
        for precision in self._candidates:
            form: IR | str = ir
            if precision == "int8":
                form = self._quantized(ir, samples, progress)
            if isinstance(form, str):
                refused[precision] = form
                continue
            measured, outputs = self._measure(form, precision, tests, progress)
            expected = expected or outputs
            similarity = min(worst_cosine(a, b) for a, b in zip(expected, outputs, strict=True))
            if similarity < LIMIT:
                refused[precision] = f"cosine {similarity:.4f} to fp32, {LIMIT} is needed"
            else:
                seconds[precision] = measured
        fastest = min(seconds, key=seconds.__getitem__)
        self._decide(Verdict(fastest, seconds, refused, time.monotonic() - started))

    def _quantized(self, ir: IR, samples: Sequence[Sample], progress: Progress) -> IR | str:
        """The INT8 form, or why there is none."""
        quantization = Quantization(self._source, "int8", self._cache)
        if quantization.needs_calls:
            quantization.calibration.add(samples, self._about)
        return quantization.choose(ir, progress) or quantization.notice

    def _measure(
        self, ir: IR, precision: str, samples: Sequence[Sample], progress: Progress
    ) -> tuple[float, list[list[np.ndarray]]]:
        """Seconds of one call, the best of some, and the outputs of each sample."""
        import openvino as ov

        model = ir.read()
        model.reshape({name: list(array.shape) for name, array in samples[0].items()})
        hints = {"PERFORMANCE_HINT": "LATENCY", **precision_property(precision, DEVICE)}
        text = f"Trying the {self._title} in {precision} on this CPU, once"
        request = with_heartbeat(
            lambda: devices.core().compile_model(model, DEVICE, hints).create_infer_request(), text, progress
        )

        def call(sample: Sample) -> tuple[float, list[np.ndarray]]:
            for name, array in sample.items():
                request.set_tensor(name, ov.Tensor(array, shared_memory=True))
            started = time.perf_counter()
            request.infer()
            return time.perf_counter() - started, [tensor.data.copy() for tensor in request.output_tensors]

        calls = [with_heartbeat(partial(call, sample), text, progress) for sample in [samples[0], *samples]]
        # the first call of all is slower and not timed
        return min(seconds for seconds, _ in calls[1:]), [outputs for _, outputs in calls[1:]]

    def _remembered(self) -> Verdict | None:
        found = self._cache.find("trial", self._identity)
        if not isinstance(found, Entry):
            return None
        try:
            return Verdict(**json.loads((found.path / VERDICT).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            log.warning("The remembered precision of the %s cannot be read (%s); tried out again.", self._title, error)
            return None

    def _decide(self, verdict: Verdict) -> None:
        """Take `verdict` and remember it for the next process."""
        log.info("%s: %s", self._title, verdict.text)
        self.verdict = verdict

        def write(folder: Path) -> None:
            (folder / VERDICT).write_text(json.dumps(asdict(verdict)), encoding="utf-8")

        try:
            self._cache.store("trial", self._identity, write, "new", verdict.spent_s)
        except OSError as error:
            log.warning("The precision of the %s could not be remembered: %s", self._title, error.strerror or error)


def candidates(submodel: str) -> list[str]:
    """Precisions worth trying on this CPU, fp32 first. Takes some seconds, once in a process.

    Floating point that the CPU has instructions for; INT8 for the UNet, where a product in INT8 is really faster.
    """
    listed = devices.capabilities(DEVICE).split()
    floats = ["fp32", *(name for name in ("bf16", "fp16") if name.upper() in listed)]
    if submodel != "unet":
        return floats
    speeds = {name: macs_of_this_cpu(name) for name in (*floats, "int8")}
    is_worthwhile = speeds["int8"] > WORTHWHILE * max(speeds[name] for name in floats)
    return [*floats, "int8"] if is_worthwhile else floats
