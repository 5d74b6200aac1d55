"""A hash of what a model computes on which sizes, whatever its weights are."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino as ov

SMALL_BYTES = 1024
"""Constants up to this size are often shapes, axes or scales, which shape the graph: these count by value."""


def graph_hash(model: ov.Model) -> str:
    """32 hex digits of operators, attributes, connections, types and shapes; of large constants without their values.

    Names count where someone has given them; those that OpenVINO makes up differ from process to process.
    """
    digest = hashlib.sha256()
    _add(digest, model)
    return digest.hexdigest()[:32]


def _add(digest: hashlib._Hash, model: ov.Model) -> None:
    nodes = model.get_ordered_ops()
    number = {node.get_name(): index for index, node in enumerate(nodes)}
    for node in nodes:
        kind, name = node.get_type_name(), node.get_friendly_name()
        sources = [(number[port.get_node().get_name()], port.get_index()) for port in node.input_values()]
        outputs = [f"{port.get_element_type()} {port.get_partial_shape()}" for port in node.outputs()]
        is_made_up = name.rpartition("_")[0] == kind
        attributes = json.dumps(node.get_attributes(), sort_keys=True, default=str)
        digest.update(f"{kind} {'' if is_made_up else name} {sources} {outputs} {attributes}\n".encode())
        if kind == "Constant" and node.get_byte_size() <= SMALL_BYTES:
            digest.update(node.get_data().tobytes())
        for body in _bodies(node):
            _add(digest, body)


def _bodies(node: ov.Node) -> list[ov.Model]:
    """What runs inside of a loop or a condition."""
    if node.get_type_name() in ("Loop", "TensorIterator"):
        return [node.get_function()]
    return [node.get_function(index) for index in (0, 1)] if node.get_type_name() == "If" else []
