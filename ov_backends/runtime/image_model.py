"""A model file that takes one image, on a device: sizes fitted, pixels prepared in the graph, results told apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from .. import devices
from ..answer import picture_of
from ..compiler.ir import Source
from ..errors import InferenceError, PlanError, ShapeError, last_line
from ..plan import SubmodelPlan
from ..progress import Progress
from ..report import SubmodelReport
from ..tensors import format_shapes
from ..tiles import Tiling, crop, cut, join
from .model_file import ModelFile, describe_port, suggest_shapes
from .pixels import Pixels, fold_pixels, image_input
from .store import SubmodelStore

if TYPE_CHECKING:
    import torch

SIZES = ("resize", "pad", "tile", "none")
"""How an image comes to the size that the model takes: stretched; shrunk or enlarged to fit, the rest black; cut into
tiles that overlap, for models that give an image; not at all."""

TILE_OVERLAP = 8
"""Tiles overlap by this part of their shorter side."""

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey, from ITU-R BT.601."""


@dataclass(frozen=True)
class Result:
    """What a model gave for one image. scale: model pixels for one pixel of the image, vertically and horizontally."""

    outputs: Mapping[str, torch.Tensor]
    picture: torch.Tensor | None
    """The first output that is an image, [1, height, width, 1 or 3], in the model's own numbers and channel order."""
    scale: tuple[float, float]


