"""Tensors on their way into OpenVINO: contiguous, FP32, without a copy where that is possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .errors import ShapeError

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov
    import torch

Shapes = Mapping[str, tuple[int, ...]]
"""Input name -> static shape."""


def share(tensor: torch.Tensor) -> np.ndarray:
    """A float32, C-contiguous numpy view of a CPU tensor; a copy where strides, dtype or device forbid a view."""
    import torch

    # numpy has no bfloat16, and .numpy() refuses tensors that require grad
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy()


def shares_memory(tensor: torch.Tensor) -> bool:
    """True if `share` needs no copy."""
    import torch

    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()


def require_static(model: ov.Model, device: str, batch_one: bool) -> None:
    """Raise ShapeError unless every input and output has a static shape, with batch 1 where asked.

    The NPU refuses dynamic shapes late and with a text that helps nobody; so nothing dynamic is ever given to it.
    """
    for port in [*model.inputs, *model.outputs]:
        shape = port.get_partial_shape()
        name = port.get_any_name() if port.get_names() else "an unnamed port"
        if shape.is_dynamic:
            raise ShapeError(
                f"Port '{name}' of {model.get_friendly_name()} has a dynamic dimension ({shape}); {device} needs "
                "static shapes. Give every input its size, or compile for CPU or GPU."
            )
        if batch_one and len(shape) > 1 and shape[0].get_length() != 1:
            raise ShapeError(
                f"Port '{name}' of {model.get_friendly_name()} has batch {shape[0].get_length()} ({shape}); {device} "
                "is given one row at a time."
            )


def format_shapes(shapes: Shapes) -> str:
    """ "sample=[1,4,64,64] context=[1,77,768]": part of a blob's identity, and readable."""
    return " ".join(f"{name}=[{','.join(map(str, shape))}]" for name, shape in sorted(shapes.items()))
