"""Keys and values of the text in cross-attention: they depend on the prompt alone, not on the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .attention import attentions, projection

if TYPE_CHECKING:
    import openvino as ov

CONTEXT = "context"
NAMES = ("text_key", "text_value")


def hoist_text_keys(model: ov.Model) -> int:
    """Make the projections of the input "context" inputs themselves, "text_key_0", "text_value_0", and so on.

    Each is [batch, tokens, width], as `text_keys_model` of the same model computes them once per prompt. An input
    "context" that nothing else uses is removed.
    """
    from openvino import opset13 as ops

    found = text_projections(model)
    made = []
    for name, node in found.items():
        output = node.output(0)
        parameter = ops.parameter(output.get_partial_shape(), output.get_element_type(), name=name)
        parameter.output(0).set_names({name})
        for target in output.get_target_inputs():
            target.replace_source_output(parameter.output(0))
        made.append(parameter)
    if found:
        context = next(p for p in model.get_parameters() if CONTEXT in p.output(0).get_names())
        model.add_parameters(made)
        if not _is_read(model, context):
            model.remove_parameter(context)
    return len(found) // len(NAMES)


def text_keys_model(model: ov.Model) -> ov.Model:
    """The part of `model` that `hoist_text_keys` removes: "context" in, "text_key_0", "text_value_0", ... out."""
    import openvino as ov
    from openvino import opset13 as ops

    own = model.clone()
    results = []
    for name, node in text_projections(own).items():
        node.output(0).add_names({name})
        results.append(ops.result(node.output(0)))
    context = [p for p in own.get_parameters() if CONTEXT in p.output(0).get_names()]
    return ov.Model(results, context, "text keys and values")


def text_projections(model: ov.Model) -> dict[str, ov.Node]:
    """Name of a new input -> matrix product that makes keys or values of "context" alone, in execution order."""
    alone = _dependent_on_context_alone(model)
    found: dict[str, ov.Node] = {}
    for attention in attentions(model):
        pair = [projection(attention.input_value(index)) for index in (1, 2)]
        nodes = [node for node in pair if node is not None and node.get_friendly_name() in alone]
        if len(nodes) == len(NAMES):
            index = len(found) // len(NAMES)
            found |= {f"{name}_{index}": node for name, node in zip(NAMES, nodes, strict=True)}
    return found


def _dependent_on_context_alone(model: ov.Model) -> set[str]:
    """Friendly names of operators whose only input of the model is "context"."""
    origins: dict[str, frozenset[str]] = {}
    for node in model.get_ordered_ops():
        name = node.get_friendly_name()
        if node.get_type_name() == "Parameter":
            origins[name] = frozenset({CONTEXT if CONTEXT in node.output(0).get_names() else name})
        else:
            sources = (origins[value.get_node().get_friendly_name()] for value in node.input_values())
            origins[name] = frozenset().union(*sources)
    return {name for name, origin in origins.items() if origin == {CONTEXT}}


def _is_read(model: ov.Model, parameter: ov.Node) -> bool:
    """Whether an operator still takes `parameter`."""
    name = parameter.get_friendly_name()
    read = {value.get_node().get_friendly_name() for node in model.get_ordered_ops() for value in node.input_values()}
    return name in read
