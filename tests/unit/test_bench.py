"""Times: the first run and the warm-up apart, an end when the median is known, turns, and real models."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from ovpack.ov_backends import bench
from ovpack.ov_backends.bench import Limits, benchmark, benchmark_model, interleaved
from ovpack.ov_backends.errors import CompileError, DeviceError, PlanError, ShapeError, TensorError
from ovpack.ov_backends.inputs import random_inputs
from ovpack.ov_backends.memory import MemoryWatch
from ovpack.ov_backends.timing import is_warm, median_interval, quantile, summarize, uncertainty
from small_models import WIDTH, dense_model

SHORT = Limits(seconds=0.4, iterations=40, least=5, tolerance=0.5)


class FakeClock:
    """Time that passes only while something is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, durations) -> Callable[[], None]:
        """Takes the next of `durations` at each call."""
        left = iter(durations)

        def run() -> None:
            self.now += next(left)

        return run


def quiet(text: str) -> None:
    pass


# Statistics


def test_quantiles_are_numpys():
    values = [random.Random(0).expovariate(1) for _ in range(37)]
    for share in (0, 0.25, 0.5, 0.9, 0.99, 1):
        assert quantile(values, share) == pytest.approx(np.quantile(values, share))
    found = summarize(values)
    assert (found.median_s, found.p90_s) == (statistics.median(values), pytest.approx(np.quantile(values, 0.9)))
    assert found.spread == pytest.approx((np.quantile(values, 0.75) - np.quantile(values, 0.25)) / np.median(values))
    assert (found.fastest_s, found.slowest_s, found.runs) == (min(values), max(values), 37)


def test_one_run_has_statistics_too():
    found = summarize([0.25])
    assert (found.median_s, found.p99_s, found.spread) == (0.25, 0.25, 0)
    assert "250 ms" in str(found) and "1 runs" in str(found)


@pytest.mark.parametrize("count", [10, 30, 100])
def test_the_medians_interval_holds_the_true_median_in_95_of_100_cases(count):
    """Exponential durations: skewed as real ones. The true median is ln 2."""
    chance = random.Random(count)
    held = 0
    for _ in range(1000):
        low, high = median_interval([chance.expovariate(1) for _ in range(count)])
        held += low <= np.log(2) <= high
    assert 930 <= held <= 990, held


def test_uncertainty_falls_with_the_number_of_runs():
    chance = random.Random(0)
    durations = [chance.gauss(1, 0.1) for _ in range(1000)]
    assert uncertainty(durations) < uncertainty(durations[:100]) / 2 < uncertainty(durations[:20])
    assert uncertainty([3.0] * 5) == 0


def test_warm_is_who_no_longer_gains():
    assert not is_warm([9]) and not is_warm([9, 3])
    assert not is_warm([9, 3, 2]), "still getting faster"
    assert is_warm([9, 2, 2, 1.99])


# When it ends


def test_the_first_run_and_the_warm_up_stand_apart():
    clock = FakeClock()
    durations = [5.0, 2.0, 1.5, *itertools.repeat(1.0, 50)]
    timing = benchmark(clock.work(durations), Limits(seconds=100), quiet, clock=clock)
    assert timing.first_s == 5.0 and timing.warm_up_s[:3] == (2.0, 1.5, 1.0)
    assert set(timing.steady_s) == {1.0} and timing.steady.median_s == 1.0


def test_it_ends_when_the_median_is_known():
    clock = FakeClock()
    timing = benchmark(clock.work(itertools.repeat(0.01)), Limits(seconds=100, least=20), quiet, clock=clock)
    assert timing.stopped == "stable" and len(timing.steady_s) == 20 and timing.per_second == pytest.approx(100)
    assert "\u00b10.0%" in timing.text() and "(stable)" in timing.text()


def test_noise_needs_more_runs_and_less_tolerance_more_of_them():
    def runs(tolerance: float) -> int:
        clock, chance = FakeClock(), random.Random(1)
        durations = (chance.gauss(1, 0.1) for _ in itertools.count())
        timing = benchmark(clock.work(durations), Limits(1e9, 10**6, 20, tolerance), quiet, clock=clock)
        assert timing.stopped == "stable" and timing.uncertainty <= tolerance
        assert timing.steady.median_s == pytest.approx(1, abs=2 * tolerance)
        return len(timing.steady_s)

    assert 20 < runs(0.02) < runs(0.005)


