"""Timing whatever can be called: the first run and the warm-up apart from the rest, alone or in turns with others."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from .progress import Progress, log_progress
from .timing import Statistics, is_warm, milliseconds, relative_spread, summarize, uncertainty

WARM_UP_SHARE = 0.25
"""Of the time limit, at most this much goes into warming up."""
PROGRESS_S = 0.5

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


DEFAULT_LIMITS = Limits()


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
    limits: Limits = DEFAULT_LIMITS,
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
    limits: Limits = DEFAULT_LIMITS,
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
