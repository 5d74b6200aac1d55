"""How long a model takes on a device: one request after the other, and as many at a time as the device wants."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import devices
from .compiler.precision import actual_precision, precision_property, resolve_precision
from .errors import CompileError, InferenceError, PlanError
from .inputs import random_inputs
from .memory import Memory, MemoryWatch
from .peaks import Theory, compare_with_peak
from .plan import QUANTIZED
from .progress import Progress, log_progress, with_heartbeat
from .quantize.scope import is_quantized
from .race import DEFAULT_LIMITS, Limits, Timing, benchmark
from .tensors import require_static
from .timing import milliseconds

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

RUNS_A_BATCH = 2
"""Asynchronous runs are timed in batches of so many runs for each request, so that every request is in each batch."""


@dataclass(frozen=True)
class Concurrent:
    """Several requests at a time. per_run: seconds for each inference, the time of a batch divided by its runs."""

    requests: int
    per_run: Timing

    @property
    def per_second(self) -> float:
        return 1 / self.per_run.steady.median_s

    @property
    def latency_s(self) -> float:
        """How long one of them is under way, on average: requests times the time for each (Little's law)."""
        return self.requests * self.per_run.steady.median_s

    def text(self) -> str:
        return (
            f"{self.requests} requests at a time: {self.per_second:.4g} a second, each under way for "
            f"{milliseconds(self.latency_s)}, spread {self.per_run.steady.spread:.1%}"
        )

    def as_json(self) -> dict:
        return {
            "requests": self.requests,
            "per_second": self.per_second,
            "latency_s": self.latency_s,
            "per_run": self.per_run.as_json(),
        }


@dataclass(frozen=True)
class Benchmark:
    """One model on one device. one: one request after the other; many: as many at a time as the device wants."""

    name: str
    device: str
    precision: str
    precision_reason: str
    compile_s: float
    one: Timing
    many: Concurrent
    memory: Memory
    theory: Theory | None

    def text(self) -> str:
        reason = f" ({self.precision_reason})" if self.precision_reason else ""
        lines = [
            f"{self.name} on {self.device} in {self.precision}{reason}, compiled in {self.compile_s:.2f} s",
            f"  one at a time: {self.one.text()}; {self.one.per_second:.4g} a second",
            f"  {self.many.text()}",
            f"  {self.memory}",
        ]
        return "\n".join([*lines, *([f"  {self.theory.text()}"] if self.theory else [])])

    def as_json(self) -> dict:
        return {
            "name": self.name,
            "device": self.device,
            "precision": self.precision,
            "precision_reason": self.precision_reason,
            "compile_s": self.compile_s,
            "one": self.one.as_json(),
            "many": self.many.as_json(),
            "memory": self.memory.as_json(),
            "theory": self.theory.as_json() if self.theory else None,
        }


def benchmark_model(
    model: ov.Model,
    device: str,
    inputs: Mapping[str, np.ndarray] | None = None,
    precision: str = "auto",
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress = log_progress,
) -> Benchmark:
    """Compile `model` for `device` and time it, one request at a time and several.

    inputs: input name -> array of the port's type; random where none are given, then every shape must be static. They
    are handed over once and lie ready: preparing them is not timed. precision: one of plan.PRECISIONS; nothing is
    quantized here, and a model that is quantized counts as that. limits.seconds is shared by both measurements.
    Without the peak figures of the device there is no `theory`.
    """
    device = devices.resolve(device, "model", "error").device
    if devices.is_npu(device):
        require_static(model, "the NPU", batch_one=False)
    arrays = random_inputs(model) if inputs is None else _contiguous(inputs)
    chosen, reason = resolve_precision(precision, device)
    half = replace(limits, seconds=limits.seconds / 2)
    name, kind = model.get_friendly_name(), quantized_as(model)
    if precision in QUANTIZED and precision != kind:
        raise PlanError(
            f"{name} is {kind or 'not quantized'}, so it cannot be measured in {precision}. Quantize it first: "
            "python -m ov_backends quantize"
        )
    with MemoryWatch() as watch:
        compiled, compile_s = compile_for(model, device, chosen, "LATENCY", progress)
        one = benchmark(Ready(compiled, arrays), half, progress, f"Measuring {name}, one at a time")
        many = _benchmark_many(model, device, chosen, arrays, half, progress)
        memory = watch.memory
    sized = _at_sizes_of(model, arrays)
    actual = kind or actual_precision(compiled, chosen)
    theory = compare_with_peak(sized, device, actual, one.steady.median_s, progress)
    return Benchmark(name, devices.label(device), actual, reason, compile_s, one, many, memory, theory)


def quantized_as(model: ov.Model) -> str:
    """One of plan.QUANTIZED by what is in the model; "" for one that is not quantized."""
    if any(node.get_type_name() == "FakeQuantize" for node in model.get_ops()):
        return "int8"
    found = is_quantized(model)
    if not found:
        return ""
    return "int4-weights" if found.endswith(("4", "f4e2m1")) else "int8-weights"


def compile_for(
    model: ov.Model, device: str, precision: str, hint: str, progress: Progress, **properties: str
) -> tuple[ov.CompiledModel, float]:
    """`model` compiled past the cache, and the seconds it took. hint: "LATENCY" or "THROUGHPUT"."""
    wanted = {
        "PERFORMANCE_HINT": hint,
        **precision_property(precision, device),
        **devices.compile_properties(device),
        **properties,
    }
    name = model.get_friendly_name()
    started = time.perf_counter()
    try:
        compiled = with_heartbeat(
            lambda: devices.core().compile_model(model, device, wanted),
            f"Compiling {name} for {devices.label(device)}",
            progress,
        )
    except RuntimeError as error:
        raise CompileError(
            f"{devices.label(device)} could not compile {name}: {devices.explain_device_error(error, device)}"
        ) from error
    return compiled, time.perf_counter() - started


class Ready:
    """One request with its inputs in place; a call is one inference."""

    def __init__(self, compiled: ov.CompiledModel, inputs: Mapping[str, np.ndarray]):
        self.request = compiled.create_infer_request()
        self._inputs = inputs  # the request reads their memory and does not keep it
        _bind(self.request, inputs)

    def __call__(self) -> None:
        try:
            self.request.infer()
        except RuntimeError as error:
            raise InferenceError(str(error)) from error


def _bind(request: ov.InferRequest, inputs: Mapping[str, np.ndarray]) -> None:
    import openvino as ov

    for name, array in inputs.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))


