"""The three libraries a tensor may come from, and its numbers as numpy whichever it is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .errors import TensorError

if TYPE_CHECKING:
    import numpy as np

AnyTensor: TypeAlias = Any
"""np.ndarray | torch.Tensor | ov.Tensor: told apart by `kind_of` at run time, which no type checker follows."""

Kind = Literal["numpy", "torch", "openvino"]

_CLASSES: tuple[tuple[Kind, str], ...] = (("numpy", "ndarray"), ("torch", "Tensor"), ("openvino", "Tensor"))


def kind_of(tensor: object) -> Kind:
    """Which library `tensor` is of; TensorError if it is no tensor. Imports none of them."""
    for library, name in _CLASSES:
        # what is not imported yet cannot have made it
        cls = getattr(sys.modules.get(library), name, None)
        if cls is not None and isinstance(tensor, cls):
            return library
    raise TensorError(f"{type(tensor).__name__} is not a tensor; give a numpy array, a torch or an OpenVINO tensor.")


def dtype_name(tensor: AnyTensor) -> str:
    """numpy's name of the element type whatever the library, 'bfloat16' for the one that numpy lacks."""
    kind = kind_of(tensor)
    if kind == "numpy":
        return tensor.dtype.name
    if kind == "torch":
        return str(tensor.dtype).removeprefix("torch.")
    own = tensor.element_type.get_type_name()
    if own == "bf16":
        return "bfloat16"
    # numpy has no word for these either: f8e4m3, u4, nf4
    return own if own.startswith("f8") or tensor.element_type.bitwidth < 8 else tensor.data.dtype.name


def to_numpy(tensor: AnyTensor) -> np.ndarray:
    """The numbers of any tensor, same shape: a view where numpy has the element type, bfloat16 widened to float32."""
    kind = kind_of(tensor)
    if kind == "numpy":
        return tensor
    name = dtype_name(tensor)
    if kind == "torch":
        import torch

        tensor = tensor.detach().cpu()
        if name == "bfloat16" or name.startswith("float8"):
            tensor = tensor.to(torch.float32)
        return tensor.numpy()
    if name == "bfloat16":
        # OpenVINO hands the bits out as float16, which would read as other numbers
        return widen_bfloat16(tensor.data)
    if name.startswith("f8") or tensor.element_type.bitwidth < 8:
        raise TensorError(
            f"An OpenVINO tensor of type {name} has no numbers that numpy can show; convert it to f16 or f32 first."
        )
    return tensor.data


def widen_bfloat16(bits: np.ndarray) -> np.ndarray:
    """bfloat16 as float32, exactly. bits: any 16-bit dtype."""
    import numpy as np

    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to the nearest bfloat16, ties to even; returned as float32. NaN stays NaN."""
    import numpy as np

    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32))
