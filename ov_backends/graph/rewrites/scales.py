"""Multiplications by a constant for each channel, such as SmoothQuant leaves, folded into what is before them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .constants import is_constant, scaled_rows, single, values

if TYPE_CHECKING:
    import openvino as ov

Place = tuple["ov.Node", int]
"""An operator and the number of its input that takes the factors."""


def fold_scales(model: ov.Model) -> int:
    """Fold each x * constant into the weights, scale or bias that x comes from."""
    return sum(_fold(node) for node in model.get_ordered_ops() if node.get_type_name() == "Multiply")


def _fold(node: ov.Node) -> bool:
    source, factors = node.input_value(0), node.input_value(1)
    if is_constant(source) or not is_constant(factors):
        return False
    plain, width = values(factors), source.get_partial_shape()[-1]
    if plain.size == 1 or not width.is_static or plain.shape[-1] != plain.size or plain.size != width.get_length():
        return False
    places = _places(source, plain.size)
    if not places:
        return False
    for place, index in places:
        old = place.input_value(index)
        if place.get_type_name() == "MatMul":
            new = scaled_rows(old, plain.reshape(-1))
        else:
            new = single(values(old) * plain.reshape([1] * (len(old.get_shape()) - 1) + [-1]))
        place.input(index).replace_source_output(new)
    for target in node.output(0).get_target_inputs():
        target.replace_source_output(source)
    return True


def _places(value: ov.Output, width: int) -> list[Place]:
    """Where factors on the last axis of `value` can go instead; empty if nowhere, or if others use `value` as well."""
    node = value.get_node()
    if len(value.get_target_inputs()) != 1:
        return []
    kind = node.get_type_name()
    if kind == "Reshape":
        return _through_attention(node, width)
    if kind == "MatMul":
        is_linear = node.get_attributes()["transpose_b"] and is_constant(node.input_value(1))
        return [(node, 1)] if is_linear and len(node.input_value(1).get_shape()) == 2 else []
    if kind not in ("Add", "Multiply"):
        return []
    first, second = node.input_values()
    if not is_constant(second):
        # of two factors one takes it; a sum would need both
        return (_places(first, width) or _places(second, width)) if kind == "Multiply" else []
    if math.prod(second.get_shape()) != width or second.get_shape()[-1] != width:
        return []
    if kind == "Multiply":
        return [(node, 1)]
    before = _places(first, width)
    return [*before, (node, 1)] if before else []


def _through_attention(merged: ov.Node, width: int) -> list[Place]:
    """[batch, tokens, width] from attention over heads: the factors go to the values, which it only averages."""
    kinds = ("Transpose", "ScaledDotProductAttention")
    step = merged
    for kind in kinds:
        step = step.input_value(0).get_node()
        if step.get_type_name() != kind or len(step.output(0).get_target_inputs()) != 1:
            return []
    value = step.input_value(2)
    for kind in ("Transpose", "Reshape"):
        node = value.get_node()
        if node.get_type_name() != kind or len(value.get_target_inputs()) != 1:
            return []
        value = node.input_value(0)
    width_before = value.get_partial_shape()[-1]
    is_split = width_before.is_static and width_before.get_length() == width
    return _places(value, width) if is_split else []
