"""The order of a tensor's dimensions: guessed, declared, changed in memory, or changed inside a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import TensorError
from .tensor_kinds import AnyTensor, kind_of

if TYPE_CHECKING:
    import openvino as ov

LAYOUTS = ("NCHW", "NHWC")
"""N batch, C channels, H height, W width; the last one runs fastest in memory."""

FEW_CHANNELS = 4
"""At most this many channels have images (RGB, RGBA) and Stable Diffusion's latents."""

_ORDER = {("NCHW", "NHWC"): (0, 2, 3, 1), ("NHWC", "NCHW"): (0, 3, 1, 2)}


@dataclass(frozen=True)
class Layout:
    """One of LAYOUTS or "", if it is not known, and how one knows."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name or 'layout unknown'} ({self.reason})"


def guess_layout(shape: Sequence[int], strides: Sequence[int] | None = None) -> Layout:
    """The layout of a tensor [4 dimensions], from its shape and, if given, its strides in elements.

    A guess and never more: [1, 3, 3, 3] may be either, and then the name is "".
    """
    if len(shape) != 4:
        return Layout("", f"it has {len(shape)} dimensions; a layout is guessed for 4")
    if strides is not None and (told := _from_strides(tuple(shape), tuple(strides))):
        return told
    _, second, third, fourth = shape
    few = [0 < channels <= FEW_CHANNELS for channels in (second, fourth)]
    if few == [True, False]:
        return Layout("NCHW", f"{second} in dimension 1 are as few as an image's or a latent's channels")
    if few == [False, True]:
        return Layout("NHWC", f"{fourth} in dimension 3 are as few as an image's channels")
    if few == [True, True]:
        return Layout("", f"ambiguous: dimension 1 ({second}) and dimension 3 ({fourth}) may both be channels")
    if third == fourth != second:
        return Layout("NCHW", f"dimensions 2 and 3 are equal ({third}), as a square's height and width")
    if second == third != fourth:
        return Layout("NHWC", f"dimensions 1 and 2 are equal ({second}), as a square's height and width")
    return Layout("", "ambiguous: nothing tells channels from height and width")


def declare_layout(shape: Sequence[int | str], name: str) -> Layout:
    """The layout that the caller knows; TensorError if there is no such layout or it does not fit the shape."""
    if name not in LAYOUTS:
        raise TensorError(f"Unknown layout {name!r}; choose {' or '.join(LAYOUTS)}.")
    if len(shape) != len(name):
        raise TensorError(f"Shape [{', '.join(map(str, shape))}] has {len(shape)} dimensions; {name} has {len(name)}.")
    return Layout(name, "declared")


def to_contiguous(tensor: AnyTensor) -> AnyTensor:
    """`tensor` in C order, of its own kind: itself if it already is, else a copy."""
    kind = kind_of(tensor)
    if kind == "torch":
        return tensor.contiguous()
    if kind == "numpy":
        import numpy as np

        # not ascontiguousarray, which makes one dimension of none
        return np.asarray(tensor, order="C")
    return tensor if tensor.is_continuous() else _copy_openvino(tensor, tensor.data)


def convert_layout(tensor: AnyTensor, source: str, target: str) -> AnyTensor:
    """A tensor in layout `source`, moved in memory to `target`; of the same kind and dtype, contiguous.

    Shares the memory of `tensor` only where that already lies as `target` wants it.
    """
    declare_layout(tensor.shape, source)
    declare_layout(tensor.shape, target)
    if source == target:
        return to_contiguous(tensor)
    order = _ORDER[source, target]
    kind = kind_of(tensor)
    if kind == "torch":
        return tensor.permute(order).contiguous()
    if kind == "numpy":
        return to_contiguous(tensor.transpose(order))
    return _copy_openvino(tensor, tensor.data.transpose(order))


def fold_layout(model: ov.Model, input: str, source: str, target: str) -> ov.Model:
    """A copy of `model` that takes `input` in layout `source`; the model itself wants it in `target`.

    The device then moves the data, or the compiler removes the move altogether. Outputs stay as they are.
    """
    return fold_preprocessing(model, input, source, target)


def fold_preprocessing(
    model: ov.Model,
    input: str,
    source: str,
    target: str,
    dtype: str = "float32",
    mean: Sequence[float] = (),
    scale: Sequence[float] = (),
    reverse_channels: bool = False,
) -> ov.Model:
    """A copy of `model` that prepares `input` itself: (x - mean) / scale, in float32.

    source, target: layout of the tensor that is given, and the one that the model wants; dtype: of what is given,
    'uint8' for pictures; reverse_channels: BGR for a model that wants RGB; mean, scale: one number for each channel
    in the order the model wants, or one for all, in the units of the tensor given (uint8: 127.5, not 0.5).
    """
    import numpy as np
    import openvino as ov
    from openvino.preprocess import PrePostProcessor

    port = _input_port(model, input)
    for name in (source, target):
        declare_layout([str(length) for length in port.get_partial_shape()], name)
    steps = PrePostProcessor(model.clone())
    info = steps.input(input)
    info.tensor().set_layout(ov.Layout(source)).set_element_type(ov.Type(np.dtype(dtype)))
    info.model().set_layout(ov.Layout(target))
    if dtype != "float32":
        info.preprocess().convert_element_type(ov.Type.f32)
    if reverse_channels:
        info.preprocess().reverse_channels()
    if mean:
        info.preprocess().mean(list(mean))
    if scale:
        info.preprocess().scale(list(scale))
    return steps.build()


def _from_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout | None:
    """What a transposed view gives away: its strides are those of the other layout in memory."""
    _, a, b, c = shape
    if strides == (a * b * c, b * c, c, 1):
        return None
    if strides == (a * b * c, 1, c * a, a):
        return Layout("NCHW", "its strides say NCHW in name and NHWC in memory: a view, not contiguous")
    if strides == (a * b * c, b, 1, a * b):
        return Layout("NHWC", "its strides say NHWC in name and NCHW in memory: a view, not contiguous")
    return None


def _copy_openvino(like: ov.Tensor, data) -> ov.Tensor:
    """A fresh tensor with the element type of `like`; data: as `ov.Tensor.data` gives it, or a view of that."""
    import openvino as ov

    copy = ov.Tensor(like.element_type, ov.Shape(data.shape))
    copy.data[...] = data
    return copy


def _input_port(model: ov.Model, name: str):
    for port in model.inputs:
        if name in port.get_names():
            return port
    names = ", ".join(port.get_any_name() for port in model.inputs if port.get_names()) or "none with a name"
    raise TensorError(f"{model.get_friendly_name()} has no input {name!r}; its inputs: {names}.")