class ImageModel:
    """`file` as `plan` says. Everything that is wrong with the file, the plan or the size is told here, not later."""

    def __init__(
        self, file: ModelFile, pixels: Pixels, size: str, plan: SubmodelPlan, policy: str, store: SubmodelStore
    ):
        if size not in SIZES:
            raise PlanError(f"Unknown size handling {size!r}; choose one of {', '.join(SIZES)}.")
        self.file, self.size, self.policy = file, size, policy
        self.input = image_input(file.model, file.name, pixels.layout)
        if size == "tile" and self.input.size is None:
            raise ShapeError(
                f"{file.name} takes images of any size ({describe_port(file.model.inputs[0])}), so the size of a tile "
                f"must be given: in shapes of Load Model, for example {suggest_shapes(file.model, 256, 256)}"
            )
        self._requested, self._notice = plan.device, ""
        plan = self._plan_for_open_sizes(plan)
        # one compiled model takes every size on the CPU; elsewhere a fixed size is faster, or needed
        is_static = devices.resolve(plan.device, "model", policy).device != "CPU"
        self._submodel = store.get(self._source(pixels), plan, policy, is_static)

    def check(self, image: torch.Tensor) -> None:
        """Raise ShapeError if `image` [batch, height, width, channels] cannot be given to the model on its device."""
        if image.ndim != 4 or image.shape[3] != 3:
            raise ShapeError(
                f"The image has shape {list(image.shape)}; {self.file.name} takes [batch, height, width, 3], "
                "red, green and blue. Take alpha off first."
            )
        height, width = image.shape[1:3]
        if self.input.size is None and devices.is_npu(self._submodel.device):
            raise ShapeError(
                f"{self.file.name} leaves sizes open ({describe_port(self.file.model.inputs[0])}); the NPU needs every "
                f"size fixed. Enter the size in shapes of Load Model: {suggest_shapes(self.file.model, height, width)} "
                "Or choose CPU or GPU."
            )
        if self.size == "none" and self.input.size not in (None, (height, width)):
            raise ShapeError(
                f"The image is {width}x{height} (width x height); {self.file.name} takes {self.input.width}x"
                f"{self.input.height}. Choose resize, pad or tile instead of none, or scale the image."
            )

    def run(self, image: torch.Tensor, report: SubmodelReport, progress: Progress) -> Result:
        """Run on one image [1, height, width, 3], 0 to 1, RGB. InferenceError if the result holds NaN."""
        self.check(image)
        if self._notice:
            report.notice(self._notice, self.policy)
        image = image.float()
        give = partial(self._give, report=report, progress=progress)
        if self.size == "tile":
            return self._run_tiled(image, give)
        height, width = image.shape[1:3]
        used = self._used_size(height, width)
        fitted = _resize(image, *used)
        whole = self.input.size if self.size == "pad" and self.input.size else used
        outputs = give(_pad_black(fitted, *whole))
        picture = picture_of(outputs)
        if picture is not None and whole != used:
            picture = _crop_share(picture, used[0] / whole[0], used[1] / whole[1])
        return Result(outputs, picture, (used[0] / height, used[1] / width))

    def finish(self, about: str, report: SubmodelReport, progress: Progress) -> None:
        """After the last image: with int8, quantize with what was seen; `about` says what that was."""
        self._submodel.finish_run(about, report, progress)

    def _run_tiled(self, image: torch.Tensor, give) -> Result:
        """The joined picture, as the model's one output: the others belong to tiles, not to the image."""
        assert self.input.size
        height, width = image.shape[1:3]
        tiling = Tiling(height, width, *self.input.size, min(self.input.size) // TILE_OVERLAP)

        def pictures() -> Iterator[torch.Tensor]:
            for tile in cut(_channels_first(image), tiling):
                picture = picture_of(give(_channels_last(tile)))
                if picture is None:
                    raise ShapeError(
                        f"{self.file.name} gives no image, so its results cannot be joined from tiles. Choose resize "
                        "or pad."
                    )
                yield _channels_first(picture).float()

        tiles = pictures()
        first = next(tiles)
        scale, rest = divmod(first.shape[2], tiling.tile_height)
        if rest or first.shape[3] != scale * tiling.tile_width:
            raise ShapeError(
                f"{self.file.name} makes {first.shape[3]}x{first.shape[2]} of a tile of {tiling.tile_width}x"
                f"{tiling.tile_height}: no whole multiple, so tiles cannot be joined. Choose resize or pad."
            )
        picture = _channels_last(join(itertools.chain([first], tiles), tiling, scale))
        return Result({"tiles joined": picture}, picture, (1.0, 1.0))

    def _give(self, image: torch.Tensor, report: SubmodelReport, progress: Progress) -> dict[str, torch.Tensor]:
        """The outputs for an image [1, height, width, 3] of a size that the model takes."""
        if self.input.channels == 1:
            image = (image * image.new_tensor(_LUMA)).sum(-1, keepdim=True)
        try:
            outputs = self._submodel.run({self.input.name: image.contiguous()}, report, progress)
        except InferenceError as error:
            height, width = image.shape[1:3]
            fixed = suggest_shapes(self.file.model, height, width)
            advice = f" If it takes certain sizes only, enter one in shapes of Load Model: {fixed}" if fixed else ""
            raise InferenceError(
                f"{self.file.name} failed on an image of {width}x{height}: {last_line(error)}.{advice}"
            ) from error
        for name, tensor in outputs.items():
            if tensor.is_floating_point() and tensor.isnan().any():
                raise InferenceError(
                    f"Output '{name}' of {self.file.name} holds NaN on {report.actual_device} in {report.precision}. "
                    "Choose precision fp32 (on CPU or GPU), and check that mean, std and scale are the model's."
                )
        return outputs

    def _used_size(self, height: int, width: int) -> tuple[int, int]:
        """The size that the image itself gets."""
        if self.input.size is None or self.size == "none":
            return height, width
        if self.size == "resize":
            return self.input.size
        shrink = min(self.input.size[0] / height, self.input.size[1] / width)
        return max(1, round(height * shrink)), max(1, round(width * shrink))

    def _plan_for_open_sizes(self, plan: SubmodelPlan) -> SubmodelPlan:
        """AUTO goes past the NPU where the model leaves sizes open; who asks for the NPU is told what to enter."""
        if plan.device.strip().upper() != devices.AUTO or self.input.size:
            return plan
        if not devices.is_npu(devices.resolve(plan.device, "model", self.policy).device):
            return plan
        device = "CPU" if devices.why_missing("GPU") else "GPU"
        self._notice = (
            f"AUTO took {device} and not the NPU, which needs every size fixed. To use it, enter the size in shapes of "
            f"Load Model, for example {suggest_shapes(self.file.model)}"
        )
        return replace(plan, device=device)

    def _source(self, pixels: Pixels) -> Source:
        architecture = f"{self.file.name} {format_shapes(self.file.shapes)} {pixels}"
        convert = partial(fold_pixels, self.file.model, self.input, pixels, self.file.name)
        return Source("model", self.file.identity, architecture, convert, compress_to_fp16=False)


def _resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """[1, height, width, channels]; bilinear, and without the moiré of skipped pixels where it shrinks."""
    if image.shape[1:3] == (height, width):
        return image
    import torch

    resized = torch.nn.functional.interpolate(
        _channels_first(image), (height, width), mode="bilinear", align_corners=False, antialias=True
    )
    return _channels_last(resized)


def _pad_black(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    import torch

    return torch.nn.functional.pad(image, (0, 0, 0, width - image.shape[2], 0, height - image.shape[1]))


def _crop_share(picture: torch.Tensor, down: float, right: float) -> torch.Tensor:
    """The upper left part of a picture that belongs to the image, and not to its black border."""
    height, width = max(1, round(picture.shape[1] * down)), max(1, round(picture.shape[2] * right))
    return _channels_last(crop(_channels_first(picture), height, width))


def _channels_first(image: torch.Tensor) -> torch.Tensor:
    return image.permute(0, 3, 1, 2)


def _channels_last(image: torch.Tensor) -> torch.Tensor:
    return image.permute(0, 2, 3, 1).contiguous()
