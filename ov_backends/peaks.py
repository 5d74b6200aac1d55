"""What a device can do at most, and how long a model would take if it did: theory beside practice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from . import devices
from .compiler.precision import float_precision
from .cpu_speed import bandwidth_of_this_cpu, macs_of_this_cpu
from .graph.costs import operator_costs, port_bytes, totals
from .plan import QUANTIZED
from .progress import Progress, log_progress, with_heartbeat
from .public_peaks import public_peak
from .timing import milliseconds

if TYPE_CHECKING:
    import openvino as ov

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
"""Bytes of a number in each arithmetic."""

SMALL_MACS = 50_000_000
"""A model below this leaves the MAC arrays of an NPU idle: at 5 TOPS it is 0.02 ms, less than starting it takes."""


@dataclass(frozen=True)
class DevicePeak:
    """What a device can do in one arithmetic ("fp32", "fp16", "bf16", "int8").

    source: where the figures are from. is_estimate: no document says macs_per_second, it was derived.
    """

    name: str
    arithmetic: str
    macs_per_second: float
    bytes_per_second: float
    source: str
    is_estimate: bool = False

    @property
    def ridge(self) -> float:
        """MACs for each byte above which the arithmetic is the limit, and below which the memory is."""
        return self.macs_per_second / self.bytes_per_second

    def attainable(self, macs_per_byte: float) -> float:
        """MACs a second at best, for work of this intensity: the roof of the roofline."""
        return min(self.macs_per_second, macs_per_byte * self.bytes_per_second)

    def as_json(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.name} in {self.arithmetic}: {'about ' if self.is_estimate else ''}"
            f"{2 * self.macs_per_second / 1e12:.3g} TOPS, "
            f"{self.bytes_per_second / 1e9:.3g} GB/s ({self.source})"
        )


@dataclass(frozen=True)
class Theory:
    """A measured time beside the least that the device allows.

    least_bytes: weights, inputs and outputs once, everything between stays on the chip. most_bytes: every tensor
    between operators goes through memory.
    """

    peak: DevicePeak
    macs: int
    least_bytes: int
    most_bytes: int
    measured_s: float

    @property
    def ideal_s(self) -> float:
        return ideal_seconds(self.macs, self.least_bytes, self.peak)

    @property
    def unfused_s(self) -> float:
        """The same where nothing stays on the chip."""
        return ideal_seconds(self.macs, self.most_bytes, self.peak)

    @property
    def is_bound_by_memory(self) -> bool:
        return self.least_bytes / self.peak.bytes_per_second > self.macs / self.peak.macs_per_second

    @property
    def macs_used(self) -> float:
        """Utilisation: the share of the peak MACs that were done in the measured time."""
        return self.macs / self.peak.macs_per_second / self.measured_s

    @property
    def memory_used(self) -> float:
        """The share of the bandwidth that the least traffic takes of the measured time."""
        return self.least_bytes / self.peak.bytes_per_second / self.measured_s

    @property
    def is_small(self) -> bool:
        return self.macs < SMALL_MACS

    def text(self) -> str:
        limit = "memory" if self.is_bound_by_memory else "arithmetic"
        need = f"{self.macs / 1e9:.3g} GMAC and at least {self.least_bytes / 1e6:.3g} MB"
        cached = ", more than the memory gives, so it stays in the caches" if self.memory_used > 1 else ""
        return (
            f"theory: {need} need {milliseconds(self.ideal_s)} ({limit} is the limit; {milliseconds(self.unfused_s)} "
            f"if every tensor went through memory); measured {milliseconds(self.measured_s)}, "
            f"{self.measured_s / self.ideal_s:.1f} times that; used: {self.macs_used:.1%} of the MACs, "
            f"{self.memory_used:.1%} of the bandwidth{cached}; {self.peak}"
        )

    def as_json(self) -> dict:
        return {
            **asdict(self),
            "ideal_s": self.ideal_s,
            "unfused_s": self.unfused_s,
            "bound": "memory" if self.is_bound_by_memory else "arithmetic",
            "macs_used": self.macs_used,
            "memory_used": self.memory_used,
        }


def ideal_seconds(macs: int, traffic_bytes: int, peak: DevicePeak) -> float:
    """Lower bound for one inference in seconds: the slower of arithmetic and memory traffic.

    macs: multiply-accumulates of one inference; traffic_bytes: what crosses the memory bus. Roofline model (Williams,
    Waterman and Patterson, 2009).
    """
    return max(macs / peak.macs_per_second, traffic_bytes / peak.bytes_per_second)


def arithmetic(precision: str, device: str) -> str:
    """What the MACs of a precision are done in: weights that are only stored in few bits are widened before."""
    if precision in QUANTIZED and precision != "int8":
        has_bf16 = devices.base_name(device) == "CPU" and "BF16" in devices.capabilities(device).split()
        return "bf16" if has_bf16 else float_precision(device)
    return precision


def device_peak(device: str, precision: str, progress: Progress = log_progress) -> DevicePeak | None:
    """Peak figures of `device` in the arithmetic of `precision`; None if nothing is known of it.

    Published figures for NPU and GPU (PUBLIC). The CPU, and with it the emulated NPU, is measured: once in a process.
    """
    kind = arithmetic(precision, device)
    if devices.base_name(device) == "CPU" or (devices.is_npu(device) and devices.emulates_npu()):
        return _measured_cpu(kind, progress)
    return _published(device, kind)


def compare_with_peak(
    model: ov.Model, device: str, precision: str, measured_s: float, progress: Progress = log_progress
) -> Theory | None:
    """A measured time of one inference beside theory; None where nothing is known of the device. Static shapes."""
    peak = device_peak(device, precision, progress)
    return compare_with(peak, model, measured_s) if peak else None


def compare_with(peak: DevicePeak, model: ov.Model, measured_s: float) -> Theory:
    """The same against a peak that is known."""
    width = BYTES[peak.arithmetic]
    sums = totals(operator_costs(model, float_bytes=width))
    # inputs and outputs keep the type of their ports
    ports = port_bytes([*model.inputs, *model.outputs])
    return Theory(peak, sums.macs, sums.weight_bytes + ports, sums.weight_bytes + sums.activation_bytes, measured_s)


def _published(device: str, kind: str) -> DevicePeak | None:
    architecture = next((d.architecture for d in devices.list_devices() if _is_same(d.name, device)), "")
    return published_peak(device, architecture, kind)


def published_peak(device: str, architecture: str, kind: str) -> DevicePeak | None:
    """What is published of a device, which need not be here; None if nothing is. See `public_peak`."""
    row = public_peak(device, architecture)
    if row is None or kind not in ("int8", "fp16"):
        return None
    tops = row.int8 if kind == "int8" else row.fp16
    return DevicePeak(
        row.name, kind, tops.value * 1e12 / 2, row.memory.value * 1e9, f"{tops}; memory: {row.memory}", tops.is_estimate
    )


def _is_same(name: str, device: str) -> bool:
    """GPU means GPU.0, and a single GPU is listed without a number."""
    return name == device or {name, device} in ({"GPU", "GPU.0"}, {"NPU", "NPU.0"})


def _measured_cpu(kind: str, progress: Progress) -> DevicePeak:
    macs = with_heartbeat(lambda: macs_of_this_cpu(kind), f"Measuring what the CPU can do in {kind}", progress)
    bandwidth = with_heartbeat(bandwidth_of_this_cpu, "Measuring the memory bandwidth", progress)
    return DevicePeak("CPU", kind, macs, bandwidth, "measured here: a matrix product and a copy through OpenVINO")
