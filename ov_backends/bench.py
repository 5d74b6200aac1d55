"""How long a model takes: the first inference and the warm-up apart from the rest, and the rest until it is known."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
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
from .tensors import require_static
from .timing import Statistics, is_warm, milliseconds, relative_spread, summarize, uncertainty

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

WARM_UP_SHARE = 0.25
"""Of the time limit, at most this much goes into warming up."""
PROGRESS_S = 0.5
RUNS_A_BATCH = 2
"""Asynchronous runs are timed in batches of so many runs for each request, so that every request is in each batch."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Limits:
    """When to stop. tolerance: the median is known well enough once it is so with 95 % confidence, 0.01 is +-1 %.

    seconds and iterations end a measurement that never becomes so steady; `least` runs are made before it is judged.
    """

    seconds: float = 10.0
    iterations: int = 10_000
    least: int = 20
    tolerance: float = 0.01


@dataclass(frozen=True)
class Timing:
    """Durations in seconds, in order. stopped: "stable", "time" or "iterations", what ended the measurement."""

    first_s: float
    warm_up_s: tuple[float, ...]
    steady_s: tuple[float, ...]
    stopped: str

    @property
    def steady(self) -> Statistics:
        return summarize(self.steady_s)

    @property
    def uncertainty(self) -> float:
        """The median is known to +- this share of itself, with 95 % confidence."""
        return uncertainty(self.steady_s)

    @property
    def per_second(self) -> float:
        """Runs a second, one after the other."""
        return len(self.steady_s) / sum(self.steady_s)

    def text(self) -> str:
        why = {"stable": "stable", "time": "the time limit came first", "iterations": "the limit of runs came first"}
        return (
            f"first {milliseconds(self.first_s)}, warm-up {len(self.warm_up_s)} runs, then {self.steady}; the median "
            f"is known to \u00b1{self.uncertainty:.1%} ({why[self.stopped]})"
        )

    def as_json(self) -> dict:
        return {
            "first_s": self.first_s,
            "warm_up_s": list(self.warm_up_s),
            **self.steady.as_json(),
            "uncertainty": self.uncertainty,
            "per_second": self.per_second,
            "stopped": self.stopped,
        }


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


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as the reference: of each round, reference / this. Above 1 is faster."""

    median: float
    spread: float
    uncertainty: float

    def as_json(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Interleaved:
    """Candidates that took turns. timings: by name, in the order given; the first one is the reference."""

    timings: Mapping[str, Timing]

    @property
    def reference(self) -> str:
        return next(iter(self.timings))

    def ratio(self, name: str) -> Ratio:
        """`name` against the reference, each round by itself: what slows the machine for a while slows both."""
        return _ratio(self.timings[self.reference].steady_s, self.timings[name].steady_s)

    def text(self) -> str:
        lines = []
        for name, timing in self.timings.items():
            versus = ""
            if name != self.reference:
                ratio = self.ratio(name)
                versus = (
                    f"; {ratio.median:.2f} times as fast as {self.reference}, spread {ratio.spread:.1%}, known to "
                    f"\u00b1{ratio.uncertainty:.1%}"
                )
            lines.append(f"{name}: first {milliseconds(timing.first_s)}, then {timing.steady}{versus}")
        return "\n".join(lines)

    def as_json(self) -> dict:
        return {
            name: {**timing.as_json(), "ratio": self.ratio(name).as_json(), "reference": self.reference}
            for name, timing in self.timings.items()
        }


def benchmark(
    run: Callable[[], object],
    limits: Limits = Limits(),
    progress: Progress = log_progress,
    text: str = "Measuring",
    clock: Clock = time.perf_counter,
) -> Timing:
    """Call `run` until the median of its durations is known to within `limits.tolerance`.

    The first call stands apart. Then the warm-up: until two runs in a row gain less than 2 % on the best before them.
    `progress` is called between runs, about twice a second, and ends all by raising.
    """
    race = interleaved({"": run}, limits, progress, text, clock)
    return race.timings[""]


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    limits: Limits = Limits(),
    progress: Progress = log_progress,
    text: str = "Measuring",
    clock: Clock = time.perf_counter,
) -> Interleaved:
    """Run the candidates in turns, A B C C B A, until their medians and their ratios to the first are known.

    Two of anything: devices, precisions, models. limits: for all together.
    """
    race = _Race(candidates, limits, progress, text, clock)
    race.warm_up()
    stopped = race.go_on()
    return Interleaved(
        {
            name: Timing(race.first[name], tuple(race.warm[name]), tuple(race.steady[name]), stopped)
            for name in candidates
        }
    )


def benchmark_model(
    model: ov.Model,
    device: str,
    inputs: Mapping[str, np.ndarray] | None = None,
    precision: str = "auto",
    limits: Limits = Limits(),
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


def _ratio(reference_s: tuple[float, ...], other_s: tuple[float, ...]) -> Ratio:
    ratios = [a / b for a, b in zip(reference_s, other_s, strict=True)]
    return Ratio(statistics.median(ratios), relative_spread(ratios), uncertainty(ratios))


class _Race:
    """Candidates that take turns, and all that was measured of them."""

    def __init__(
        self,
        candidates: Mapping[str, Callable[[], object]],
        limits: Limits,
        progress: Progress,
        text: str,
        clock: Clock,
    ):
        self._candidates, self._limits, self._progress = candidates, limits, progress
        self._text, self._clock = text, clock
        self._started, self._told = clock(), float("-inf")
        self._check_at = limits.least
        self.first: dict[str, float] = {}
        self.warm: dict[str, list[float]] = {name: [] for name in candidates}
        self.steady: dict[str, list[float]] = {name: [] for name in candidates}

    def warm_up(self) -> None:
        self._tell("")
        self.first = {name: self._timed(name) for name in self._candidates}
        for name in self._candidates:
            while not is_warm([self.first[name], *self.warm[name]]) and self._elapsed() < self._warm_up_s():
                self.warm[name].append(self._timed(name))
                self._tell("warming up")

    def go_on(self) -> str:
        """Rounds until the medians are known; what ended it."""
        names = list(self._candidates)
        while True:
            for name in names:
                self.steady[name].append(self._timed(name))
            names.reverse()  # nobody is always first after whatever happens between rounds
            rounds = len(self.steady[names[0]])
            if self._is_known(rounds):
                return "stable"
            if self._elapsed() >= self._limits.seconds:
                return "time"
            if rounds >= self._limits.iterations:
                return "iterations"
            self._tell(f"{rounds} runs")

    def _is_known(self, rounds: int) -> bool:
        if rounds < self._check_at:
            return False
        self._check_at = rounds + rounds // 10 + 1  # sorting all after every run would cost more than the runs
        reference = next(iter(self._candidates))
        return all(
            uncertainty(durations) <= self._limits.tolerance
            and _ratio(tuple(self.steady[reference]), tuple(durations)).uncertainty <= self._limits.tolerance
            for durations in self.steady.values()
        )

    def _timed(self, name: str) -> float:
        started = self._clock()
        self._candidates[name]()
        return self._clock() - started

    def _elapsed(self) -> float:
        return self._clock() - self._started

    def _warm_up_s(self) -> float:
        return WARM_UP_SHARE * self._limits.seconds

    def _tell(self, state: str) -> None:
        now = self._clock()
        if now - self._told >= PROGRESS_S:
            self._progress(f"{self._text}, {state}" if state else self._text)
            self._told = now