def _contiguous(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    import numpy as np

    return {name: np.ascontiguousarray(array) for name, array in inputs.items()}


def _benchmark_many(
    model: ov.Model, device: str, precision: str, inputs: Mapping, limits: Limits, progress: Progress
) -> Concurrent:
    """Keep as many requests under way as the device asks for."""
    import openvino as ov

    compiled, _ = compile_for(model, device, precision, "THROUGHPUT", progress)
    requests = _optimal_requests(compiled)
    queue = ov.AsyncInferQueue(compiled, requests)
    runs = RUNS_A_BATCH * requests
    for request in queue:
        _bind(request, inputs)

    def batch() -> None:
        # a start waits until a request is free, so in the steady state a batch takes as long as its runs
        for _ in range(runs):
            queue.start_async()

    try:
        timing = benchmark(batch, limits, progress, f"Measuring {model.get_friendly_name()}, {requests} at a time")
        queue.wait_all()
    except RuntimeError as error:
        raise InferenceError(str(error)) from error
    finally:
        with suppress(RuntimeError):  # it was raised above; the requests must end before their inputs are freed
            queue.wait_all()
    return Concurrent(requests, _scaled(timing, 1 / runs))


def _optimal_requests(compiled: ov.CompiledModel) -> int:
    try:
        return max(1, int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))
    except RuntimeError:  # a plugin that does not tell takes one at a time
        return 1


def _scaled(timing: Timing, factor: float) -> Timing:
    return Timing(
        timing.first_s * factor,
        tuple(factor * s for s in timing.warm_up_s),
        tuple(factor * s for s in timing.steady_s),
        timing.stopped,
    )


def _at_sizes_of(model: ov.Model, inputs: Mapping[str, np.ndarray]) -> ov.Model:
    """`model`, or a copy of it at the inputs' sizes if it leaves sizes open."""
    if not any(port.get_partial_shape().is_dynamic for port in model.inputs):
        return model
    sized = model.clone()
    sized.reshape({name: list(array.shape) for name, array in inputs.items()})
    return sized
