"""The demo model's world: coloured shapes on coloured backgrounds, drawn by code and read back from pixels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

SIZE = 128
"""Width and height of a drawn image in pixels."""

FRAME = 4
"""Pixels at the edge that the checker does not look at: no shape is drawn there, and a VAE is least exact there."""

ANGLES, HARMONICS = 72, 8
FARTHEST_OUTLINE = 0.25
"""An outline farther than this from every known shape is none of them."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "orange": (245, 140, 30),
    "yellow": (245, 225, 60),
    "green": (40, 160, 70),
    "blue": (40, 80, 220),
    "purple": (145, 50, 180),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
}


def _polygon(points: list[tuple[float, float]]):
    return lambda draw, box: draw.polygon(
        [(box[0] + x * (box[2] - box[0]), box[1] + y * (box[3] - box[1])) for x, y in points], fill=255
    )


def _star_points() -> list[tuple[float, float]]:
    angles = np.arange(10) * np.pi / 5 - np.pi / 2
    radii = np.where(np.arange(10) % 2 == 0, 0.5, 0.2)
    return [(0.5 + r * np.cos(a), 0.5 + r * np.sin(a)) for r, a in zip(radii, angles, strict=True)]


def _circle(draw: ImageDraw.ImageDraw, box: tuple[float, float, float, float]) -> None:
    draw.ellipse(box, fill=255)


def _ring(draw: ImageDraw.ImageDraw, box: tuple[float, float, float, float]) -> None:
    inset = 0.27 * (box[2] - box[0])
    draw.ellipse(box, fill=255)
    draw.ellipse((box[0] + inset, box[1] + inset, box[2] - inset, box[3] - inset), fill=0)


_CROSS = [
    (1 / 3, 0), (2 / 3, 0), (2 / 3, 1 / 3), (1, 1 / 3), (1, 2 / 3), (2 / 3, 2 / 3),
    (2 / 3, 1), (1 / 3, 1), (1 / 3, 2 / 3), (0, 2 / 3), (0, 1 / 3), (1 / 3, 1 / 3),
]  # fmt: skip

SHAPES = {
    "circle": _circle,
    "square": _polygon([(0, 0), (1, 0), (1, 1), (0, 1)]),
    "triangle": _polygon([(0.5, 0), (1, 1), (0, 1)]),
    "star": _polygon(_star_points()),
    "cross": _polygon(_CROSS),
    "ring": _ring,
}


@dataclass(frozen=True)
class Scene:
    """One shape on a plain background; colours and shape are names out of COLOURS and SHAPES."""

    shape: str
    colour: str
    background: str

    @property
    def prompt(self) -> str:
        return f"a {self.colour} {self.shape} on a {self.background} background"


def random_scene(rng: np.random.Generator) -> Scene:
    colour, background = rng.choice(list(COLOURS), size=2, replace=False)
    return Scene(str(rng.choice(list(SHAPES))), str(colour), str(background))


def fixed_scenes(count: int, seed: int = 2024) -> list[Scene]:
    """The same scenes on every machine; the score is measured on the first 100."""
    rng = np.random.default_rng(seed)
    return [random_scene(rng) for _ in range(count)]


def draw_mask(shape: str, box: tuple[float, float, float, float], size: int = SIZE) -> np.ndarray:
    """Coverage of `shape` in `box` (left, top, right, bottom in pixels): float32 [size, size] in 0..1."""
    oversample = 3
    image = Image.new("L", (size * oversample, size * oversample))
    SHAPES[shape](ImageDraw.Draw(image), tuple(oversample * v for v in box))
    return np.asarray(image.resize((size, size), Image.Resampling.BOX), np.float32) / 255


