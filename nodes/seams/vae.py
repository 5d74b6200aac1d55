"""VAE: compiled decoder and encoder take the place of the first stage model's two methods."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from comfy.ldm.models.autoencoder import AutoencodingEngine
from comfy.ldm.modules.diffusionmodules.model import AttnBlock, pytorch_attention

from ...ov_backends import devices
from ...ov_backends.compiler.ir import Source, short_hash
from ...ov_backends.convert.vae import convert_vae_decoder, convert_vae_encoder
from ...ov_backends.errors import FallbackError, OVNPUError
from ...ov_backends.plan import DevicePlan, SubmodelPlan
from ...ov_backends.report import SubmodelReport
from ...ov_backends.runtime.store import store
from ...ov_backends.runtime.submodel import Submodel
from .. import host
from .weights import float32_on_cpu, release_when_unloaded, weights_identity, while_alive

if TYPE_CHECKING:
    from comfy.sd import VAE

log = logging.getLogger("ovnpu")

FLAT_RANGE = 1e-3
"""Pixels (-1..1) that differ by less than this over the whole image are a failed decode, or a very dull picture."""


def place_vae(vae: VAE, plan: DevicePlan) -> VAE:
    """A copy of `vae` whose decoder and encoder run as `plan` says; `vae` itself stays as it is."""
    placed = copy.copy(vae)
    placed.patcher = vae.patcher.clone()
    devices.resolve(plan.vae.device, "vae_decoder", plan.policy)
    used_weights = release_when_unloaded(placed.patcher)
    decode = _method(_Half(vae.first_stage_model, "vae_decoder", "decode", "latent", "pixels"), plan, used_weights)
    encode = _method(_Half(vae.first_stage_model, "vae_encoder", "encode", "pixels", "latent"), plan, used_weights)
    placed.patcher.add_object_patch("decode", decode)
    placed.patcher.add_object_patch("encode", encode)
    return placed


@dataclass(frozen=True)
class _Half:
    """Decoder or encoder of a first stage model: its name in reports, its method there, its ports in the IR."""

    model: AutoencodingEngine
    name: str
    method: str
    input: str
    output: str


def _method(half: _Half, plan: DevicePlan, used_weights: set[str]) -> Callable:
    """The replacement for `first_stage_model.decode` or `.encode`: one tensor [batch, channels, h, w] in, one out."""
    text = host.StepText()

    def run(tensor: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        report = host.current_report().submodel(half.name, plan.vae.device)
        why = _why_torch(half.model, tensor, args, kwargs)
        if not why:
            try:
                result = _run_guarded(half, plan, tensor, report, used_weights)
                text(report.line())
                return result.to(tensor.device, tensor.dtype)
            except OVNPUError as error:
                if plan.policy == "error":
                    raise
                why = str(error)
                report.notice(f"It ran on torch. {error}", plan.policy)
        elif plan.policy == "error":
            raise FallbackError(f"The VAE cannot run on {plan.vae.device}: {why}; and the fallback policy is 'error'.")
        report.torch_reasons[why] += 1
        return getattr(type(half.model), half.method)(half.model, tensor, *args, **kwargs)

    return run


def _run_guarded(
    half: _Half, plan: DevicePlan, tensor: torch.Tensor, report: SubmodelReport, used_weights: set[str]
) -> torch.Tensor:
    """Run as the plan says; a result that a lower precision has ruined is made again in FP32."""
    source = _source(half)
    used_weights.add(source.weights)

    def run(vae_plan: SubmodelPlan) -> tuple[torch.Tensor, Submodel]:
        # on the CPU one compiled model serves every size; a tiled decode brings many
        is_static = devices.resolve(vae_plan.device, half.name, plan.policy).device != "CPU"
        submodel = store().get(source, vae_plan, plan.policy, is_static)
        result = submodel.run({half.input: tensor}, report, host.progress)[half.output]
        submodel.finish_run(f"{half.name} of {list(tensor.shape)}", report, host.progress)
        return result, submodel

    result, submodel = run(plan.vae)
    ruined = _what_is_wrong(result)
    if ruined and submodel.precision != "fp32":
        where = f"{report.actual_device} in {submodel.precision}"
        # the NPU has no FP32
        device = "CPU" if devices.is_npu(submodel.device) else plan.vae.device
        result, _ = run(replace(plan.vae, device=device, precision="fp32"))
        still = _what_is_wrong(result)
        outcome = (
            f"and still {still}" if still else f"on {devices.label(submodel.device if device != 'CPU' else device)}"
        )
        report.notice(f"The result on {where} was {ruined}; made again in fp32 {outcome}.", plan.policy)
    if not torch.isfinite(result).all():
        raise OVNPUError(f"The result on {report.actual_device} in {report.precision} holds NaN or infinity.")
    return result


def _what_is_wrong(result: torch.Tensor) -> str:
    if not torch.isfinite(result).all():
        return "NaN or infinite"
    flat = result.flatten(1)
    return "flat" if bool(((flat.amax(1) - flat.amin(1)) < FLAT_RANGE).any()) else ""


def _why_torch(model, tensor: torch.Tensor, args, kwargs) -> str:
    if not isinstance(model, AutoencodingEngine) or not hasattr(model, "post_quant_conv"):
        return f"{type(model).__name__} is not a Stable Diffusion VAE"
    if tensor.ndim != 4:
        return f"input of shape {tuple(tensor.shape)}"
    if args or kwargs:
        return f"options {', '.join(kwargs) or args}"
    return ""


class _ForTracing(torch.nn.Module):
    """One method of the first stage model as a module."""

    def __init__(self, model: torch.nn.Module, method: str):
        super().__init__()
        self.model, self.method = model, method

    def forward(self, tensor):
        # the class's own method: the instance's may be the replacement of this file
        return getattr(type(self.model), self.method)(self.model, tensor)


@contextmanager
def _plain_attention(model: torch.nn.Module) -> Iterator[None]:
    """Attention that traces to one operator instead of a loop of slices, for the time of a trace."""
    blocks = [block for block in model.modules() if isinstance(block, AttnBlock)]
    before = [block.optimized_attention for block in blocks]
    try:
        for block in blocks:
            block.optimized_attention = pytorch_attention
        yield
    finally:
        for block, attention in zip(blocks, before, strict=True):
            block.optimized_attention = attention


def _source(half: _Half) -> Source:
    model, is_decoder, method = half.model, half.name == "vae_decoder", half.method
    parts = ("decoder", "post_quant_conv") if is_decoder else ("encoder", "quant_conv")
    weights = torch.nn.ModuleDict({part: getattr(model, part) for part in parts})
    latent_channels = model.post_quant_conv.weight.shape[1]
    shapes = " ".join(f"{key}{tuple(tensor.shape)}" for key, tensor in weights.state_dict().items())

    def convert(alive: AutoencodingEngine):
        traced = float32_on_cpu(alive)
        with _plain_attention(traced):
            if is_decoder:
                return convert_vae_decoder(_ForTracing(traced, method).eval(), latent_channels)
            return convert_vae_encoder(_ForTracing(traced, method).eval())

    identity = weights_identity(model, weights, half.name, host.progress)
    return Source(half.name, identity, f"{type(model).__name__} {short_hash(shapes)}", while_alive(model, convert))
