"""The quantized form of one submodel, from one run to the next: recorded for, made, used, or given up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import devices
from ..compiler.cache import CompileCache
from ..compiler.ir import IR, Source, load_or_convert
from ..compiler.precision import float_precision
from ..errors import CalibrationError
from ..plan import TITLES, SubmodelPlan
from ..progress import Progress
from ..quantize.cached import QuantizedIR, load_or_quantize
from ..quantize.calibration import FEW_RUNS, MOST, WANTED, CalibrationSet, Recorder
from ..quantize.divergence import compare_layers
from ..quantize.int8 import FEW_SAMPLES

if TYPE_CHECKING:
    import torch


def float_plan(plan: SubmodelPlan, submodel: str, policy: str) -> SubmodelPlan:
    """`plan` in the floating point of its device: what INT8 is recorded and measured against."""
    device = devices.resolve(plan.device, submodel, policy).device
    return replace(plan, precision=float_precision(device))


def keep_recorded(source: Source, recorder: Recorder, about: str, cache: CompileCache) -> str:
    """Add what was recorded to the set of `source`; says in one sentence what the set holds now.

    Raises CalibrationError if there is nothing or it cannot be kept.
    """
    calibration = CalibrationSet(cache.root, source.identity)
    try:
        kept = calibration.add(recorder.samples(), about)
    except OSError as error:
        raise CalibrationError(
            f"The recorded calls could not be kept in {calibration.path}: {error.strerror or error}."
        ) from error
    if not kept:
        raise CalibrationError(
            f"No call of the {TITLES[source.submodel]} could be recorded: each held NaN or infinity. Try another "
            "precision or another checkpoint."
        )
    return f"{kept} calls were recorded; the set of this model holds {calibration.count} now, and INT8 uses them."


def divergence(source: Source, precision: str, cache: CompileCache, progress: Progress) -> str:
    """Where the quantized form of `source` begins to differ from the float one on a recorded call, in lines."""
    ir = load_or_convert(source, cache, progress)
    quantization = Quantization(source, precision, cache)
    quantized = quantization.choose(ir, progress)
    samples = quantization.calibration.samples(MOST)
    if quantized is None or not samples:
        return quantization.notice or "No call was recorded to compare with."
    # the last calls have the least noise to hide an error in
    return compare_layers(ir.read(), quantized.read(), samples[-1], progress=progress).text()


class Quantization:
    """What became of the wish to run `source` in `precision`, one of plan.QUANTIZED.

    int8 needs recorded calls: while there are too few, the submodel runs in floating point and this records. One prompt
    does not stand for all: recording goes on by the way until the set is complete, and then quantizes once more.
    """

    def __init__(self, source: Source, precision: str, cache: CompileCache):
        self.precision = precision
        self.calibration = CalibrationSet(cache.root, source.identity)
        self.result: QuantizedIR | None = None
        self.recorder: Recorder | None = None
        self._title, self._cache, self._digest = TITLES[source.submodel], cache, ""
        self._untold_s = 0.0

    @property
    def is_outdated(self) -> bool:
        """True once more calls were recorded than the result knows of."""
        return self.result is not None and self._digest != self.calibration.digest

    @property
    def activity(self) -> str:
        """What to show beside the calls of a run that is needed for INT8: "recording calibration 14/40", or ""."""
        return self.recorder.progress if self.recorder and self.needs_calls else ""

    @property
    def notice(self) -> str:
        """What the user should know: why no quantized form runs, or that it stands on little; "" if all is well."""
        if self.result is None:
            return (
                f"{self.precision} was asked for and the {self._title} has no recorded calls yet: this run records "
                "them in floating point, and quantizes with them at its end."
            )
        if not self.result.reason and self.precision == "int8" and not self.calibration.is_complete:
            return (
                f"It was quantized with {self.result.samples} recorded calls; other prompts may lose accuracy. "
                f"Recording goes on ({self.calibration.count} calls of {len(self.calibration.files)} runs so far), and "
                f"with {WANTED} calls of {FEW_RUNS} runs it is quantized again. NPU Calibrate adds prompts at once."
            )
        return self.result.reason

    @property
    def needs_calls(self) -> bool:
        return self.result is None and self.precision == "int8" and self.calibration.count < FEW_SAMPLES

    def start(self) -> None:
        """Before a run: what a run that was cancelled has recorded is forgotten."""
        is_wanted = self.precision == "int8" and not self.calibration.is_complete
        self.recorder = Recorder() if is_wanted else None

    def choose(self, ir: IR, progress: Progress) -> IR | None:
        """The quantized IR, made from `ir` if it can be; None: float for now."""
        if self.is_outdated:
            self.result = None
        if self.result is None:
            if self.needs_calls:
                return None
            self.make(ir, progress)
        return self.result.ir if self.result else None

    def record(self, inputs: Mapping[str, torch.Tensor]) -> None:
        if self.recorder:
            self.recorder(inputs)

    def keep(self, about: str) -> bool:
        """After a run: keep what it recorded. True if a quantized form can now be made, or a better one.

        Raises OSError if the recorded calls cannot be kept.
        """
        recorder, self.recorder = self.recorder, None
        if recorder is None or recorder.is_empty:
            return False
        samples = recorder.samples()
        if self.result is not None and self.calibration.has_prompt_of(samples):
            return False
        self.calibration.add(samples, about, by_the_way=self.result is not None)
        return self.calibration.count >= FEW_SAMPLES and (self.result is None or self.is_outdated)

    def make(self, ir: IR, progress: Progress) -> None:
        """Quantize with what is recorded now, or load what was made with it before."""
        self._digest = self.calibration.digest
        self.result = load_or_quantize(
            ir, self.precision, self._digest, lambda: self.calibration.samples(MOST), self._cache, progress
        )
        self._untold_s += self.result.seconds

    def take_seconds(self) -> float:
        """Seconds spent on quantizing since this was last asked."""
        seconds, self._untold_s = self._untold_s, 0.0
        return seconds
