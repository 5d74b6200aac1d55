"""Tensors reach OpenVINO without a copy where that is possible, and the NPU only ever sees fixed sizes."""

from __future__ import annotations

import openvino as ov
import pytest
import torch
from openvino import opset13 as ops
from ovpack.ov_backends.errors import ShapeError
from ovpack.ov_backends.tensors import format_shapes, require_static, share, shares_memory

VALUES = torch.arange(24.0).reshape(2, 3, 4)


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
