"""One submodel on a device: sessions by shape, made when a shape first comes along."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import devices
from ..compiler.cache import CompileCache
from ..compiler.compile import Compiled, Order, compile_cached
from ..compiler.ir import IR, Source, load_or_convert
from ..compiler.precision import actual_precision, float_precision, resolve_precision
from ..errors import CompileError, DeviceError, FallbackError, InferenceError
from ..plan import QUANTIZED, TITLES, SubmodelPlan
from ..progress import Progress
from ..quantize.gate import LIMIT
from ..report import SubmodelReport
from ..tensors import Shapes
from .parity import parity
from .quantization import Quantization
from .session import Session
from .trial import Trial

if TYPE_CHECKING:
    import torch

log = logging.getLogger("ovnpu")

MAX_SESSIONS = 4
"""Compiled shapes of one submodel kept in memory; more are loaded again from the cache."""


@dataclass(frozen=True)
class _Loaded:
    session: Session
    compiled: Compiled
    precision: str
    ir: IR

    @property
    def is_unproven(self) -> bool:
        """True before the first call of what has just been compiled, rather than loaded from the cache."""
        return self.compiled.state == "miss" and self.session.calls == 0


class Submodel:
    """A submodel with its weights on the device its plan asks for.

    static: one compiled model for each shape; otherwise one for all (not on the NPU, which takes static shapes only).
    kept_bytes: what the compiled shapes may hold together; the least recently used go before another is made.
    """

    def __init__(
        self,
        source: Source,
        plan: SubmodelPlan,
        policy: str,
        cache: CompileCache,
        static: bool = True,
        kept_bytes: float = math.inf,
    ):
        self.source, self.plan, self.policy, self.cache, self.kept_bytes = source, plan, policy, cache, kept_bytes
        self.compilations = self.conversions = 0
        self._ir: IR | None = None
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()
        self.resolution = devices.resolve(plan.device, source.submodel, policy)
        self._quantization: Quantization | None = None
        self._trial: Trial | None = None
        self._resolve_precision()
        if self.precision_reason and policy == "error":
            raise FallbackError(
                f"{TITLES[source.submodel]}: {self.precision_reason}, and the fallback policy is 'error'. Choose "
                f"{self.precision} or auto, or set the policy to warn or allow."
            )
        self._static = static

    def _resolve_precision(self) -> None:
        submodel = self.source.submodel
        self.precision, self.precision_reason = resolve_precision(self.plan.precision, self.device, submodel)
        self._quantization = self._trial = None
        if self.plan.precision == "auto" and self.device == "CPU" and submodel == "unet":
            self._trial = Trial(self.source, self.cache)
            self.precision = self._trial.precision
        if self.precision in QUANTIZED:
            self._quantization = Quantization(self.source, self.precision, self.cache)

    @property
    def device(self) -> str:
        """The device it is compiled for; changes if that device refuses the model and the policy allows another."""
        return self.resolution.device

    @property
    def bytes(self) -> int:
        """Rough memory of what is compiled: the FP16 weights once for each shape, twice that where they become FP32."""
        weights = self._ir.entry.manifest["bytes"] if self._ir and self._ir.entry else 0
        return sum(weights * (2 if loaded.precision == "fp32" else 1) for loaded in self._loaded.values())

    def run(
        self, inputs: Mapping[str, torch.Tensor], report: SubmodelReport, progress: Progress
    ) -> dict[str, torch.Tensor]:
        """Run one batch: inputs by name, [batch, ...]; outputs by name, float32 in memory of their own."""
        started = time.perf_counter()
        loaded = self._load(inputs, report, progress)
        prepared = time.perf_counter()
        is_first, is_unproven = loaded.session.calls == 0, loaded.is_unproven
        outputs, inside = loaded.session(inputs)
        ended = time.perf_counter()
        if is_unproven and not self._is_proven(loaded, inputs, outputs, progress):
            return self.run(inputs, report, progress)
        if self._recording:
            self._recording.record(inputs)
        report.openvino_calls += 1
        if is_first:
            report.first_ms = 1000 * (ended - prepared)
        else:
            report.call_ms.append(1000 * (ended - started))
            report.outside_ms.append(1000 * (ended - started - inside))
        return outputs

    def _is_proven(
        self,
        loaded: _Loaded,
        inputs: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        progress: Progress,
    ) -> bool:
        """Compare one real call with the CPU in FP32, once for each compilation; False: that takes over.

        Compilers and drivers have bugs that show as wrong values, not as errors. On the CPU itself only a precision
        that the user did not ask for is in question; INT8 has a gate of its own.
        """
        if devices.base_name(self.device) == "CPU" and not (self._trial and loaded.precision in ("bf16", "fp16")):
            return True
        similarity = parity(loaded.ir, loaded.session.rows, inputs, outputs, progress)
        if similarity >= LIMIT:
            return True
        name = devices.label(self.device)
        text = (
            f"{name} in {loaded.precision} gave other values than the CPU in fp32 for the same input (cosine "
            f"{similarity:.3f}, {LIMIT} is needed)"
        )
        if loaded.compiled.entry:
            self.cache.discard(loaded.compiled.entry.path)
        if self._trial:
            self._loaded.clear()
            self._trial, self.precision, self.precision_reason = None, "fp32", f"It runs in fp32 instead: {text}"
            return False
        if self.policy == "error":
            raise InferenceError(
                f"{TITLES[self.source.submodel]}: {text}, and the fallback policy is 'error'. Update the driver, "
                "choose another device or precision, or set the policy to warn or allow."
            )
        self._loaded.clear()
        self.resolution = devices.Resolution(self.plan.device, "CPU", f"It runs on the CPU instead: {text}.")
        self._resolve_precision()
        return False

    @property
    def _recording(self) -> Quantization | Trial | None:
        """What takes note of the calls of a run."""
        return self._quantization or self._trial

    @property
    def activity(self) -> str:
        """What goes on beside the calls of a run, such as "recording calibration 14/40"; "" if nothing does."""
        return self._recording.activity if self._recording else ""

    def start_run(self) -> None:
        """Before a run: forget what was compiled for a calibration set that has grown since; record if need be."""
        if self._quantization and self._quantization.is_outdated:
            self._loaded.clear()
        if self._recording:
            self._recording.start()

    def finish_run(self, about: str, report: SubmodelReport, progress: Progress) -> None:
        """After a run: quantize or choose a precision with what it recorded, for the next one to run in.

        about: what the run was, kept beside the recorded calls.
        """
        if self._recording is None or self._ir is None:
            return
        try:
            if not self._recording.keep(about):
                return
            # what is compiled is replaced soon, and quantizing needs the memory
            self._loaded.clear()
            self._recording.make(self._ir, progress)
        except OSError as error:
            report.notice(f"The recorded calls could not be kept: {error.strerror or error}", self.policy)
            return
        if self._recording is self._trial:
            self._resolve_precision()
            report.choice = self._choice
        else:
            self._describe_precision(report)

    @property
    def _choice(self) -> str:
        """What `auto` stands for and why, once that is known."""
        return self._trial.verdict.text if self._trial and self._trial.verdict else ""

    def _describe_precision(self, report: SubmodelReport) -> None:
        report.choice = self._choice
        if self._quantization and self._quantization.result:
            report.quantization = self._quantization.result.as_json()
            report.quantize_s += self._quantization.take_seconds()
        if self._recording and self._recording.notice:
            report.notice(self._recording.notice, self.policy)

    def _load(self, inputs: Mapping[str, torch.Tensor], report: SubmodelReport, progress: Progress) -> _Loaded:
        loaded = self._loaded.get(self._key(inputs))
        if loaded is None:
            self._make_room()
            loaded = self._make(inputs, report, progress)
            # the device may be another one now
            self._loaded[self._key(inputs)] = loaded
        elif not report.actual_device:
            report.cache_state, report.cache_reason = "hit", "in memory"
            self._describe(loaded, report)
        self._loaded.move_to_end(self._key(inputs))
        return loaded

    def _make_room(self) -> None:
        """A UNet in FP32 holds 3.5 GB for each shape: drop old ones before another is compiled, not after."""
        each = self.bytes // max(len(self._loaded), 1)
        while self._loaded and (len(self._loaded) >= MAX_SESSIONS or self.bytes + each > self.kept_bytes):
            self._loaded.popitem(last=False)

    def _key(self, inputs: Mapping[str, torch.Tensor]) -> str:
        return f"{self.device} {self._shapes(inputs)[1]}"

    def _shapes(self, inputs: Mapping[str, torch.Tensor]) -> tuple[int | None, Shapes | None]:
        """Rows of one request and the shapes to compile for; None: any.

        NPU: one row a request, static. Elsewhere a pair of rows (the two halves of classifier-free guidance) goes
        as one request, so that at most two batch sizes are ever compiled for a size.
        """
        if not self._static and not devices.is_npu(self.device):
            return None, None
        batch = len(next(iter(inputs.values())))
        rows = 1 if devices.is_npu(self.device) or batch % 2 else 2
        return rows, {name: (rows, *tensor.shape[1:]) for name, tensor in inputs.items()}

    def _make(self, inputs: Mapping[str, torch.Tensor], report: SubmodelReport, progress: Progress) -> _Loaded:
        try:
            compiled, ir = self._compile(self._shapes(inputs)[1], report, progress)
        except (CompileError, DeviceError) as error:
            if self.policy == "error" or self.device == "CPU":
                raise
            # the device is there but refuses this model: go on where everything runs, and say so
            self.resolution = devices.Resolution(self.plan.device, "CPU", f"It runs on the CPU instead. {error}")
            self._resolve_precision()
            compiled, ir = self._compile(self._shapes(inputs)[1], report, progress)
        precision = actual_precision(compiled.model, self._working_precision)
        loaded = _Loaded(Session(compiled.model, self._shapes(inputs)[0]), compiled, precision, ir)
        # of several shapes in one run the report tells the dearest: a miss before a hit
        if report.cache_state != "miss":
            report.cache_state, report.cache_reason = compiled.state, compiled.reason
        report.compile_s += compiled.compile_s
        report.import_s += compiled.import_s
        self._describe(loaded, report)
        return loaded

    def _compile(self, shapes: Shapes | None, report: SubmodelReport, progress: Progress) -> tuple[Compiled, IR]:
        if self._ir is None or not self._ir.is_readable:
            self._ir = load_or_convert(self.source, self.cache, progress)
            report.convert_s += self._ir.convert_s
            self.conversions += self._ir.convert_s > 0
            if not self._ir.entry:
                report.notice(f"The converted model was not kept: {self._ir.reason}", self.policy)
        ir = self._choose(self._ir, progress)
        order = Order(
            self.source.submodel, ir.identity, ir.read, shapes, self.device, self._working_precision, self.policy,
            ir.weights,
        )  # fmt: skip
        compiled = compile_cached(order, self.cache, progress)
        self.compilations += compiled.state == "miss"
        return compiled, ir

    def _choose(self, ir: IR, progress: Progress) -> IR:
        """The form of the IR to compile."""
        quantized = self._quantization.choose(ir, progress) if self._quantization else None
        refused = self._quantization.result if self._quantization and not quantized else None
        if refused and self.policy == "error":
            raise FallbackError(
                f"{refused.reason} The fallback policy is 'error': choose another precision, or set the policy to warn "
                "or allow."
            )
        return quantized or ir

    @property
    def _working_precision(self) -> str:
        """What is compiled for: the precision asked for, or floating point while there is no quantized form."""
        if self._quantization and not (self._quantization.result and self._quantization.result.ir):
            return float_precision(self.device)
        return self.precision

    def _describe(self, loaded: _Loaded, report: SubmodelReport) -> None:
        report.actual_device = _execution_devices(loaded.compiled, self.device)
        report.precision = loaded.precision
        report.operators = {devices.label(name): count for name, count in loaded.compiled.placement.devices.items()}
        report.fallback = list(loaded.compiled.placement.fallback)
        report.device_switches = loaded.compiled.placement.switches
        report.conversions, report.compilations = self.conversions, self.compilations
        kinds = Counter(operator.type for operator in report.fallback)
        fallen = f"Operators that {report.requested_device} does not take: " + ", ".join(
            f"{n} {kind}" for kind, n in kinds.items()
        )
        self._describe_precision(report)
        for text in (self.resolution.reason, self.precision_reason, fallen if kinds else ""):
            if text:
                report.notice(text, self.policy)


def _execution_devices(compiled: Compiled, device: str) -> str:
    """Where it really runs, from the compiled model itself."""
    said = compiled.model.get_property("EXECUTION_DEVICES")
    names = [said] if isinstance(said, str) else list(said)
    return ", ".join(devices.label(name) for name in names) or device
