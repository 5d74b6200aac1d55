"""Tensors are described as they are, reach OpenVINO without a copy where that is possible, and the NPU only ever sees
fixed sizes."""

from __future__ import annotations

import json
import math

import numpy as np
import openvino as ov
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openvino import opset13 as ops
from ovpack.ov_backends.errors import ShapeError, TensorError
from ovpack.ov_backends.tensor_kinds import round_to_bfloat16, to_numpy
from ovpack.ov_backends.tensors import describe, format_shapes, hand_over, require_static, share, shares_memory

VALUES = torch.arange(24.0).reshape(2, 3, 4)

few = settings(max_examples=60, deadline=None)
shapes = st.lists(st.integers(0, 5), max_size=5).map(tuple)
dtypes = st.sampled_from(["float32", "float16", "float64", "int32", "uint8", "bool"])


def openvino_bfloat16(values: torch.Tensor) -> ov.Tensor:
    tensor = ov.Tensor(ov.Type.bf16, ov.Shape(list(values.shape)))
    tensor.data.view(np.uint16)[...] = values.bfloat16().view(torch.uint16).numpy()
    return tensor


def three_kinds(array: np.ndarray) -> list:
    tensor = ov.Tensor(ov.Type(array.dtype), ov.Shape(array.shape))
    tensor.data[...] = array
    return [array, torch.from_numpy(array), tensor]


def relu(*shape: int) -> ov.Model:
    x = ops.parameter(list(shape), ov.Type.f32)
    x.output(0).set_names({"sample"})
    return ov.Model([ops.relu(x)], [x], "UNet")


@pytest.mark.parametrize(
    "tensor, is_shared",
    [
        (VALUES, True),
        (torch.nn.Parameter(VALUES), True),
        (VALUES[1], True),
        (VALUES.transpose(1, 2), False),
        (VALUES[:, :, ::2], False),
        (VALUES[:1].expand(2, 3, 4), False),
        (VALUES.half(), False),
        (VALUES.bfloat16(), False),
        (VALUES.long(), False),
    ],
    ids=["whole", "parameter", "row", "transposed", "strided", "expanded", "half", "bfloat16", "integer"],
)
def test_contiguous_float32_is_shared_and_all_else_copied_right(tensor, is_shared):
    array = share(tensor)
    assert shares_memory(tensor) == is_shared
    assert (array.ctypes.data == tensor.data_ptr()) == is_shared
    assert array.flags.c_contiguous and array.dtype == "float32"
    assert array.tolist() == tensor.detach().float().tolist()


def test_a_static_model_of_batch_one_passes():
    require_static(relu(1, 4, 8, 8), "the NPU", batch_one=True)


@pytest.mark.parametrize("shape", [(-1, 4, 8, 8), (1, 4, -1, 8)])
def test_a_dynamic_dimension_is_named_with_the_way_out(shape):
    with pytest.raises(ShapeError, match=r"'sample' of UNet has a dynamic dimension .*\?.*the NPU needs static shapes"):
        require_static(relu(*shape), "the NPU", batch_one=True)


def test_a_batch_is_refused_where_rows_go_one_by_one():
    with pytest.raises(ShapeError, match=r"'sample' of UNet has batch 2 \(\[2,4,8,8\]\); the NPU is given one row"):
        require_static(relu(2, 4, 8, 8), "the NPU", batch_one=True)
    require_static(relu(2, 4, 8, 8), "the GPU", batch_one=False)


def test_shapes_read_the_same_in_any_order():
    shapes = {"sample": (1, 4, 64, 64), "context": (1, 77, 768)}
    assert format_shapes(shapes) == "context=[1,77,768] sample=[1,4,64,64]"
    assert format_shapes(dict(reversed(shapes.items()))) == format_shapes(shapes)


@few
@given(shapes, dtypes, st.integers(0, 2**32 - 1))
def test_the_same_tensor_is_described_alike_in_all_three_libraries(shape, dtype, seed):
    array = np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)
    infos = [describe(tensor) for tensor in three_kinds(array)]
    assert [info.kind for info in infos] == ["numpy", "torch", "openvino"]
    for info in infos:
        assert (info.shape, info.dtype, info.bytes) == (shape, dtype, array.nbytes)
        assert info.is_contiguous and (info.nan, info.inf) == (0, 0)
        if array.size:
            assert info.minimum == array.min() and info.maximum == array.max()
            assert info.mean == pytest.approx(array.mean(dtype=np.float64))
            assert info.strides_bytes == tuple(s * array.itemsize for s in info.strides)
        else:
            assert (info.minimum, info.maximum, info.mean) == (None, None, None)
        assert json.loads(json.dumps(info.as_json()))["shape"] == list(shape)
        assert "\n" not in str(info)


