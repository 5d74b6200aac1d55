"""UPSCALE_MODEL: the compiled upscaler takes an image tile by tile."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import comfy.model_management
import comfy.utils
import torch

from ...ov_backends import devices
from ...ov_backends.compiler.ir import Source, short_hash
from ...ov_backends.convert.upscaler import convert_upscaler
from ...ov_backends.errors import FallbackError, InferenceError, OVNPUError, TensorError
from ...ov_backends.plan import SubmodelPlan
from ...ov_backends.report import SubmodelReport
from ...ov_backends.runtime.store import store
from ...ov_backends.tiles import Tiling, cut, join
from .. import host
from .weights import float32_on_cpu, weights_identity, while_alive

if TYPE_CHECKING:
    from spandrel import ImageModelDescriptor

IN_FLIGHT = 4
"""Tiles given to an NPU together: while it computes one, the next is on its way. A CPU or GPU gets one at a time."""

_watched: weakref.WeakSet[ImageModelDescriptor] = weakref.WeakSet()


def upscale_image(
    upscale_model: ImageModelDescriptor, image: torch.Tensor, device: str, policy: str, tile: int, overlap: int
) -> torch.Tensor:
    """IMAGE [batch, height, width, channels], 0..1 -> the same, `upscale_model.scale` times as high and wide.

    tile: height and width of what the model sees at once, in pixels of `image`; rounded up to what it needs. overlap:
    of two tiles. What OpenVINO cannot run goes to ComfyUI's own node, with the reason in the report.
    """
    report = host.current_report().submodel("upscaler", device)
    why = _why_torch(upscale_model)
    if why and policy == "error":
        raise FallbackError(
            f"The upscaler cannot run on {device}: {why}; and the fallback policy is 'error'. Set it to warn or allow "
            "to run it on torch."
        )
    if not why:
        tiling = _tiling(upscale_model, image, tile, overlap)
        try:
            return _run(upscale_model, image, tiling, _plan(upscale_model, device), policy, report)
        except OVNPUError as error:
            if policy == "error":
                raise
            why = str(error)
    report.notice(f"It ran on torch. {why}", policy)
    report.torch_reasons[why] += 1
    return _on_torch(upscale_model, image)


def _run(
    upscale_model: ImageModelDescriptor,
    image: torch.Tensor,
    tiling: Tiling,
    plan: SubmodelPlan,
    policy: str,
    report: SubmodelReport,
) -> torch.Tensor:
    submodel = store().get(_source(upscale_model, tiling), plan, policy)
    count = len(image) * len(tiling)
    bar, text, done = comfy.utils.ProgressBar(count), host.StepText(), 0

    def upscaled(tiles: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        nonlocal done
        # the first one alone: a device that refuses the model may hand it to the CPU
        together = 1
        while group := list(islice(tiles, together)):
            comfy.model_management.throw_exception_if_processing_interrupted()
            result = submodel.run({"image": torch.cat(group)}, report, host.progress)["upscaled"]
            if not torch.isfinite(result).all():
                where = f"{report.actual_device} in {report.precision}"
                raise InferenceError(f"The upscaler returned NaN or infinity on {where}.")
            done += len(group)
            bar.update(len(group))
            text(f"Upscaling on {report.actual_device} {report.precision}: tile {done} of {count}")
            together = IN_FLIGHT if devices.is_npu(submodel.device) else 1
            yield from result.clamp_(0, 1).split(1)

    scale = upscale_model.scale
    whole = torch.empty(
        len(image), tiling.height * scale, tiling.width * scale, upscale_model.output_channels, dtype=torch.float32
    )
    for index, pixels in enumerate(image.detach().cpu().movedim(-1, 1).split(1)):
        whole[index] = join(upscaled(cut(pixels, tiling)), tiling, scale)[0].movedim(0, -1)
    host.show(report.line())
    return whole


def _on_torch(upscale_model: ImageModelDescriptor, image: torch.Tensor) -> torch.Tensor:
    from comfy_extras.nodes_upscale_model import ImageUpscaleWithModel

    return ImageUpscaleWithModel.execute(upscale_model, image)[0]


def _why_torch(upscale_model: object) -> str:
    from spandrel import ImageModelDescriptor

    if not isinstance(upscale_model, ImageModelDescriptor):
        return f"{type(upscale_model).__name__} is not an upscale model of ComfyUI's own loader"
    return ""


def _tiling(upscale_model: ImageModelDescriptor, image: torch.Tensor, tile: int, overlap: int) -> Tiling:
    if image.shape[-1] != upscale_model.input_channels:
        raise TensorError(
            f"This upscale model takes images of {upscale_model.input_channels} channels; the image has "
            f"{image.shape[-1]}. Split off or join its alpha channel first."
        )
    more_width, more_height = upscale_model.size_requirements.get_padding(tile, tile)
    return Tiling(image.shape[1], image.shape[2], tile + more_height, tile + more_width, overlap)


def _plan(upscale_model: ImageModelDescriptor, device: str) -> SubmodelPlan:
    """Where spandrel knows that a model fails in FP16, FP32 is asked for."""
    return SubmodelPlan(device, "auto" if upscale_model.supports_half else "fp32")


class _ForTracing(torch.nn.Module):
    """A spandrel model as a module: what its descriptor does around the model is part of the graph."""

    def __init__(self, upscale_model: ImageModelDescriptor):
        super().__init__()
        self.model, self.descriptor = upscale_model.model, upscale_model

    def forward(self, image):
        # without the inference mode that decorates it, in which nothing can be traced
        return inspect.unwrap(type(self.descriptor).__call__)(self.descriptor, image)


def _source(upscale_model: ImageModelDescriptor, tiling: Tiling) -> Source:
    model = upscale_model.model
    weights = weights_identity(model, model, "upscaler", host.progress)
    if upscale_model not in _watched:
        # nothing tells that ComfyUI has dropped an upscale model, except that it is gone
        _watched.add(upscale_model)
        weakref.finalize(upscale_model, lambda: store().release_soon(weights)).atexit = False
    channels, height, width = upscale_model.input_channels, tiling.tile_height, tiling.tile_width
    shape = f"{upscale_model.architecture.name} x{upscale_model.scale} tile {width}x{height}"

    def convert(alive: ImageModelDescriptor):
        return convert_upscaler(float32_on_cpu(_ForTracing(alive)).eval(), channels, height, width)

    # spandrel tells the structure from the weights; repr has what differs without a weight, such as an activation
    return Source("upscaler", weights, f"{shape} {short_hash(repr(model))}", while_alive(upscale_model, convert))
