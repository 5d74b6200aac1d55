"""VAE: compiled decoder and encoder take the place of the first stage model's two methods."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from comfy.ldm.models.autoencoder import AutoencodingEngine
from comfy.ldm.modules.diffusionmodules.model import AttnBlock, pytorch_attention

from ...ov_backends import devices
from ...ov_backends.compiler.ir import Source
from ...ov_backends.convert.vae import convert_vae_decoder, convert_vae_encoder
from ...ov_backends.errors import FallbackError, OVNPUError
from ...ov_backends.plan import DevicePlan, SubmodelPlan
from ...ov_backends.report import SubmodelReport
from ...ov_backends.runtime.store import store
from .. import host
from .weights import float32_on_cpu, weights_identity

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
    decode = _method(placed, plan, "vae_decoder", "decode", "latent", "pixels")
    encode = _method(placed, plan, "vae_encoder", "encode", "pixels", "latent")
    placed.patcher.add_object_patch("decode", decode)
    placed.patcher.add_object_patch("encode", encode)
    return placed


def _method(vae: VAE, plan: DevicePlan, name: str, method: str, input_name: str, output_name: str) -> Callable:
    """The replacement for `first_stage_model.decode` or `.encode`: one tensor [batch, channels, h, w] in, one out."""
    model = vae.first_stage_model
    text = host.StepText()

    def run(tensor: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        report = host.current_report().submodel(name, plan.vae.device)
        why = _why_torch(model, tensor, args, kwargs)
        if not why:
            try:
                result = _run_guarded(model, plan, name, {input_name: tensor}, output_name, report)
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
        return getattr(type(model), method)(model, tensor, *args, **kwargs)

    return run


def _run_guarded(model, plan: DevicePlan, name: str, inputs, output_name: str, report: SubmodelReport) -> torch.Tensor:
    """Run the plan's device and precision; a result that FP16 has ruined is made again in FP32."""

    def run(vae_plan: SubmodelPlan) -> torch.Tensor:
        # on the CPU one compiled model serves every size; a tiled decode brings many
        submodel = store().get(_source(model, name), vae_plan, plan.policy, static=not _is_on_cpu(vae_plan, name, plan))
        return submodel.run(inputs, report, host.progress)[output_name]

    result = run(plan.vae)
    ruined = _what_is_wrong(result)
    if ruined and report.precision != "fp32":
        where = f"{report.actual_device} in {report.precision}"
        # the NPU has no FP32
        is_on_npu = devices.is_npu(devices.resolve(plan.vae.device, name, plan.policy).device)
        device = "CPU" if is_on_npu else plan.vae.device
        result = run(replace(plan.vae, device=device, precision="fp32"))
        still = _what_is_wrong(result)
        outcome = f"and still {still}" if still else f"on {report.actual_device}"
        report.notice(f"The result on {where} was {ruined}; made again in fp32 {outcome}.", plan.policy)
    if not torch.isfinite(result).all():
        raise OVNPUError(f"The result on {report.actual_device} in {report.precision} holds NaN or infinity.")
    return result


def _what_is_wrong(result: torch.Tensor) -> str:
    if not torch.isfinite(result).all():
        return "NaN or infinite"
    flat = result.flatten(1)
    return "flat" if bool(((flat.amax(1) - flat.amin(1)) < FLAT_RANGE).any()) else ""


def _is_on_cpu(vae_plan: SubmodelPlan, name: str, plan: DevicePlan) -> bool:
    return devices.resolve(vae_plan.device, name, plan.policy).device == "CPU"


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


def _source(model: AutoencodingEngine, name: str) -> Source:
    is_decoder = name == "vae_decoder"
    parts = ("decoder", "post_quant_conv") if is_decoder else ("encoder", "quant_conv")
    weights = torch.nn.ModuleDict({part: getattr(model, part) for part in parts})
    latent_channels = model.post_quant_conv.weight.shape[1]
    shape = " ".join(f"{k}{tuple(v.shape)}" for k, v in weights.state_dict().items())

    def convert():
        traced = float32_on_cpu(model)
        with _plain_attention(traced):
            if is_decoder:
                return convert_vae_decoder(_ForTracing(traced, "decode").eval(), latent_channels)
            return convert_vae_encoder(_ForTracing(traced, "encode").eval())

    identity = weights_identity(model, weights, name, host.progress)
    return Source(name, identity, f"{type(model).__name__} {_short(shape)}", convert)


def _short(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:16]