@few
@given(st.lists(st.floats(width=32), max_size=20), st.sampled_from([torch.float32, torch.bfloat16]))
def test_nan_and_infinity_are_counted_and_left_out_of_the_rest(values, dtype):
    tensor = torch.tensor(values, dtype=torch.float32).to(dtype)
    finite = tensor.double()[torch.isfinite(tensor)]
    info = describe(tensor)
    assert info.nan == int(tensor.isnan().sum()) and info.inf == int(tensor.isinf().sum())
    if finite.numel():
        assert (info.minimum, info.maximum) == (finite.min(), finite.max())
        # large values of both signs cancel, and the order of the sum decides what is left
        assert abs(info.mean - float(finite.mean())) <= 1e-12 * float(finite.abs().max())
    else:
        assert info.mean is None


@few
@given(st.permutations(range(4)), st.integers(1, 3))
def test_a_view_shows_its_strides_and_handing_it_over_says_why_it_is_copied(order, step):
    whole = np.arange(2 * 3 * 4 * 6, dtype=np.float32).reshape(2, 3, 4, 6)
    array = whole.transpose(order)[..., ::step]
    for tensor in (array, torch.from_numpy(whole).permute(*order)[..., ::step]):
        info, handed = describe(tensor), hand_over(tensor)
        assert info.strides_bytes == array.strides and info.strides == tuple(s // 4 for s in array.strides)
        assert info.is_contiguous == array.flags.c_contiguous == (not handed.copied)
        assert np.array_equal(handed.array, array)
        assert np.shares_memory(handed.array, whole) == (not handed.copied)
        assert ("strides" in handed.reason) == handed.copied


@pytest.mark.parametrize(
    "tensor, reason",
    [
        (VALUES, ""),
        (VALUES.numpy(), ""),
        (ov.Tensor(VALUES.numpy()), ""),
        (VALUES.half(), "it is float16, not float32"),
        (VALUES.double().numpy(), "it is float64, not float32"),
        (VALUES.numpy().astype(">f4"), "its bytes are swapped"),
        (openvino_bfloat16(VALUES), "it is bfloat16, not float32"),
        (VALUES.bfloat16().transpose(0, 1), "it is bfloat16, not float32; its strides [4, 12, 1] leave gaps or change"),
        (ov.Tensor(ov.Tensor(VALUES.numpy()), ov.Coordinate([0, 0, 1]), ov.Coordinate([2, 3, 3])), "its strides [48, "),
    ],
)
def test_a_copy_is_made_only_for_a_reason_that_is_told(tensor, reason):
    handed = hand_over(tensor)
    assert handed.reason.startswith(reason) and handed.copied == bool(reason)
    assert shares_memory(tensor) == (not reason)
    assert handed.array.dtype == np.float32 and handed.array.dtype.isnative and handed.array.flags.c_contiguous
    assert np.array_equal(handed.array, to_numpy(tensor).astype(np.float32))


def test_openvinos_bfloat16_is_read_as_what_it_is():
    """OpenVINO hands its bits out as float16: 1.0 would read as 1.875."""
    info = describe(openvino_bfloat16(torch.tensor([[-2.0, 1.0, math.inf]])))
    assert (info.dtype, info.minimum, info.maximum, info.inf, info.bytes) == ("bfloat16", -2.0, 1.0, 1, 6)


def test_a_scalar_keeps_its_shape():
    for scalar in (np.array(2.5, np.float32), torch.tensor(2.5), torch.tensor(2.5, dtype=torch.bfloat16)):
        assert share(scalar).shape == describe(scalar).shape == ()
        assert describe(scalar).mean == 2.5


@pytest.mark.parametrize("offset", [1, 2, 4, 16])
def test_alignment_is_that_of_the_first_element(offset):
    page = np.zeros(3 * 4096, np.float32)
    first = (-page.ctypes.data % 4096) // 4
    assert describe(page[first:]).alignment == 4096
    assert describe(page[first + offset :]).alignment == 4 * offset


def test_the_line_says_it_all():
    line = str(describe(VALUES.reshape(1, 2, 3, 4).half().transpose(2, 3), layout="NCHW"))
    for part in ("float16 [1, 2, 4, 3]", "48 bytes", "not contiguous", "[24, 12, 1, 4]", "NCHW (declared)", "0 to 23"):
        assert part in line


@pytest.mark.parametrize("wrong", [[1.0, 2.0], 3.0, None, "tensor"])
def test_what_is_no_tensor_is_named(wrong):
    with pytest.raises(TensorError, match=f"{type(wrong).__name__} is not a tensor"):
        describe(wrong)


@pytest.mark.parametrize("tensor", [ov.Tensor(ov.Type.u4, ov.Shape([2, 4])), ov.Tensor(ov.Type.f8e4m3, ov.Shape([2]))])
def test_types_that_numpy_cannot_show_are_refused_and_not_misread(tensor):
    with pytest.raises(TensorError, match="has no numbers that numpy can show"):
        describe(tensor)


@few
@given(st.lists(st.floats(width=32), min_size=1, max_size=30))
def test_rounding_to_bfloat16_is_torchs(values):
    array = np.array(values, np.float32)
    expected = torch.from_numpy(array).bfloat16().float().numpy()
    assert np.array_equal(round_to_bfloat16(array), expected, equal_nan=True)
