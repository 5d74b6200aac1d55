"""Times of whatever can be called: the first run and the warm-up apart, an end when the median is known, turns."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from ovpack.ov_backends.race import Limits, benchmark, interleaved
from ovpack.ov_backends.timing import is_warm, median_interval, quantile, summarize, uncertainty


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