def test_limits_of_time_and_of_runs_end_what_never_becomes_steady():
    def endless(clock: FakeClock):
        return clock.work(itertools.cycle([1.0, 9.0, 4.0, 2.0, 30.0, 1.0, 0.1]))

    clock = FakeClock()
    by_time = benchmark(endless(clock), Limits(seconds=300, tolerance=1e-9), quiet, clock=clock)
    assert by_time.stopped == "time" and 300 <= clock.now < 331
    assert sum(by_time.warm_up_s) < 0.25 * 300 + 30
    clock = FakeClock()
    by_runs = benchmark(endless(clock), Limits(1e9, 50, 10, 1e-9), quiet, clock=clock)
    assert by_runs.stopped == "iterations" and len(by_runs.steady_s) == 50
    assert "limit of runs came first" in by_runs.text()


def test_a_run_longer_than_the_limit_is_measured_once_more():
    clock = FakeClock()
    timing = benchmark(clock.work([100.0, 60.0]), Limits(seconds=10), quiet, clock=clock)
    assert (timing.first_s, timing.warm_up_s, timing.steady_s, timing.stopped) == (100.0, (), (60.0,), "time")


def test_progress_is_told_now_and_then_and_can_end_it():
    class Cancelled(Exception):
        pass

    clock, told = FakeClock(), []

    def progress(text: str) -> None:
        told.append((clock.now, text))
        if len(told) == 4:
            raise Cancelled

    with pytest.raises(Cancelled):
        benchmark(clock.work(itertools.repeat(0.2)), Limits(1e9, least=10**6), progress, "Measuring x", clock)
    times = [when for when, _ in told]
    assert all(b - a >= 0.5 for a, b in itertools.pairwise(times)) and clock.now < 3
    assert told[0][1] == "Measuring x" and told[-1][1].startswith("Measuring x, ")


# Turns


def test_candidates_take_turns_and_none_is_always_first():
    clock, order = FakeClock(), []

    def candidate(name: str, seconds: float):
        def run() -> None:
            order.append(name)
            clock.now += seconds

        return run

    race = interleaved(
        {"a": candidate("a", 0.2), "b": candidate("b", 0.1)}, Limits(1e9, 6, 6, 1e-9), quiet, clock=clock
    )
    assert "".join(order[-12:]) in ("abbaabbaabba", "baabbaabbaab")
    assert race.ratio("b").median == pytest.approx(2) and race.ratio("a").median == 1
    assert "b: first 100 ms" in race.text() and "2.00 times as fast as a" in race.text()
    assert race.as_json()["b"]["ratio"]["median"] == pytest.approx(2)


def test_what_slows_the_machine_for_a_while_does_not_change_the_ratio():
    clock, chance = FakeClock(), random.Random(0)

    def candidate(seconds: float):
        def run() -> None:
            busy = 3.0 if 20 < clock.now < 90 else 1.0
            clock.now += seconds * busy * chance.uniform(0.98, 1.02)

        return run

    race = interleaved({"a": candidate(0.4), "b": candidate(0.1)}, Limits(100, 10**6, 10**6), quiet, clock=clock)
    assert race.timings["a"].steady.spread > 0.5, "the times themselves are of no use"
    assert race.ratio("b").median == pytest.approx(4, rel=0.02) and race.ratio("b").spread < 0.1


# Real models


def sized(rows: int = 1) -> ov.Model:
    model = dense_model()
    model.reshape({"x": [rows, WIDTH]})
    return model


def test_a_real_model_is_timed_one_at_a_time_and_many_at_a_time(monkeypatch):
    monkeypatch.setattr(bench, "compare_with_peak", lambda *_: None)
    found = benchmark_model(sized(), "CPU", precision="fp32", limits=SHORT, progress=quiet)
    assert (found.name, found.device, found.precision) == ("dense", "CPU", "fp32")
    assert found.one.first_s > 0 and len(found.one.steady_s) >= 5 and found.compile_s > 0
    assert found.many.requests >= 1
    assert found.many.per_second == pytest.approx(1 / found.many.per_run.steady.median_s)
    assert found.many.latency_s == pytest.approx(found.many.requests / found.many.per_second)
    assert found.memory.peak >= found.memory.after > 10**6
    assert {"one", "many", "memory", "compile_s", "theory"} <= set(found.as_json())
    assert "dense on CPU in fp32" in found.text() and "requests at a time" in found.text()


def test_the_figures_stand_beside_theory():
    theory = benchmark_model(sized(), "CPU", precision="fp32", limits=SHORT, progress=quiet).theory
    assert theory.macs == WIDTH * WIDTH and theory.least_bytes == 4 * (WIDTH * WIDTH + 2 * WIDTH)
    assert theory.is_small and theory.measured_s > theory.ideal_s > 0


