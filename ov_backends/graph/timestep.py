"""Rewrite: the sinusoidal timestep embedding leaves the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConversionError

if TYPE_CHECKING:
    import openvino as ov


def hoist_timestep_embedding(model: ov.Model, timestep: str) -> ov.Model:
    """Replace the sin/cos of the input named `timestep` by an input "timestep_embedding" [batch, width], FP32.

    sin(t * f) with t up to 1000 needs more mantissa than FP16 has; the NPU computes in FP16, and INT8 would be worse.
    """
    import openvino as ov
    from openvino import opset8

    parameter = next(p for p in model.get_parameters() if timestep in p.output(0).get_names())
    embedding = _sinusoid(parameter)
    width = embedding.get_output_partial_shape(0)[1].get_length()
    hoisted = opset8.parameter(ov.PartialShape([-1, width]), ov.Type.f32, name="timestep_embedding")
    hoisted.output(0).get_tensor().set_names({"timestep_embedding"})
    for target in embedding.output(0).get_target_inputs():
        target.replace_source_output(hoisted.output(0))
    order = [hoisted if p.get_friendly_name() == parameter.get_friendly_name() else p for p in model.get_parameters()]
    rewritten = ov.Model(model.get_results(), order, model.get_friendly_name())
    rewritten.validate_nodes_and_infer_types()
    return rewritten


def _sinusoid(parameter: ov.Node) -> ov.Node:
    """The Concat of cos and sin that hangs on `parameter`."""
    seen, waiting = set(), [parameter]
    while waiting:
        node = waiting.pop(0)
        for target in node.output(0).get_target_inputs():
            user = target.get_node()
            if user.get_friendly_name() in seen:
                continue
            seen.add(user.get_friendly_name())
            if user.get_type_name() == "Concat":
                if {i.get_source_output().get_node().get_type_name() for i in user.inputs()} == {"Cos", "Sin"}:
                    return user
                continue
            waiting.append(user)
    raise ConversionError("The UNet has no sinusoidal timestep embedding; only UNets of the SD and SDXL kind have one.")
