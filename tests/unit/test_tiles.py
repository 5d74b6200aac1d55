"""An image of any size goes through tiles of one size and comes back whole, exact and without a seam."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import openvino as ov
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ovpack.ov_backends.errors import TensorError
from ovpack.ov_backends.tiles import Tiling, crop, cut, join, pad, run_tiled

few = settings(max_examples=60, deadline=None)
sides = st.integers(1, 40)


@st.composite
def tilings(draw) -> Tiling:
    tile = draw(st.integers(1, 16)), draw(st.integers(1, 16))
    return Tiling(draw(sides), draw(sides), *tile, draw(st.integers(0, min(tile) - 1)))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def enlarge(image, scale: int):
    """Each pixel `scale` times in both directions: what an upscaler of that scale does to a tile, at its simplest."""
    if isinstance(image, torch.Tensor):
        return image.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    return image.repeat(scale, 2).repeat(scale, 3)


@few
@given(tilings(), st.sampled_from(["reflect", "edge"]), st.integers(1, 2), st.integers(1, 3))
def test_what_is_cut_and_joined_is_exactly_what_it_was(tiling, padding, batch, channels):
    image = noise(batch, channels, tiling.height, tiling.width)
    assert np.array_equal(join(cut(image, tiling, padding), tiling), image)


@few
@given(tilings(), st.sampled_from([2, 3, 4]))
def test_an_upscaled_image_is_exactly_its_tiles(tiling, scale):
    image = noise(1, 2, tiling.height, tiling.width)
    joined = join((enlarge(tile, scale) for tile in cut(image, tiling)), tiling, scale)
    assert np.array_equal(joined, enlarge(image, scale))


@few
@given(tilings())
def test_tiles_have_one_size_cover_the_image_and_overlap_enough(tiling):
    tiles = list(cut(noise(1, 1, tiling.height, tiling.width), tiling))
    assert len(tiles) == len(tiling)
    assert {tile.shape for tile in tiles} == {(1, 1, tiling.tile_height, tiling.tile_width)}
    assert all(tile.flags.c_contiguous for tile in tiles)
    for starts, tile, size in (
        (tiling.tops, tiling.tile_height, tiling.height),
        (tiling.lefts, tiling.tile_width, tiling.width),
    ):
        assert starts[0] == 0 and starts[-1] + tile == max(size, tile), "tiles end where the image ends"
        steps = [b - a for a, b in pairwise(starts)]
        assert all(0 < step <= tile - tiling.overlap for step in steps)
        fewer = len(starts) - 1
        assert fewer == 0 or fewer * (tile - tiling.overlap) + tiling.overlap < size, "no more tiles than needed"


@settings(max_examples=30, deadline=None)
@given(tilings(), st.sampled_from([1, 2]))
def test_the_weights_of_the_tiles_sum_to_one_everywhere(tiling, scale):
    """Tile i alone is all ones, the others are zeros: what comes out is its weight at each pixel."""
    count = len(tiling)
    shape = (1, 1, tiling.tile_height * scale, tiling.tile_width * scale)
    total = np.zeros((1, 1, tiling.height * scale, tiling.width * scale), np.float64)
    for chosen in range(count):
        weight = join((np.full(shape, float(i == chosen)) for i in range(count)), tiling, scale)
        assert weight.min() >= 0 and weight.max() <= 1
        total += weight
    assert np.allclose(total, 1, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(20, 60), st.integers(4, 16))
def test_what_a_tile_knows_least_about_its_edge_is_never_shown(width, overlap):
    """A quarter of the overlap from an inner edge of a tile, its pixels have no weight."""
    tiling = Tiling(8, width, 8, 18, overlap) if overlap < 8 else Tiling(18, width, 18, 18, overlap)
    margin = overlap // 4
    tiles = [np.zeros((1, 1, tiling.tile_height, 18), np.float32) for _ in range(len(tiling))]
    for index, tile in enumerate(tiles):
        if index > 0:
            tile[..., :margin] = 1e6
        if index < len(tiles) - 1:
            tile[..., 18 - margin :] = 1e6
    assert np.array_equal(join(tiles, tiling), np.zeros((1, 1, tiling.height, width)))


def test_a_seam_of_two_flat_tiles_is_a_straight_slope():
    tiling = Tiling(4, 24, 4, 14, 3)
    assert tiling.lefts == (0, 10)
    tiling = Tiling(16, 24, 16, 16, 8)
    dark, light = np.zeros((1, 1, 16, 16), np.float32), np.ones((1, 1, 16, 16), np.float32)
    row = join([dark, light], tiling)[0, 0, 0]
    assert row[:10].tolist() == [0] * 10 and row[14:].tolist() == [1] * 10
    assert row[10:14].tolist() == [0.125, 0.375, 0.625, 0.875]


@few
@given(sides, sides, st.sampled_from(["reflect", "edge"]))
def test_padding_is_numpys_and_cropping_undoes_it(height, width, padding):
    image = noise(1, 2, height, width)
    padded = pad(image, 33, 21, padding)
    below, right = max(33 - height, 0), max(21 - width, 0)
    expected = np.pad(image, ((0, 0), (0, 0), (0, below), (0, right)), padding)
    assert np.array_equal(padded, expected)
    assert np.array_equal(pad(torch.from_numpy(image), 33, 21, padding).numpy(), expected)
    assert np.array_equal(crop(padded, height, width), image)


@few
@given(tilings(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_torch_tensors_stay_torch_tensors_of_their_type(tiling, dtype):
    image = torch.from_numpy(noise(1, 3, tiling.height, tiling.width)).to(dtype)
    joined = join((enlarge(tile, 2) for tile in cut(image, tiling)), tiling, 2)
    assert joined.dtype == dtype and torch.equal(joined, enlarge(image, 2))


def test_openvino_tensors_are_read_where_they_lie():
    image = noise(1, 3, 20, 30)
    assert np.array_equal(run_tiled(lambda tile: tile, ov.Tensor(image), (8, 8), 2), image)


@pytest.mark.parametrize("size", [(40, 56), (33, 47), (17, 90), (16, 16)])
def test_a_blur_is_the_same_in_tiles_as_on_the_whole_image(size):
    """A convolution that sees 2 pixels far, with an overlap of 4 times that: nothing but rounding may differ."""
    image = torch.from_numpy(noise(2, 3, *size))
    kernel = torch.rand(3, 3, 5, 5, generator=torch.Generator().manual_seed(0)) / 75

    def blur(tile: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(tile, kernel, padding=2)

    assert torch.allclose(run_tiled(blur, image, (16, 16), 8), blur(image), atol=1e-6)


def test_the_tiles_given_are_left_as_they_are():
    image = noise(1, 1, 16, 16)
    before = image.copy()
    joined = run_tiled(lambda tile: tile, image, (16, 16), 0)
    joined += 1
    assert np.array_equal(image, before)


def test_memory_holds_the_image_and_one_row_of_tiles():
    """512 x 512 of float32 is 1 MB; a row of 32 tiles of 32 x 32 pixels with an overlap of half is 256 KB at most."""
    image = noise(1, 1, 512, 512)
    tracemalloc.start()
    run_tiled(lambda tile: tile, image, (32, 32), 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * image.nbytes, peak


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: Tiling(8, 8, 4, 4, 4), "Tiles of 4x4 cannot overlap by 4 pixels; choose 0 to 3"),
        (lambda: Tiling(0, 8, 4, 4, 0), "An image of 8x0 cannot be cut"),
        (lambda: list(cut(noise(1, 1, 8, 8), Tiling(8, 9, 4, 4, 0))), "The tiling is for 9x8; the image is"),
        (lambda: pad(noise(8, 8), 9, 9), "An image has 4 dimensions"),
        (lambda: pad(noise(1, 1, 8, 8), 9, 9, "wrap"), "Unknown padding 'wrap'"),
        (lambda: crop(noise(1, 1, 8, 8), 9, 8), "An image of 8x8 holds no 8x9"),
        (lambda: run_tiled(lambda t: t, noise(1, 1, 8, 8), (4, 4), 0, scale=2), "is the model's scale 2?"),
        (lambda: join([noise(1, 1, 4, 4)], Tiling(8, 8, 4, 4, 0)), "fewer tiles than the 4"),
        (
            lambda: run_tiled(lambda t: t, np.zeros((1, 1, 8, 8), np.uint8), (4, 4), 0),
            "Tiles of uint8 cannot be",
        ),
        (lambda: run_tiled(lambda t: t, torch.zeros(1, 1, 8, 8).int(), (4, 4), 0), "Tiles of torch.int32 cannot be"),
    ],
)
def test_what_cannot_be_tiled_says_why(wrong, message):
    with pytest.raises(TensorError) as caught:
        wrong()
    assert message in str(caught.value)
