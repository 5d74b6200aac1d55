"""What numbers a model wants for the pixels of an image, and how it comes to take ComfyUI's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..convert.file import reshape
from ..errors import ShapeError, TensorError
from ..layout import LAYOUTS, declare_layout, fold_preprocessing, guess_layout
from .model_file import describe_port

if TYPE_CHECKING:
    import openvino as ov

ORDERS = ("RGB", "BGR")
LAYOUT_CHOICES = ("auto", *LAYOUTS)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's pixels (0 to 1, RGB), which most classifiers are trained with."""


@dataclass(frozen=True)
class Pixels:
    """A model takes (pixel * scale - mean) / std for each channel, pixel being 0 to 1.

    order: of the channels, also for mean and std; layout: one of LAYOUT_CHOICES. One number serves all channels.
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    scale: float = 1.0
    order: str = "RGB"
    layout: str = "auto"

    def __post_init__(self) -> None:
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, 3):
                raise TensorError(f"{name} has {len(numbers)} numbers; give one for all channels, or three.")
        if not self.scale or not all(self.std):
            raise TensorError("std and scale may not be 0: pixels are divided by them.")
        if self.order not in ORDERS or self.layout not in LAYOUT_CHOICES:
            raise TensorError(
                f"There is no channel order {self.order!r} with layout {self.layout!r}; choose one of "
                f"{', '.join(ORDERS)}, and one of {', '.join(LAYOUT_CHOICES)}."
            )

    @classmethod
    def parse(cls, mean: str, std: str, **others) -> Pixels:
        """mean and std as text: "0.485, 0.456, 0.406" or "0.5"."""
        return cls(_numbers("mean", mean), _numbers("std", std), **others)

    def __str__(self) -> str:
        return f"{self.order} {self.layout} scale {self.scale} mean {self.mean} std {self.std}"


@dataclass(frozen=True)
class ImageInput:
    """The one input of a model that takes images. height, width: None where the model leaves them open."""

    name: str
    channels: int
    height: int | None
    width: int | None
    layout: str
    is_integer: bool

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width; None if either is open."""
        return (self.height, self.width) if self.height and self.width else None


def image_input(model: ov.Model, title: str, layout: str = "auto") -> ImageInput:
    """The image input of `model`; ShapeError, with what it wants, unless it takes one image of 1 or 3 channels."""
    wants = f"{title} takes " + " and ".join(describe_port(port) for port in model.inputs)
    if len(model.inputs) != 1:
        raise ShapeError(f"{wants}: {len(model.inputs)} inputs. This node gives one image to models with one input.")
    port = model.inputs[0]
    shape, kind = port.get_partial_shape(), port.get_element_type()
    if shape.rank.is_dynamic:
        raise ShapeError(f"{wants}, of any number of dimensions. Enter its size in shapes: {port.get_any_name()}=[...]")
    if len(shape) != 4 or not (kind.is_real() or kind.is_integral_number()):
        raise ShapeError(
            f"{wants}, which is not an image. This node gives images: 4 dimensions, batch, channels, height and width."
        )
    lengths = [d.get_length() if d.is_static else -1 for d in shape]
    found = guess_layout(lengths) if layout == "auto" else declare_layout(lengths, layout)
    if not found.name:
        raise ShapeError(f"{wants}; its layout cannot be told ({found.reason}). Choose {' or '.join(LAYOUTS)}.")
    channels, height, width = (lengths[found.name.index(axis)] for axis in "CHW")
    if channels not in (-1, 1, 3):
        raise ShapeError(
            f"{wants}: {channels} channels in layout {found} where an image has 3, or 1 if it is grey. Choose another "
            "layout if that is wrong; else the model is not for images."
        )
    # an open channel dimension takes what an image has
    return ImageInput(
        port.get_any_name(), 3 if channels < 0 else channels, _known(height), _known(width), found.name,
        kind.is_integral_number(),
    )  # fmt: skip


def fold_pixels(model: ov.Model, wanted: ImageInput, pixels: Pixels, title: str) -> ov.Model:
    """A copy of `model` that takes [1, height, width, channels] float32, 0 to 1, and prepares the pixels itself.

    An integer input gets 0 to 255, rounded; scale, mean and std are not for it. ShapeError if it needs other batches.
    """
    mean = tuple(m / pixels.scale for m in pixels.mean)
    std = tuple(s / pixels.scale for s in pixels.std)
    if wanted.is_integer:
        # half a step more, since the cast to integers cuts off what follows the point
        mean, std = (-0.5 / 255,), (1 / 255,)
    if wanted.channels == 1:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    reverse = pixels.order == "BGR" and wanted.channels == 3
    folded = fold_preprocessing(
        model, wanted.name, "NHWC", wanted.layout, mean=mean, scale=std, reverse_channels=reverse
    )
    reshape(folded, {wanted.name: (1, wanted.height or -1, wanted.width or -1, wanted.channels)}, title)
    _require_single(model, folded, title)
    return folded


def _require_single(model: ov.Model, folded: ov.Model, title: str) -> None:
    """Raise ShapeError if a model made for a batch of several images goes on giving several for one."""
    batch = model.inputs[0].get_partial_shape()[0]
    for before, after in zip(model.outputs, folded.outputs, strict=True):
        old, new = before.get_partial_shape(), after.get_partial_shape()
        if batch != 1 and len(old) and old[0] == batch and len(new) and new[0] == old[0] and batch.is_static:
            raise ShapeError(
                f"{title} works on {batch} images at a time ({describe_port(model.inputs[0])}); images are given "
                "one by one. Export it with batch 1 or an open batch."
            )


def _known(length: int) -> int | None:
    return None if length < 0 else length


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in re.split(r"[,;\s]+", text.strip().strip("[]()")))
    except ValueError:
        raise TensorError(f"{name} is {text!r}; give numbers such as 0.5 or 0.485, 0.456, 0.406.") from None
