"""What rewrites of attention have in common: finding it, and where its keys and values come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino as ov


def attentions(model: ov.Model) -> list[ov.Node]:
    """The attention operators in execution order."""
    return [node for node in model.get_ordered_ops() if node.get_type_name() == "ScaledDotProductAttention"]


def projection(value: ov.Output) -> ov.Node | None:
    """The matrix product that the heads `value` were cut from; None if there is another operator on the way."""
    node = value.get_node()
    while node.get_type_name() in ("Transpose", "Reshape", "FakeQuantize"):
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "MatMul" else None
