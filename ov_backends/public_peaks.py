"""Published figures of what Intel's NPUs and integrated GPUs can do at most, each with the place it was read at.

Intel's documents come first; where none could be read, a report of Intel's presentation is named instead. What no
document says is derived from the other figures and marked as an estimate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from . import devices


class Figure(NamedTuple):
    """A number and where it was read; of an estimate, what it was derived from."""

    value: float
    source: str
    is_estimate: bool = False

    def __str__(self) -> str:
        return f"estimate: {self.source}" if self.is_estimate else self.source


class PublicPeak(NamedTuple):
    """Figures of the fastest part that has this architecture. One MAC is two operations.

    int8, fp16: in TOPS. memory: in GB/s, shared by CPU, GPU and NPU.
    """

    name: str
    int8: Figure
    fp16: Figure
    memory: Figure


def _memory(megatransfers: int, source: str) -> Figure:
    """LPDDR5X, 128 bits wide: 16 bytes a transfer."""
    return Figure(megatransfers * 16 / 1000, f"LPDDR5X-{megatransfers}, 128 bits wide ({source})")


_TECH_TOUR_2024 = "Intel, 'AI Hardware Accelerators', Tech Tour 2024, scribd.com/document/874707626"
_COST_MODEL = "github.com/intel/npu-nn-cost-model, device_HW_characteristics_{}.h: fp_ratio 2"
_XMX = "half of INT8: XMX does 256 INT8 or 128 FP16 operations a cycle in Xe, no figure for this GPU was found"

_METEOR_LAKE_MEMORY = _memory(7467, "yantragyan.com/intel-14th-gen-meteor-lake-mobile-processors-launched")
_LUNAR_LAKE_MEMORY = _memory(8533, "pcguia.pt/?p=291031")
_PANTHER_LAKE_MEMORY = _memory(9600, "tomshw.it/hardware/panther-lake-h-ecco-il-die-di-intel-core-ultra-3-2026-03-07")

_NPU_3720 = PublicPeak(
    "NPU 3720 (Meteor Lake)",
    Figure(11.5, f"{_TECH_TOUR_2024}: 4096 MACs at 1.4 GHz"),
    Figure(5.75, _COST_MODEL.format("VPU2_7")),
    _METEOR_LAKE_MEMORY,
)
_NPU_4000 = PublicPeak(
    "NPU 4000 (Lunar Lake)",
    Figure(48.0, f"{_TECH_TOUR_2024}; 6 x 2048 MACs: Intel datasheet 829568"),
    Figure(24.0, _COST_MODEL.format("VPU4")),
    _LUNAR_LAKE_MEMORY,
)
_NPU_5010 = PublicPeak(
    "NPU 5010 (Panther Lake)",
    Figure(50.0, "hothardware.com/reviews/what-we-learned-at-intel-tech-tour-2025-panther-lake-and-18a"),
    Figure(25.0, _COST_MODEL.format("VPU5")),
    _PANTHER_LAKE_MEMORY,
)
_GPU_METEOR_LAKE = PublicPeak(
    "GPU of Meteor Lake H (8 Xe-cores)",
    Figure(18.0, "tweaktown.com/news/97441: 34 TOPS are 18 of the GPU, 11 of the NPU, 5 of the CPU"),
    Figure(9.0, "half of INT8: an Xe vector engine does 64 INT8 or 32 FP16 operations a cycle", is_estimate=True),
    _METEOR_LAKE_MEMORY,
)
_GPU_LUNAR_LAKE = PublicPeak(
    "GPU of Lunar Lake (8 Xe2-cores)",
    Figure(67.0, _TECH_TOUR_2024),
    Figure(33.5, _XMX, is_estimate=True),
    _LUNAR_LAKE_MEMORY,
)
_GPU_PANTHER_LAKE = PublicPeak(
    "GPU of Panther Lake H (12 Xe3-cores; with 4 a third of that)",
    Figure(120.0, "c114pro.com/chipnews/117073.html"),
    Figure(60.0, _XMX, is_estimate=True),
    _PANTHER_LAKE_MEMORY,
)

PUBLIC: Mapping[str, PublicPeak] = {
    "NPU 3720": _NPU_3720,
    "NPU 4000": _NPU_4000,
    "NPU 5010": _NPU_5010,
    # which version is which GPU: github.com/intel/compute-runtime, neo_aot_platforms.h
    "GPU 12.71": _GPU_METEOR_LAKE,
    "GPU 20.4": _GPU_LUNAR_LAKE,
    "GPU 30.0": _GPU_PANTHER_LAKE,
}
"""By device and architecture. Left out, because no figure of theirs was found: NPU 5020 (Wildcat Lake, one tile of 4096
MACs where NPU 5010 has three), NPU 6010, and the smaller GPUs 12.70, 12.74, 30.1 and 30.3.
"""


def public_peak(device: str, architecture: str) -> PublicPeak | None:
    """The row of PUBLIC. architecture: DEVICE_ARCHITECTURE, "4000" or "GPU: vendor=0x8086 arch=v20.4.4"."""
    base = devices.base_name(device)
    found = re.search(r"arch=v(\d+\.\d+)" if base == "GPU" else r"(\d+)", architecture)
    return PUBLIC.get(f"{base} {found[1]}") if found else None
