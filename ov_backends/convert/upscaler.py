"""Image upscalers: a tile of pixels in, a larger one out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .trace import TraceInput, trace

if TYPE_CHECKING:
    import openvino as ov
    import torch


OUTPUT = "upscaled"


def convert_upscaler(module: torch.nn.Module, channels: int, height: int, width: int) -> ov.Model:
    """Convert `module(image)` for tiles of one size.

    Input: image [1, channels, height, width], 0..1. Output: upscaled [1, channels out, height * scale, width * scale],
    not clamped. Static: SwinIR and its kin compute windows and masks from the size that they see while they are traced,
    so a graph with free sizes would be right for one of them only.
    """
    import torch

    shape = (1, channels, height, width)
    return _without_final_clamp(trace(module, [TraceInput("image", torch.rand(shape), shape)], [OUTPUT], "upscaler"))


def _without_final_clamp(model: ov.Model) -> ov.Model:
    """Infinity that FP16 makes would leave a clamp as plain white, and NaN as black: the caller must see them."""
    result = model.get_results()[0]
    last = result.input_value(0).get_node()
    if last.get_type_name() == "Clamp":
        result.input(0).replace_source_output(last.input_value(0))
        model.validate_nodes_and_infer_types()
        model.outputs[0].get_tensor().set_names({OUTPUT})
    return model
