"""GEGLU: value * gelu(gate), whose two halves come from one matrix product (Shazeer, 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .constants import is_constant, like, rows, values

if TYPE_CHECKING:
    import openvino as ov


def split_geglu(model: ov.Model) -> int:
    """Compute the halves by a product each, instead of one product and a split that copies both."""
    found = [node for node in model.get_ordered_ops() if node.get_type_name() in ("VariadicSplit", "Split")]
    return sum(_split(node) for node in found)


def _split(split: ov.Node) -> bool:
    from openvino import opset13 as ops

    add = split.input_value(0).get_node()
    sizes = _sizes(split)
    if add.get_type_name() != "Add" or not sizes or not is_constant(add.input_value(1)) or not _is_private(add):
        return False
    product, bias = add.input_value(0).get_node(), add.input_value(1)
    if product.get_type_name() != "MatMul" or not _is_private(product):
        return False
    weights, plain = product.input_value(1), values(bias).reshape(-1)
    is_linear = product.get_attributes()["transpose_b"] and is_constant(weights) and len(weights.get_shape()) == 2
    if not is_linear or weights.get_shape()[0] != sum(sizes) or len(plain) != sum(sizes):
        return False
    shape = [1] * (len(bias.get_shape()) - 1) + [-1]
    start = 0
    for index, (output, size) in enumerate(zip(split.outputs(), sizes, strict=True)):
        part = ops.matmul(product.input_value(0), rows(weights, start, start + size), False, True)
        part.set_friendly_name(f"{product.get_friendly_name()}/part_{index}")
        total = ops.add(part, like(bias, plain[start : start + size].reshape(shape)))
        total.set_friendly_name(f"{add.get_friendly_name()}/part_{index}")
        for target in output.get_target_inputs():
            target.replace_source_output(total.output(0))
        start += size
    return True


def _sizes(split: ov.Node) -> list[int]:
    """Widths of the parts of a split of the last axis; empty if it is another one, or not known."""
    shapes = [output.get_partial_shape() for output in split.outputs()]
    whole = split.input_value(0).get_partial_shape()
    lasts = [shape[-1] for shape in shapes if shape.rank.is_static]
    if len(lasts) != len(shapes) or not all(last.is_static for last in [*lasts, whole[-1]]):
        return []
    sizes = [last.get_length() for last in lasts]
    return sizes if sum(sizes) == whole[-1].get_length() else []


def _is_private(node: ov.Node) -> bool:
    return len(node.output(0).get_target_inputs()) == 1
