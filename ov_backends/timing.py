"""Statistics of durations: what is typical, how sure that is, and when it is known well enough to stop."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

Z95 = 1.96
"""Standard deviations of a normal distribution that hold 95 % of it."""
WARM_GAIN = 0.02
"""A run that beats the best one before it by less than this is no longer warming up."""
WARM_RUNS = 2
"""So many runs in a row must show that."""


@dataclass(frozen=True)
class Statistics:
    """Durations in seconds. spread: interquartile range divided by the median, 0.1 is 10 %."""

    runs: int
    median_s: float
    p90_s: float
    p99_s: float
    fastest_s: float
    slowest_s: float
    spread: float

    def as_json(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"median {milliseconds(self.median_s)}, p90 {milliseconds(self.p90_s)}, p99 {milliseconds(self.p99_s)}, "
            f"spread {self.spread:.1%} of it, {self.runs} runs"
        )


def summarize(durations: Sequence[float]) -> Statistics:
    """Statistics of at least one duration in seconds; p99 of fewer than 100 runs lies between the two slowest."""
    median = statistics.median(durations)
    return Statistics(
        runs=len(durations),
        median_s=median,
        p90_s=quantile(durations, 0.9),
        p99_s=quantile(durations, 0.99),
        fastest_s=min(durations),
        slowest_s=max(durations),
        spread=relative_spread(durations),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of them do not exceed, interpolated between neighbours (Hyndman and Fan, 7)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def relative_spread(values: Sequence[float]) -> float:
    """Interquartile range divided by the median; 0 for a median of 0."""
    median = statistics.median(values)
    return (quantile(values, 0.75) - quantile(values, 0.25)) / median if median else 0.0


def median_interval(durations: Sequence[float]) -> tuple[float, float]:
    """Bounds within which the true median lies with 95 % confidence, whatever the distribution.

    Order statistics around the middle (Conover, Practical Nonparametric Statistics): of n values the median lies, with
    95 %, between those of rank n/2 -+ 1.96 * sqrt(n)/2.
    """
    ordered = sorted(durations)
    count = len(ordered)
    half = Z95 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - half))
    high = min(count - 1, math.ceil(count / 2 + half))
    return ordered[low], ordered[high]


def uncertainty(durations: Sequence[float]) -> float:
    """Half the width of the median's interval, divided by the median."""
    low, high = median_interval(durations)
    median = statistics.median(durations)
    return (high - low) / 2 / median if median else 0.0


def is_warm(durations: Sequence[float]) -> bool:
    """Whether the last WARM_RUNS were no faster than the best before them, but for WARM_GAIN."""
    earlier, last = durations[:-WARM_RUNS], durations[-WARM_RUNS:]
    return bool(earlier) and min(last) >= (1 - WARM_GAIN) * min(earlier)


def milliseconds(seconds: float) -> str:
    """Three digits that count: 0.123 ms, 12.3 ms, 1230 ms."""
    value = 1e3 * seconds
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f} ms"
