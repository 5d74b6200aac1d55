"""Everything that can be measured of one model on one device: times, theory, layers, diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import devices
from .bench import Benchmark, Ready, benchmark_model, compile_for
from .compiler.precision import resolve_precision
from .diagnosis import Diagnosis, diagnose
from .errors import ShapeError
from .inputs import random_inputs
from .layer_times import LayerTimes, time_layers
from .progress import Progress, log_progress
from .race import Limits, interleaved
from .runtime.model_file import describe_port, suggest_shapes

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

AROUND_SHARE = 0.1
"""Of the time limit, for what a call takes beyond the inference."""


@dataclass(frozen=True)
class Examination:
    """What was found."""

    measured: Benchmark
    times: LayerTimes
    diagnosis: Diagnosis

    def text(self) -> str:
        return "\n\n".join([self.measured.text(), self.diagnosis.text(), self.times.text()])

    def as_json(self) -> dict:
        return {
            "measured": self.measured.as_json(),
            "layers": self.times.as_json(),
            "diagnosis": self.diagnosis.as_json(),
        }


def examine(
    model: ov.Model, device: str, precision: str = "auto", seconds: float = 10.0, progress: Progress = log_progress
) -> Examination:
    """Measure `model`, with random inputs, on `device`. seconds: limit of the measurement; compiling takes its own.

    It is compiled three times: for latency, for throughput, and with profiling. ShapeError if it leaves sizes open.
    """
    open_ports = [port for port in model.inputs if port.get_partial_shape().is_dynamic]
    if open_ports:
        found = ", ".join(map(describe_port, open_ports))
        raise ShapeError(
            f"{model.get_friendly_name()} leaves sizes open ({found}), and its time depends on them. Enter the sizes "
            f"that you use as its shapes, for example: {suggest_shapes(model)}"
        )
    device = devices.resolve(device, "model", "error").device
    inputs = random_inputs(model)
    measured = benchmark_model(model, device, inputs, precision, Limits(seconds * (1 - AROUND_SHARE)), progress)
    chosen, _ = resolve_precision(precision, device)
    compiled, _ = compile_for(model, device, chosen, "LATENCY", progress, PERF_COUNT="YES")
    times = time_layers(model, compiled, inputs, progress)
    outside_s = seconds_around(compiled, inputs, Limits(seconds * AROUND_SHARE), progress)
    return Examination(measured, times, diagnose(model, compiled, device, inputs, measured, times, outside_s))


def seconds_around(
    compiled: ov.CompiledModel, inputs: Mapping[str, np.ndarray], limits: Limits, progress: Progress = log_progress
) -> float:
    """What handing over inputs and copying outputs adds to an inference, as in the usual `compiled(inputs)`."""
    candidates: dict[str, Callable[[], object]] = {"bare": Ready(compiled, inputs), "call": lambda: compiled(inputs)}
    timings = interleaved(candidates, limits, progress, "Measuring the time around it").timings
    return max(0.0, timings["call"].steady.median_s - timings["bare"].steady.median_s)
