"""Images of any size through a model of one size: cut into tiles, and joined again without a seam.

Images are [batch, channels, height, width], numpy, torch or OpenVINO. All tiles have one size. The first and the last
of a row end where the image ends, so that a model sees the image's own edges; an image smaller than a tile is padded.
Where two tiles overlap, the outer quarters of the overlap show one tile alone, since a model knows least about the
edge of its tile, and between them one fades into the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from .errors import TensorError
from .layout import to_contiguous
from .tensor_kinds import AnyTensor, kind_of

PADDINGS = ("reflect", "edge")
"""Pixels beyond an image's edge: the image mirrored, or its last pixel repeated."""


@dataclass(frozen=True)
class Tiling:
    """Where the tiles of an image lie. All numbers are pixels of the image before any scaling."""

    height: int
    width: int
    tile_height: int
    tile_width: int
    overlap: int
    """At least this much two neighbours overlap."""

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.tile_height, self.tile_width) < 1:
            raise TensorError(
                f"An image of {self.width}x{self.height} cannot be cut into tiles of "
                f"{self.tile_width}x{self.tile_height}; no side may be 0."
            )
        if not 0 <= self.overlap < min(self.tile_height, self.tile_width):
            raise TensorError(
                f"Tiles of {self.tile_width}x{self.tile_height} cannot overlap by {self.overlap} pixels; choose 0 to "
                f"{min(self.tile_height, self.tile_width) - 1}, best an eighth of a tile."
            )

    @property
    def tops(self) -> tuple[int, ...]:
        """First pixel row of each row of tiles."""
        return _starts(self.height, self.tile_height, self.overlap)

    @property
    def lefts(self) -> tuple[int, ...]:
        """First pixel column of each column of tiles."""
        return _starts(self.width, self.tile_width, self.overlap)

    def __len__(self) -> int:
        """Number of tiles."""
        return len(self.tops) * len(self.lefts)


def pad(image: AnyTensor, height: int, width: int, padding: str = "reflect") -> AnyTensor:
    """`image` with pixels added below and to the right, up to at least height x width; itself if it is large enough."""
    if padding not in PADDINGS:
        raise TensorError(f"Unknown padding {padding!r}; choose {' or '.join(PADDINGS)}.")
    image = _image(image)
    for axis, size in ((2, height), (3, width)):
        length = image.shape[axis]
        if length < size:
            indices = [_inside(i, length, padding) for i in range(size)]
            image = image[:, :, indices] if axis == 2 else image[:, :, :, indices]
    return image


def crop(image: AnyTensor, height: int, width: int) -> AnyTensor:
    """The first height x width pixels of `image`, contiguous: what `pad` added is gone."""
    image = _image(image)
    if image.shape[2] < height or image.shape[3] < width:
        raise TensorError(f"An image of {image.shape[3]}x{image.shape[2]} holds no {width}x{height} to crop to.")
    return to_contiguous(image[:, :, :height, :width])


def cut(image: AnyTensor, tiling: Tiling, padding: str = "reflect") -> Iterator[AnyTensor]:
    """The tiles [batch, channels, tile height, tile width], row by row, each contiguous; one at a time in memory."""
    image = _image(image)
    if image.shape[2:] != (tiling.height, tiling.width):
        raise TensorError(f"The tiling is for {tiling.width}x{tiling.height}; the image is {list(image.shape)}.")
    image = pad(image, tiling.tile_height, tiling.tile_width, padding)
    for top in tiling.tops:
        for left in tiling.lefts:
            yield to_contiguous(image[:, :, top : top + tiling.tile_height, left : left + tiling.tile_width])


def join(tiles: Iterable[AnyTensor], tiling: Tiling, scale: int = 1) -> AnyTensor:
    """The image [batch, channels, height * scale, width * scale] from its tiles in the order of `cut`.

    tiles: [batch, channels, tile height * scale, tile width * scale], floating point; read one at a time. Beside the
    image, one row of tiles is in memory. Where overlapping tiles agree, the result is exactly what they hold.
    """
    tiles = iter(tiles)
    bands = (_join_axis(_take(tiles, tiling, scale), tiling.lefts, tiling, 3, scale) for _ in tiling.tops)
    image = _join_axis(bands, tiling.tops, tiling, 2, scale)
    return crop(image, tiling.height * scale, tiling.width * scale)


