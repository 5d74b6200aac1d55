"""Layouts are guessed with a reason, changed in memory, and folded into models without changing what they compute."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openvino import opset13 as ops
from ovpack.ov_backends.errors import TensorError
from ovpack.ov_backends.layout import (
    convert_layout,
    declare_layout,
    fold_layout,
    fold_preprocessing,
    guess_layout,
    to_contiguous,
)
from ovpack.ov_backends.tensors import describe

few = settings(max_examples=40, deadline=None)
sizes = st.tuples(*(st.integers(1, 6) for _ in range(4)))
KINDS = {"numpy": lambda a: a, "torch": torch.from_numpy, "openvino": ov.Tensor}


def as_list(tensor) -> list:
    return (tensor.data if isinstance(tensor, ov.Tensor) else tensor).tolist()


def numbered(shape) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def convolution(channels: int = 3, height: int = -1) -> ov.Model:
    """y = a 3x3 convolution of image [1, channels, height, -1]: wrong layouts and orders of channels show."""
    weights = np.random.default_rng(0).standard_normal((5, channels, 3, 3)).astype(np.float32)
    image = ops.parameter([1, channels, height, -1], ov.Type.f32, name="image")
    image.output(0).set_names({"image"})
    y = ops.convolution(image, ops.constant(weights), [1, 1], [1, 1], [1, 1], [1, 1])
    y.output(0).set_names({"y"})
    return ov.Model([y], [image], "conv")


def run(model: ov.Model, image: np.ndarray) -> np.ndarray:
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled({"image": image})["y"]


@pytest.mark.parametrize(
    "shape, name, why",
    [
        ((1, 3, 512, 512), "NCHW", "3 in dimension 1"),
        ((1, 512, 512, 3), "NHWC", "3 in dimension 3"),
        ((2, 4, 64, 96), "NCHW", "4 in dimension 1"),
        ((1, 320, 64, 64), "NCHW", "dimensions 2 and 3 are equal (64)"),
        ((1, 64, 64, 320), "NHWC", "dimensions 1 and 2 are equal (64)"),
        ((1, 3, 3, 3), "", "ambiguous"),
        ((1, 1, 64, 1), "", "ambiguous"),
        ((1, 320, 64, 96), "", "ambiguous"),
        ((1, 64, 64, 64), "", "ambiguous"),
        ((1, 77, 768), "", "3 dimensions"),
        ((), "", "0 dimensions"),
    ],
)
def test_a_guess_has_its_reason_and_says_when_it_is_none(shape, name, why):
    guess = guess_layout(shape)
    assert guess.name == name and why in guess.reason
    assert (name or "layout unknown") in str(guess)


def test_strides_tell_a_view_from_what_its_shape_suggests():
    image = torch.rand(1, 5, 7, 9)
    assert describe(image.to(memory_format=torch.channels_last)).layout.name == "NCHW"
    assert "NHWC in memory" in describe(image.to(memory_format=torch.channels_last)).layout.reason
    assert describe(image.permute(0, 2, 3, 1)).layout.name == "NHWC"
    assert "NCHW in memory" in describe(image.permute(0, 2, 3, 1)).layout.reason


def test_a_declared_layout_is_taken_as_it_is():
    assert str(describe(np.zeros((1, 3, 8, 8)), layout="NHWC").layout) == "NHWC (declared)"
    with pytest.raises(TensorError, match=r"Shape \[1, 77, 768\] has 3 dimensions; NCHW has 4"):
        declare_layout((1, 77, 768), "NCHW")
    with pytest.raises(TensorError, match="Unknown layout 'CHW'; choose NCHW or NHWC"):
        declare_layout((1, 2, 3, 4), "CHW")


@pytest.mark.parametrize("kind", KINDS)
@few
@given(shape=sizes)
def test_the_data_really_move_and_come_back(kind, shape):
    array = numbered(shape)
    tensor = KINDS[kind](array)
    moved = convert_layout(tensor, "NCHW", "NHWC")
    assert type(moved) is type(tensor) and describe(moved).is_contiguous
    assert as_list(moved) == array.transpose(0, 2, 3, 1).tolist()
    back = convert_layout(moved, "NHWC", "NCHW")
    assert as_list(back) == array.tolist()
    assert as_list(convert_layout(tensor, "NCHW", "NCHW")) == array.tolist()
    assert as_list(tensor) == array.tolist(), "the tensor given stays as it is"


def test_bfloat16_keeps_its_type_when_it_moves():
    tensor = ov.Tensor(ov.Type.bf16, ov.Shape([1, 2, 3, 4]))
    tensor.data.view(np.uint16)[...] = torch.rand(1, 2, 3, 4).bfloat16().view(torch.uint16).numpy()
    moved = convert_layout(tensor, "NCHW", "NHWC")
    assert moved.element_type == ov.Type.bf16 and list(moved.shape) == [1, 3, 4, 2]
    assert np.array_equal(moved.data.view(np.uint16), tensor.data.view(np.uint16).transpose(0, 2, 3, 1))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_contiguous_is_itself_and_a_view_becomes_contiguous(kind):
    tensor = KINDS[kind](numbered((2, 3, 4, 5)))
    assert to_contiguous(tensor) is tensor
    view = tensor[:, :, ::2]
    assert describe(to_contiguous(view)).is_contiguous and as_list(to_contiguous(view)) == as_list(view)


def test_a_part_of_an_openvino_tensor_becomes_contiguous():
    part = ov.Tensor(ov.Tensor(numbered((2, 3, 4))), ov.Coordinate([0, 1, 1]), ov.Coordinate([2, 3, 3]))
    assert not describe(part).is_contiguous
    whole = to_contiguous(part)
    assert describe(whole).is_contiguous and as_list(whole) == numbered((2, 3, 4))[:, 1:3, 1:3].tolist()


def test_a_scalar_stays_one():
    assert to_contiguous(np.array(2.0)).shape == ()


@settings(max_examples=5, deadline=None)
@given(height=st.integers(3, 9), width=st.integers(3, 9), seed=st.integers(0, 99))
def test_a_folded_layout_changes_what_goes_in_and_not_what_comes_out(height, width, seed):
    image = np.random.default_rng(seed).random((1, 3, height, width), np.float32)
    model = convolution()
    folded = fold_layout(model, "image", source="NHWC", target="NCHW")
    assert str(folded.input("image").get_partial_shape()) == "[1,?,?,3]"
    assert str(model.input("image").get_partial_shape()) == "[1,3,?,?]", "the model given stays as it is"
    assert np.allclose(run(folded, convert_layout(image, "NCHW", "NHWC")), run(model, image), atol=1e-5)


@settings(max_examples=8, deadline=None)
@given(reverse=st.booleans(), per_channel=st.booleans(), seed=st.integers(0, 99))
def test_pictures_go_in_as_bytes(reverse, per_channel, seed):
    picture = np.random.default_rng(seed).integers(0, 256, (1, 6, 5, 3), np.uint8)
    mean, scale = ((120.0, 110.0, 100.0), (50.0, 60.0, 70.0)) if per_channel else ((127.5,), (127.5,))
    folded = fold_preprocessing(
        convolution(), "image", "NHWC", "NCHW", dtype="uint8", mean=mean, scale=scale, reverse_channels=reverse
    )
    ordered = picture[..., ::-1] if reverse else picture
    by_hand = (ordered.astype(np.float32) - np.float32(mean)) / np.float32(scale)
    assert np.allclose(run(folded, picture), run(convolution(), convert_layout(by_hand, "NHWC", "NCHW")), atol=1e-4)


@pytest.mark.parametrize(
    "fold, message",
    [
        (
            lambda: fold_layout(convolution(), "picture", "NHWC", "NCHW"),
            "has no input 'picture'; its inputs: image",
        ),
        (lambda: fold_layout(convolution(), "image", "CHW", "NCHW"), "Unknown layout 'CHW'"),
    ],
)
def test_what_cannot_be_folded_is_named(fold, message):
    with pytest.raises(TensorError, match=message):
        fold()
