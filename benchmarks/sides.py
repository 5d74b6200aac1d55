"""What a benchmark measures of each of its sides, and how it is compared, printed and written."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Side:
    """One way to run the UNet.

    precision: of NPU KSampler on the CPU; "" is the stock KSampler. goal: how many times faster than that it must be.
    """

    name: str
    title: str
    precision: str = ""
    goal: float = 0.0


STOCK = Side("torch", "KSampler, torch fp32")


@dataclass(frozen=True)
class Run:
    """One sampling run.

    total_s: the whole node; step_s: each step, from the start of its UNet call to that of the next; unet_s: all UNet
    calls together as the sampler sees them; openvino_s: the part of these that OpenVINO computed.
    """

    total_s: float
    step_s: list[float]
    unet_s: float
    openvino_s: float
    calls: int
    latent: Any = field(repr=False)
    peak_bytes: int = 0


@dataclass(frozen=True)
class Ready:
    """A side has made its model and run once. report: NPU KSampler's own; with hardware, empty for the stock side."""

    warm_up_s: float
    report: dict[str, Any]
    hardware: dict[str, Any]


@dataclass
class Result:
    """All that was measured of one side."""

    side: Side
    ready: Ready
    runs: list[Run] = field(default_factory=list)
    peak_bytes: int = 0
    """Most memory that the process ever held, conversion and compilation included."""

    @property
    def step_s(self) -> float:
        return statistics.median(step for run in self.runs for step in run.step_s)

    @property
    def sampling_peak_bytes(self) -> int:
        return max(run.peak_bytes for run in self.runs)

    def speed_up(self, other: Result) -> float:
        """How many times faster a step is than `other`'s of the same round; the median of all rounds."""
        pairs = zip(other.runs, self.runs, strict=True)
        return statistics.median(statistics.median(a.step_s) / statistics.median(b.step_s) for a, b in pairs)

    def overhead(self, stock: Result) -> float:
        """The part of a run that is neither OpenVINO's nor the sampler's own; the sampler's is measured on `stock`."""
        sampler_s = statistics.median(run.total_s - run.unet_s for run in stock.runs)
        return statistics.median((run.total_s - run.openvino_s - sampler_s) / run.total_s for run in self.runs)

    def cosine(self, other: Result) -> float:
        """Of the latent that the first run made to `other`'s."""
        return cosine(other.runs[0].latent, self.runs[0].latent)

    def as_json(self, stock: Result) -> dict[str, Any]:
        return {
            "step_s": self.step_s,
            "speed_up": self.speed_up(stock),
            "overhead": self.overhead(stock) if self.side.precision else None,
            "sampling_peak_bytes": self.sampling_peak_bytes,
            "peak_bytes": self.peak_bytes,
            "cosine": self.cosine(stock),
            "report": self.ready.report,
            "runs": [{k: v for k, v in asdict(run).items() if k != "latent"} for run in self.runs],
        }


def cosine(a, b) -> float:
    import numpy as np

    a, b = (x.astype(np.float64).ravel() for x in (a, b))
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


class Column(NamedTuple):
    """A column of a table, aligned to the right. text: of a result's cell, given the stock result too."""

    title: str
    width: int
    text: Callable[[Result, Result], str]


COLUMNS = (
    Column("s per step", 11, lambda result, stock: f"{result.step_s:.3f}"),
    Column("min..max", 16, lambda result, stock: _range([step for run in result.runs for step in run.step_s])),
    Column("speed-up", 9, lambda result, stock: f"{result.speed_up(stock):.2f}"),
    Column("our code", 10, lambda result, stock: f"{result.overhead(stock):.2%}" if result.side.precision else "-"),
    Column("peak GB", 9, lambda result, stock: f"{result.sampling_peak_bytes / 1e9:.2f}"),
    Column("first GB", 9, lambda result, stock: f"{result.peak_bytes / 1e9:.2f}"),
    Column("cosine", 13, lambda result, stock: f"{result.cosine(stock):.9f}"),
)


def table(results: Sequence[Result], columns: Sequence[Column] = COLUMNS) -> str:
    """A header, then a line for each result; the first result is the stock side."""
    lines = [f"{'':24}" + "".join(f"{column.title:>{column.width}}" for column in columns)]
    for result in results:
        cells = (f"{column.text(result, results[0]):>{column.width}}" for column in columns)
        lines.append(f"{result.side.title:24}" + "".join(cells))
    return "\n".join(lines)


def hardware_line(results: Sequence[Result]) -> str:
    hardware = hardware_of(results)
    versions = hardware["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("openvino", "torch", "comfyui"))
    bf16 = "BF16 arithmetic" if has_bf16(hardware) else "no BF16 arithmetic"
    memory = f"{hardware['memory_bytes'] / 2**30:.0f} GiB"
    arithmetic = f"{hardware['instructions']}, {bf16} ({hardware['capabilities']})"
    return f"{hardware['cpu']}, {hardware['cores']}, {memory}, {arithmetic}\n{named}"


def conditions_line(results: Sequence[Result], options: Any) -> str:
    """What was sampled; options: a sampling.Options."""
    stock = results[0]
    return (
        f"Stable Diffusion 1.5's UNet, random weights, {options.size}x{options.size}, CFG, {options.steps} euler steps "
        f"({stock.runs[0].calls} UNet calls), {len(stock.runs)} rounds, torch attention: {options.attention}"
    )


def preparation_line(result: Result) -> str:
    seconds = result.ready.report["seconds"]
    cache = result.ready.report["cache"]
    return (
        f"{result.side.title}: first run {result.ready.warm_up_s:.1f} s, of it converting {seconds['convert']:.1f}, "
        f"compiling {seconds['compile']:.1f}, importing {seconds['import']:.1f}; cache {cache['state']}"
    )


def hardware_of(results: Sequence[Result]) -> dict[str, Any]:
    """The machine, as the first side that looked at it found it."""
    return next(result.ready.hardware for result in results if result.ready.hardware)


def has_bf16(hardware: dict[str, Any]) -> bool:
    return "BF16" in hardware["capabilities"].split()


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3f}..{max(values):.3f}"
