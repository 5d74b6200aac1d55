"""Tensors: what they are and hold, and their way into OpenVINO without a copy where that is possible."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .errors import ShapeError, TensorError
from .layout import Layout, declare_layout, guess_layout
from .tensor_kinds import AnyTensor, Kind, dtype_name, kind_of, to_numpy

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

Shapes = Mapping[str, tuple[int, ...]]
"""Input name -> static shape."""

MAX_ALIGNMENT = 4096
"""Bytes of a memory page; what is aligned to it is aligned enough for every device."""


@dataclass(frozen=True)
class TensorInfo:
    """What a tensor is and holds. Minimum, maximum and mean are of the finite values; None where there are none."""

    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    strides_bytes: tuple[int, ...]
    is_contiguous: bool
    bytes: int
    """Of its elements; a view may lie in a larger memory."""
    alignment: int
    """Largest power of two, up to MAX_ALIGNMENT, that divides the address of its data; 0 without an address."""
    device: str
    layout: Layout
    minimum: float | None
    maximum: float | None
    mean: float | None
    nan: int
    inf: int

    def __str__(self) -> str:
        order = "contiguous" if self.is_contiguous else "not contiguous"
        values = "no finite values"
        if self.mean is not None:
            values = f"{self.minimum:.4g} to {self.maximum:.4g}, mean {self.mean:.4g}"
        layout = f"{self.layout}, " if len(self.shape) == 4 else ""
        return (
            f"{self.dtype} {list(self.shape)} ({self.kind} on {self.device}, {self.bytes} bytes), {order}, strides "
            f"{list(self.strides)} ({list(self.strides_bytes)} bytes), aligned to {self.alignment} bytes, "
            f"{layout}{values}, {self.nan} NaN, {self.inf} inf"
        )

    def as_json(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class HandOver:
    """A tensor as OpenVINO takes it: float32, C-contiguous, on the CPU. reason: why it had to be copied, or ""."""

    array: np.ndarray
    reason: str

    @property
    def copied(self) -> bool:
        return bool(self.reason)


def describe(tensor: AnyTensor, layout: str | None = None) -> TensorInfo:
    """Everything about a numpy, torch or OpenVINO tensor. layout: "NCHW" or "NHWC" where you know it; else guessed."""
    name = dtype_name(tensor)
    values = to_numpy(tensor)
    strides, size, address, device = _memory(tensor)
    shape = tuple(int(n) for n in tensor.shape)
    count = math.prod(shape)
    elements = tuple(stride // size for stride in strides)
    minimum, maximum, mean, nan, inf = _statistics(values, name)
    return TensorInfo(
        kind=kind_of(tensor),
        dtype=name,
        shape=shape,
        strides=elements,
        strides_bytes=strides,
        is_contiguous=_lies_contiguous(tensor),
        bytes=count * size,
        alignment=min(address & -address, MAX_ALIGNMENT),
        device=device,
        layout=declare_layout(shape, layout) if layout else guess_layout(shape, elements),
        minimum=minimum,
        maximum=maximum,
        mean=mean,
        nan=nan,
        inf=inf,
    )


def hand_over(tensor: AnyTensor) -> HandOver:
    """`tensor` for OpenVINO: a view of its memory, or a copy and the reason for it."""
    reason = _why_copied(tensor)
    if kind_of(tensor) == "torch":
        import torch

        # numpy has no bfloat16, and .numpy() refuses tensors that require grad
        return HandOver(tensor.detach().to("cpu", torch.float32).contiguous().numpy(), reason)
    import numpy as np

    return HandOver(np.asarray(to_numpy(tensor), dtype=np.float32, order="C"), reason)


def share(tensor: AnyTensor) -> np.ndarray:
    """A float32, C-contiguous numpy view of a tensor; a copy where strides, dtype or device forbid a view."""
    return hand_over(tensor).array


def shares_memory(tensor: AnyTensor) -> bool:
    """True if `share` needs no copy."""
    return not _why_copied(tensor)


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


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """What `format_shapes` writes, read back; "?" or -1 leaves a dimension open. ShapeError if it is no shape."""
    shapes: dict[str, tuple[int, ...]] = {}
    # a name may hold anything but spaces and brackets: "serving_default_x:0", "model/images"
    for name, lengths, rest in re.findall(r"([^\s=\[\]]+)\s*=\s*\[([^\]]*)\]|(\S+)", text):
        numbers = [part.strip().replace("?", "-1") for part in lengths.split(",") if part.strip()]
        if rest or any(not re.fullmatch(r"-1|[1-9]\d*", number) for number in numbers):
            wrong = rest or f"{name}=[{lengths}]"
            raise ShapeError(f"'{wrong}' is no shape; write name=[n,n,...], such as images=[1,3,640,640].")
        if name in shapes:
            raise ShapeError(f"Input '{name}' is given two shapes; give one.")
        shapes[name] = tuple(map(int, numbers))
    return shapes


def _why_copied(tensor: AnyTensor) -> str:
    """What forbids a float32 view of the memory as it is; "" if nothing does."""
    reasons = []
    device = str(tensor.device) if kind_of(tensor) == "torch" else "cpu"
    if device != "cpu":
        reasons.append(f"it is on {device}")
    if (name := dtype_name(tensor)) != "float32" or not _is_native(tensor):
        reasons.append(f"it is {name}, not float32" if name != "float32" else "its bytes are swapped")
    if not _lies_contiguous(tensor):
        strides = tensor.stride() if kind_of(tensor) == "torch" else tensor.strides
        unit = "" if kind_of(tensor) == "torch" else " bytes"
        reasons.append(f"its strides {list(strides)}{unit} leave gaps or change the order of {list(tensor.shape)}")
    return "; ".join(reasons)


def _is_native(tensor: AnyTensor) -> bool:
    return kind_of(tensor) != "numpy" or tensor.dtype.isnative


def _lies_contiguous(tensor: AnyTensor) -> bool:
    kind = kind_of(tensor)
    if kind == "numpy":
        return tensor.flags.c_contiguous
    return tensor.is_contiguous() if kind == "torch" else tensor.is_continuous()


def _memory(tensor: AnyTensor) -> tuple[tuple[int, ...], int, int, str]:
    """Strides in bytes, bytes of an element, address, device."""
    kind = kind_of(tensor)
    if kind == "torch":
        size = tensor.element_size()
        return tuple(s * size for s in tensor.stride()), size, tensor.data_ptr(), str(tensor.device)
    data = tensor if kind == "numpy" else tensor.data
    return tuple(data.strides), data.itemsize, data.ctypes.data, "cpu"


def _statistics(values: np.ndarray, name: str) -> tuple[float | None, float | None, float | None, int, int]:
    """Minimum, maximum and mean of the finite values, counts of NaN and of infinities."""
    import numpy as np

    if values.dtype.kind not in "biuf":
        raise TensorError(f"A tensor of {name} has no minimum and maximum; describe tensors of real numbers.")
    nan = inf = 0
    if values.dtype.kind == "f":
        nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        if nan or inf:
            values = values[np.isfinite(values)]
    if not values.size:
        return None, None, None, nan, inf
    return float(values.min()), float(values.max()), float(values.mean(dtype=np.float64)), nan, inf
