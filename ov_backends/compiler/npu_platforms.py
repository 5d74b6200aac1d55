"""The NPU generations that Intel's compiler knows, by number and by the products that they are in."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UseError


@dataclass(frozen=True)
class Platform:
    """number: as NPU_PLATFORM and in device names. tiles: compute tiles of the whole part; 0: not known.

    products: processors with this NPU; "" where Intel has not said.
    """

    number: str
    tiles: int
    products: str
    names: tuple[str, ...] = ()
    """What else it is called, in lower case."""

    def __str__(self) -> str:
        return f"NPU {self.number}" + (f" ({self.products})" if self.products else "")


# Tiles: getPlatformCapabilities in Intel's compiler (openvinotoolkit/npu_compiler, dialect/VPU/attributes.cpp).
PLATFORMS = (
    Platform(
        "3720", 2, "Meteor Lake, Arrow Lake", ("meteorlake", "arrowlake", "mtl", "arl", "coreultra100", "coreultra1")
    ),
    Platform("4000", 6, "Lunar Lake", ("lunarlake", "lnl", "coreultra200v")),
    Platform("5010", 3, "Panther Lake", ("pantherlake", "ptl", "coreultra300", "coreultra3")),
    Platform("5020", 1, ""),
    Platform("6010", 0, ""),
)
ALL = tuple(platform for platform in PLATFORMS if platform.products)
"""What "all" means: the ones that can be bought."""
DEFAULT = "4000"


def find_platforms(text: str) -> tuple[Platform, ...]:
    """Platforms named in `text`, separated by commas: "4000", "Lunar Lake,5010", "all". UseError if there is none."""
    found: list[Platform] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        matching = ALL if name.lower() == "all" else tuple(p for p in PLATFORMS if _is_called(p, name))
        if not matching:
            known = ", ".join(f"{p.number} ({p.products})" if p.products else p.number for p in PLATFORMS)
            raise UseError(f"There is no NPU platform '{name}'; there are {known}, and all.")
        found += [platform for platform in matching if platform not in found]
    if not found:
        raise UseError("No NPU platform is named; give a number, a product such as 'Lunar Lake', or all.")
    return tuple(found)


def check_tiles(platform: Platform, tiles: int) -> int:
    """The number of tiles to compile for; 0 means all that the part has. UseError: it has fewer."""
    if tiles < 0 or (platform.tiles and tiles > platform.tiles):
        raise UseError(f"{platform} has {platform.tiles or 'one or more'} tiles; {tiles} cannot be used.")
    return tiles or platform.tiles


def _is_called(platform: Platform, name: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("intel").removeprefix("npu")
    return plain == platform.number or plain in platform.names