def run_tiled(
    function: Callable[[AnyTensor], AnyTensor],
    image: AnyTensor,
    tile: tuple[int, int],
    overlap: int,
    scale: int = 1,
    padding: str = "reflect",
) -> AnyTensor:
    """`function` on every tile of `image`, joined. tile: height and width; scale: of the function's output."""
    image = _image(image)
    tiling = Tiling(image.shape[2], image.shape[3], *tile, overlap)
    return join(map(function, cut(image, tiling, padding)), tiling, scale)


def _image(tensor: AnyTensor) -> AnyTensor:
    """A 4-D numpy array or torch tensor; OpenVINO's as a numpy view."""
    if len(tensor.shape) != 4:
        raise TensorError(f"An image has 4 dimensions [batch, channels, height, width]; got {list(tensor.shape)}.")
    return tensor.data if kind_of(tensor) == "openvino" else tensor


def _starts(size: int, tile: int, overlap: int) -> tuple[int, ...]:
    """Tiles spread evenly over `size` pixels, as few as the overlap allows."""
    if size <= tile:
        return (0,)
    count = -(-(size - overlap) // (tile - overlap))
    return tuple(i * (size - tile) // (count - 1) for i in range(count))


def _inside(index: int, length: int, padding: str) -> int:
    """The pixel of an image of `length` that stands for pixel `index` beyond its end."""
    if padding == "edge" or length == 1:
        return min(index, length - 1)
    period = 2 * (length - 1)
    return min(index % period, period - index % period)


def _take(tiles: Iterator[AnyTensor], tiling: Tiling, scale: int) -> Iterator[AnyTensor]:
    """The tiles of one row, checked."""
    expected = (tiling.tile_height * scale, tiling.tile_width * scale)
    for _ in tiling.lefts:
        tile = next(tiles, None)
        if tile is None:
            raise TensorError(f"There are fewer tiles than the {len(tiling)} that this image has.")
        tile = _image(tile)
        if tuple(tile.shape[2:]) != expected:
            raise TensorError(
                f"A tile is {list(tile.shape)} where {expected[0]}x{expected[1]} (height x width) was expected: is the "
                f"model's scale {scale}?"
            )
        yield tile


def _join_axis(pieces: Iterable[AnyTensor], starts: Sequence[int], tiling: Tiling, axis: int, scale: int) -> AnyTensor:
    """Join pieces that overlap along `axis` (2 rows, 3 columns); starts: their first pixels before scaling."""
    whole = None
    end = 0
    fade = tiling.overlap * scale // 2
    for start, piece in zip((s * scale for s in starts), pieces, strict=True):
        length = piece.shape[axis]
        if whole is None:
            shape = list(piece.shape)
            shape[axis] = starts[-1] * scale + length
            whole = _empty(piece, shape)
            fading = kept = 0
        else:
            # the fade stands in the middle of the overlap: [old alone | fade | new alone]
            kept = (end - start - fade) // 2
            fading = fade
        if fading:
            there = _part(axis, start + kept, start + kept + fading)
            old, new = whole[there], piece[_part(axis, kept, kept + fading)]
            # not a weighted sum: rounding would change what both tiles agree on
            whole[there] = old + _ramp(piece, fading, axis) * (new - old)
        whole[_part(axis, start + kept + fading, start + length)] = piece[_part(axis, kept + fading, length)]
        end = start + length
    return whole


def _part(axis: int, first: int, last: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(first, last))


def _empty(like: AnyTensor, shape: Sequence[int]) -> AnyTensor:
    if kind_of(like) == "torch":
        if not like.is_floating_point():
            raise TensorError(f"Tiles of {like.dtype} cannot be blended; convert them to floating point.")
        return like.new_empty(shape)
    import numpy as np

    if like.dtype.kind != "f":
        raise TensorError(f"Tiles of {like.dtype} cannot be blended; convert them to floating point.")
    return np.empty(shape, like.dtype)


def _ramp(like: AnyTensor, length: int, axis: int) -> AnyTensor:
    """Weights of the new piece, rising from 0 to 1 over `length` pixels along `axis`; the old piece has the rest."""
    weights = [(i + 0.5) / length for i in range(length)]
    shape = (-1, 1) if axis == 2 else (-1,)
    if kind_of(like) == "torch":
        return like.new_tensor(weights).reshape(shape)
    import numpy as np

    return np.asarray(weights, like.dtype).reshape(shape)
