"""Single blocks of a model, cut out of it: seconds for the NPU compiler instead of minutes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import openvino as ov
from openvino import opset8


def make_static(model: ov.Model, shapes: Mapping[str, Sequence[int]]) -> ov.Model:
    """`model` at `shapes` (input name -> shape), in place; every ShapeOf becomes the constant that it then is."""
    if shapes:
        model.reshape({name: list(shape) for name, shape in shapes.items()})
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ShapeOf" and node.input(0).get_partial_shape().is_static:
            sizes = opset8.constant(list(node.input(0).get_shape()), node.get_output_element_type(0))
            for target in node.output(0).get_target_inputs():
                target.replace_source_output(sizes.output(0))
    model.validate_nodes_and_infer_types()
    return model


def cut_block(model: ov.Model, pattern: str) -> ov.Model:
    """The operators of static `model` whose name matches `pattern` (searched for), as a model of their own.

    Values that come from outside become inputs, values that are used outside become outputs; constants stay inside.
    Spoils `model`. ValueError if nothing matches.
    """
    ordered = model.get_ordered_ops()
    depends: set[str] = set()
    for node in ordered:
        sources = [value.get_node().get_friendly_name() for value in node.input_values()]
        if node.get_type_name() == "Parameter" or any(source in depends for source in sources):
            depends.add(node.get_friendly_name())
    inside = {n.get_friendly_name() for n in ordered if n.get_friendly_name() in depends and _is_in(n, pattern)}
    if not inside:
        raise ValueError(f"No operator's name matches '{pattern}'.")
    outputs = [
        output
        for node in ordered
        if node.get_friendly_name() in inside
        for output in node.outputs()
        if any(target.get_node().get_friendly_name() not in inside for target in output.get_target_inputs())
    ]
    return ov.Model([opset8.result(output) for output in outputs], _inputs(ordered, inside, depends), pattern)


def _is_in(node: ov.Node, pattern: str) -> bool:
    return node.get_type_name() not in ("Parameter", "Result") and bool(re.search(pattern, node.get_friendly_name()))


def _inputs(ordered: Sequence[ov.Node], inside: set[str], depends: set[str]) -> list[ov.Node]:
    """New parameters in place of the values that `inside` takes from elsewhere."""
    made: dict[tuple[str, int], ov.Node] = {}
    for node in (node for node in ordered if node.get_friendly_name() in inside):
        for port in node.inputs():
            source = port.get_source_output()
            name, index = source.get_node().get_friendly_name(), source.get_index()
            if name in inside or name not in depends:
                continue
            if (name, index) not in made:
                parameter = opset8.parameter(source.get_partial_shape(), source.get_element_type())
                parameter.output(0).get_tensor().set_names({f"in{len(made)}"})
                made[name, index] = parameter
            port.replace_source_output(made[name, index].output(0))
    return list(made.values())