def draw_scene(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Draw `scene` at a random place and size: float32 [SIZE, SIZE, 3] in 0..1."""
    side = rng.uniform(0.42, 0.72) * SIZE
    left, top = rng.uniform(0.05 * SIZE, 0.95 * SIZE - side, size=2)
    mask = draw_mask(scene.shape, (left, top, left + side, top + side))[..., None]
    foreground, background = (np.array(COLOURS[c], np.float32) / 255 for c in (scene.colour, scene.background))
    return mask * foreground + (1 - mask) * background


def _outline(mask: np.ndarray) -> np.ndarray:
    """What tells shapes apart at any place, size and angle: float64 [1 + HARMONICS].

    First how empty the middle is (1 for a ring), then the strength of each harmonic of the outer radius around the
    centre, relative to the mean radius: 3 for a triangle, weak 4 for a square, strong 4 for a cross, 5 for a star.
    Fourier descriptors of a radial signature (Zahn and Roskies, 1972).
    """
    ys, xs = np.nonzero(mask)
    y, x = ys - ys.mean(), xs - xs.mean()
    distance = np.hypot(y, x)
    bins = ((np.arctan2(y, x) / (2 * np.pi) + 0.5) * ANGLES).astype(int) % ANGLES
    radius = np.zeros(ANGLES)
    np.maximum.at(radius, bins, distance)
    strength = np.abs(np.fft.rfft(radius))[: HARMONICS + 1] / radius.sum()
    middle = 0.25 * radius.mean()
    emptiness = 1 - min(1.0, (distance < middle).sum() / (np.pi * middle**2))
    return np.concatenate([[emptiness], 2 * strength[1:]])


@lru_cache
def _known_outlines() -> dict[str, np.ndarray]:
    return {shape: _outline(draw_mask(shape, (24, 24, 104, 104)) > 0.5) for shape in SHAPES}


def _nearest_colour(pixels: np.ndarray) -> str:
    middle = np.median(pixels.reshape(-1, 3), axis=0)
    return min(COLOURS, key=lambda name: float(np.square(middle - COLOURS[name]).sum()))


def read_scene(image: np.ndarray) -> Scene | None:
    """Recognise the scene in a uint8 image [height, width, 3], or None if there is no shape to see.

    Background: median of the border pixels. Shape: the largest connected patch that differs from it, named after the
    known shape with the nearest outline.
    """
    image = np.asarray(Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BOX), np.float32)
    image = image[FRAME : SIZE - FRAME, FRAME : SIZE - FRAME]
    border = np.concatenate([image[:4].reshape(-1, 3), image[-4:].reshape(-1, 3), image[:, :4].reshape(-1, 3)])
    labels, count = ndimage.label(np.abs(image - np.median(border, axis=0)).max(axis=-1) > 48)
    if not count:
        return None
    mask = labels == 1 + np.argmax(np.bincount(labels.ravel())[1:])
    if not 0.01 < mask.mean() < 0.7:
        return None
    outline = _outline(mask)
    distances = {shape: float(np.linalg.norm(outline - known)) for shape, known in _known_outlines().items()}
    best = min(distances, key=lambda shape: distances[shape])
    if distances[best] > FARTHEST_OUTLINE:
        return None
    return Scene(best, _nearest_colour(image[mask]), _nearest_colour(border))


@dataclass(frozen=True)
class Score:
    """How many of `total` images show what was asked; `wrong` lists (asked, seen) for the others."""

    total: int
    right: int
    wrong: tuple[tuple[Scene, Scene | None], ...]

    @property
    def percent(self) -> float:
        return 100 * self.right / self.total

    def __str__(self) -> str:
        lines = [f"{self.right} of {self.total} images right ({self.percent:.0f} %)"]
        lines += [f"  asked: {asked.prompt}; seen: {seen.prompt if seen else 'no shape'}" for asked, seen in self.wrong]
        return "\n".join(lines)


def score_images(scenes: list[Scene], images: list[np.ndarray]) -> Score:
    """Compare each uint8 image [height, width, 3] with the scene it was asked to show: shape and both colours."""
    seen = [read_scene(image) for image in images]
    wrong = tuple((asked, got) for asked, got in zip(scenes, seen, strict=True) if asked != got)
    return Score(len(scenes), len(scenes) - len(wrong), wrong)