def test_the_models_own_inputs_are_used_whatever_their_strides():
    grid = np.random.default_rng(0).standard_normal((WIDTH, 3)).astype(np.float32)
    inputs = {"x": grid.T}
    found = benchmark_model(dense_model(), "CPU", inputs, "fp32", SHORT, quiet)
    assert found.theory.macs == 3 * WIDTH * WIDTH


def quantized(kind: str) -> ov.Model:
    """x [1, 64] times a matrix that is stored in `kind`, with quantized activations for int8."""
    x = ops.parameter([1, WIDTH], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    stored = np.random.default_rng(0).integers(-7, 8, (WIDTH, WIDTH)).astype(np.int8)
    element = ov.Type.i4 if kind == "int4-weights" else ov.Type.i8
    weights = ops.multiply(ops.convert(ops.constant(stored, element), "f32"), ops.constant(np.float32(0.1)))
    low, high = (ops.constant(np.float32(edge)) for edge in (-3, 3))
    factor = ops.fake_quantize(x, low, high, low, high, 256) if kind == "int8" else x
    return ov.Model([ops.matmul(factor, weights, False, False)], [x], kind)


@pytest.mark.parametrize("kind", ["int8", "int8-weights", "int4-weights"])
def test_a_quantized_model_counts_as_that(kind):
    model = quantized(kind)
    assert bench.quantized_as(model) == kind
    found = benchmark_model(model, "CPU", limits=SHORT, progress=quiet)
    assert found.precision == kind
    assert found.theory.peak.arithmetic == ("int8" if kind == "int8" else found.theory.peak.arithmetic)
    bits = 4 if kind == "int4-weights" else 8
    assert WIDTH * WIDTH * bits / 8 < found.theory.least_bytes < 1.3 * WIDTH * WIDTH * bits / 8


def test_a_float_model_is_not_measured_as_a_quantized_one():
    with pytest.raises(PlanError, match="dense is not quantized, so it cannot be measured in int8. Quantize it first"):
        benchmark_model(sized(), "CPU", precision="int8", limits=SHORT, progress=quiet)


def test_what_cannot_be_measured_is_said(emulated_npu):
    with pytest.raises(ShapeError, match=r"'x' \[\?,64\] leaves sizes open"):
        benchmark_model(dense_model(), "CPU", limits=SHORT)
    with pytest.raises(ShapeError, match="needs static shapes"):
        benchmark_model(dense_model(), "NPU", {"x": np.zeros((1, WIDTH), np.float32)}, limits=SHORT)
    with pytest.raises(DeviceError, match=r"GPU\.7"):
        benchmark_model(sized(), "GPU.7", limits=SHORT)


def test_a_device_that_refuses_the_model_is_named(core):
    core.refuses["GPU"] = "Unsupported operation: Tanh"
    with pytest.raises(CompileError, match="GPU could not compile dense: .*Unsupported operation: Tanh"):
        benchmark_model(sized(), "GPU", limits=SHORT, progress=quiet)


def test_the_emulated_npu_is_timed_and_named_as_such(emulated_npu):
    found = benchmark_model(sized(), "NPU", limits=SHORT, progress=quiet)
    assert found.device == "NPU (emulated on CPU)" and found.precision == "fp16"


def test_random_inputs_have_the_models_types_and_are_always_the_same():
    kinds = {"f": ov.Type.f32, "h": ov.Type.f16, "i": ov.Type.i64, "b": ov.Type.boolean}
    ports = [ops.parameter([2, 3], kind, name=name) for name, kind in kinds.items()]
    for port in ports:
        port.output(0).set_names({port.get_friendly_name()})
    model = ov.Model([ops.abs(port) for port in ports[:3]], ports)
    first, again = random_inputs(model), random_inputs(model)
    assert {name: array.dtype.name for name, array in first.items()} == {
        "f": "float32", "h": "float16", "i": "int64", "b": "bool",
    }  # fmt: skip
    assert all((first[name] == again[name]).all() and first[name].shape == (2, 3) for name in kinds)
    short = ops.parameter([1], ov.Type.bf16, name="s")
    short.output(0).set_names({"s"})
    with pytest.raises(TensorError, match="'s' is of type bf16"):
        random_inputs(ov.Model([ops.abs(short)], [short]))


def test_memory_is_seen_at_its_highest():
    with MemoryWatch() as watch:
        block = np.ones(30_000_000, np.float32)
        held = watch.memory
        del block
    assert held.added > 100e6 and watch.memory.peak >= held.after > watch.memory.after
