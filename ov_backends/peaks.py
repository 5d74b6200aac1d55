"""What a device can do at most, and how long a model would take if it did: theory beside practice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from . import devices
from .compiler.precision import float_precision
from .cpu_speed import bandwidth_of_this_cpu, macs_of_this_cpu
from .graph.costs import operator_costs, port_bytes, totals
from .plan import QUANTIZED
from .progress import Progress, log_progress, with_heartbeat
from .timing import milliseconds

if TYPE_CHECKING:
    import openvino as ov

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
"""Bytes of a number in each arithmetic."""

SMALL_MACS = 50_000_000
"""A model below this leaves the MAC arrays of an NPU idle: at 5 TOPS it is 0.02 ms, less than starting it takes."""

_HALF = "estimate: half of INT8, as in Intel's earlier descriptions of these arrays"
_LPDDR = "highest memory speed in Intel's product specifications (ark.intel.com), 128 bits wide"


@dataclass(frozen=True)
class PublicPeak:
    """Published figures of the fastest part of a generation. One MAC is two operations.

    gigabytes_per_s: of the memory, which CPU, GPU and NPU share. Each source is a public document, or says "estimate".
    """

    name: str
    int8_tops: float
    fp16_tops: float
    gigabytes_per_s: float
    int8_source: str
    fp16_source: str
    memory_source: str


_NPU_METEOR_LAKE = PublicPeak(
    "NPU 3720 (Meteor Lake)", 11.5, 5.75, 119.5,
    "Intel, Lunar Lake NPU presentation, Tech Tour 2024 (NPU 3: 11.5 TOPS)", _HALF, f"LPDDR5X-7467; {_LPDDR}",
)  # fmt: skip
_NPU_LUNAR_LAKE = PublicPeak(
    "NPU 4000 (Lunar Lake)", 48.0, 24.0, 136.5,
    "Intel, Lunar Lake NPU presentation, Tech Tour 2024 (NPU 4: 48 TOPS)", _HALF, f"LPDDR5X-8533; {_LPDDR}",
)  # fmt: skip
_NPU_PANTHER_LAKE = PublicPeak(
    "NPU 5010 (Panther Lake)", 50.0, 25.0, 153.6,
    "Intel, Panther Lake presentation, Tech Tour 2025 (NPU 5: 50 TOPS)", _HALF, f"LPDDR5X-9600; {_LPDDR}",
)  # fmt: skip
_NPU_5020 = PublicPeak(
    "NPU 5020 (Panther Lake)", 50.0, 25.0, 153.6,
    "estimate: as NPU 5010, there is no figure of its own", _HALF, "estimate: as NPU 5010",
)  # fmt: skip
_GPU_METEOR_LAKE = PublicPeak(
    "GPU of Meteor Lake (8 Xe-cores)", 18.0, 9.0, 119.5,
    "Intel, Vision 2024 (34 TOPS: NPU 11, GPU 18, CPU 5)", "estimate: half of INT8 (DP4A takes 4, a vector lane 2)",
    f"LPDDR5X-7467; {_LPDDR}",
)  # fmt: skip
_GPU_LUNAR_LAKE = PublicPeak(
    "GPU of Lunar Lake (8 Xe2-cores)", 67.0, 33.5, 136.5,
    "Intel, Lunar Lake presentation, Tech Tour 2024 (120 TOPS: NPU 48, GPU 67, CPU 5)", _HALF,
    f"LPDDR5X-8533; {_LPDDR}",
)  # fmt: skip
_GPU_PANTHER_LAKE = PublicPeak(
    "GPU of Panther Lake (12 Xe3-cores; with 4 a third of that)", 120.0, 60.0, 153.6,
    "Intel, Panther Lake presentation, Tech Tour 2025 (180 TOPS: NPU 50, GPU 120, CPU 10)", _HALF,
    f"LPDDR5X-9600; {_LPDDR}",
)  # fmt: skip

PUBLIC: Mapping[str, PublicPeak] = {
    "NPU 3720": _NPU_METEOR_LAKE,
    "NPU 4000": _NPU_LUNAR_LAKE,
    "NPU 5010": _NPU_PANTHER_LAKE,
    "NPU 5020": _NPU_5020,
    # architecture versions of the GPU plugin: 12.70 and 12.71, 20.4, 30.x
    "GPU 12.70": _GPU_METEOR_LAKE,
    "GPU 12.71": _GPU_METEOR_LAKE,
    "GPU 20.4": _GPU_LUNAR_LAKE,
    "GPU 30": _GPU_PANTHER_LAKE,
}
"""By device and architecture, the latter without the parts that do not matter."""


@dataclass(frozen=True)
class DevicePeak:
    """What a device can do in one arithmetic ("fp32", "fp16", "bf16", "int8"). source: where the figures are from."""

    name: str
    arithmetic: str
    macs_per_second: float
    bytes_per_second: float
    source: str

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
            f"{self.name} in {self.arithmetic}: {2 * self.macs_per_second / 1e12:.3g} TOPS, "
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
    if peak is None:
        return None
    width = BYTES[peak.arithmetic]
    sums = totals(operator_costs(model, float_bytes=width))
    # inputs and outputs keep the type of their ports
    ports = port_bytes([*model.inputs, *model.outputs])
    return Theory(peak, sums.macs, sums.weight_bytes + ports, sums.weight_bytes + sums.activation_bytes, measured_s)


def public_peak(device: str, architecture: str) -> PublicPeak | None:
    """The row of PUBLIC. architecture: DEVICE_ARCHITECTURE, "4000" or "GPU: vendor=0x8086 arch=v20.4.4"."""
    base = devices.base_name(device)
    found = re.search(r"arch=v((\d+)\.\d+)" if base == "GPU" else r"((\d+))", architecture)
    if not found:
        return None
    exact, generation = found.groups()
    return PUBLIC.get(f"{base} {exact}") or PUBLIC.get(f"{base} {generation}")


def _published(device: str, kind: str) -> DevicePeak | None:
    architecture = next((d.architecture for d in devices.list_devices() if _is_same(d.name, device)), "")
    row = public_peak(device, architecture)
    if row is None or kind not in ("int8", "fp16"):
        return None
    tops, source = (row.int8_tops, row.int8_source) if kind == "int8" else (row.fp16_tops, row.fp16_source)
    sources = f"{source}; memory: {row.memory_source}"
    return DevicePeak(row.name, kind, tops * 1e12 / 2, row.gigabytes_per_s * 1e9, sources)


def _is_same(name: str, device: str) -> bool:
    """GPU means GPU.0, and a single GPU is listed without a number."""
    return name == device or {name, device} in ({"GPU", "GPU.0"}, {"NPU", "NPU.0"})


def _measured_cpu(kind: str, progress: Progress) -> DevicePeak:
    macs = with_heartbeat(lambda: macs_of_this_cpu(kind), f"Measuring what the CPU can do in {kind}", progress)
    bandwidth = with_heartbeat(bandwidth_of_this_cpu, "Measuring the memory bandwidth", progress)
    return DevicePeak("CPU", kind, macs, bandwidth, "measured here: a matrix product and a copy through OpenVINO")
