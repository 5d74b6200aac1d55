"""CLIP: the compiled text encoder takes the place of each CLIP tower's forward."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from comfy.clip_model import CLIPTextModel

from ...ov_backends import devices
from ...ov_backends.compiler.ir import Source
from ...ov_backends.convert.text_encoder import convert_text_encoder
from ...ov_backends.errors import FallbackError, OVNPUError
from ...ov_backends.plan import DevicePlan
from ...ov_backends.runtime.store import store
from .. import host
from .weights import float32_on_cpu, release_when_unloaded, weights_identity, while_alive

if TYPE_CHECKING:
    from comfy.sd import CLIP

log = logging.getLogger("ovnpu")

TOKENS = 77
TOWERS = ("clip_l", "clip_g", "clip_h")


def place_clip(clip: CLIP, plan: DevicePlan) -> CLIP:
    """A clone of `clip` whose towers run as `plan` says; token weights, embeddings and clip skip stay ComfyUI's."""
    placed = clip.clone()
    report = host.current_report().submodel("text_encoder", plan.text_encoder.device)
    towers = [name for name in TOWERS if _transformer(placed, name) is not None]
    if not towers:
        why = f"{type(placed.cond_stage_model).__name__} is not a CLIP text encoder"
        if plan.policy == "error":
            raise FallbackError(
                f"The text encoder cannot run on {plan.text_encoder.device}: {why}; and the fallback policy is 'error'."
            )
        report.notice(f"It runs on torch: {why}", plan.policy)
    devices.resolve(plan.text_encoder.device, "text_encoder", plan.policy)
    used_weights = release_when_unloaded(placed.patcher)
    for name in towers:
        placed.patcher.add_object_patch(f"{name}.transformer.forward", _forward_of(placed, name, plan, used_weights))
    return placed


def _transformer(clip: CLIP, name: str) -> CLIPTextModel | None:
    transformer = getattr(getattr(clip.cond_stage_model, name, None), "transformer", None)
    return transformer if isinstance(transformer, CLIPTextModel) else None


def _forward_of(clip: CLIP, name: str, plan: DevicePlan, used_weights: set[str]):
    """The replacement for `CLIPTextModel.forward` of one tower."""
    host_module, transformer = clip.cond_stage_model, _transformer(clip, name)

    def forward(
        input_tokens=None,
        attention_mask=None,
        embeds=None,
        num_tokens=None,
        intermediate_output=None,
        final_layer_norm_intermediate=True,
        **kwargs,
    ):
        report = host.current_report().submodel("text_encoder", plan.text_encoder.device)

        def on_torch(why: str):
            report.torch_reasons[why] += 1
            return CLIPTextModel.forward(
                transformer, input_tokens, attention_mask, embeds=embeds, num_tokens=num_tokens,
                intermediate_output=intermediate_output,
                final_layer_norm_intermediate=final_layer_norm_intermediate, **kwargs,
            )  # fmt: skip

        why = _why_torch(attention_mask, embeds, num_tokens)
        if why and plan.policy == "error":
            raise FallbackError(
                f"The text encoder cannot run this prompt on {plan.text_encoder.device}: {why}; and the fallback "
                "policy is 'error'. Set it to warn or allow to run such prompts on torch."
            )
        if why:
            return on_torch(why)
        try:
            source = _source(host_module, transformer, name)
            used_weights.add(source.weights)
            submodel = store().get(source, plan.text_encoder, plan.policy)
            outputs = submodel.run({"embeds": embeds}, report, host.progress)
            submodel.finish_run("prompt", report, host.progress)
        except OVNPUError as error:
            if plan.policy == "error":
                raise
            report.notice(f"It ran on torch. {error}", plan.policy)
            return on_torch(str(error))
        host.show(report.line())
        return _as_comfy(transformer, outputs, num_tokens, intermediate_output, final_layer_norm_intermediate, embeds)

    return forward


def _why_torch(attention_mask, embeds, num_tokens) -> str:
    if attention_mask is not None:
        return "attention mask"
    if embeds is None or num_tokens is None:
        return "token ids instead of embeddings"
    if embeds.shape[1] != TOKENS:
        return f"{embeds.shape[1]} tokens in one section"
    return ""


def _as_comfy(transformer: CLIPTextModel, outputs, num_tokens, layer, normalise_layer: bool, like: torch.Tensor):
    """What `CLIPTextModel.forward` returns: last hidden state, the layer asked for, projected and raw pooled output."""
    last, hidden = (outputs[name].to(like.device) for name in ("last", "hidden"))
    intermediate = None
    if layer == "all":
        intermediate = hidden
    elif layer is not None:
        intermediate = hidden[:, layer]
    if intermediate is not None and normalise_layer:
        intermediate = transformer.text_model.final_layer_norm(intermediate)
    rows = torch.arange(last.shape[0], device=last.device)
    pooled = last[rows, torch.tensor([n - 1 for n in num_tokens], device=last.device)]
    return last, intermediate, transformer.text_projection(pooled), pooled


class _ForTracing(torch.nn.Module):
    """A CLIP tower from token embeddings to all hidden states."""

    def __init__(self, transformer: CLIPTextModel):
        super().__init__()
        self.text_model = transformer.text_model

    def forward(self, embeds):
        # num_tokens only chooses the pooled row, which is taken outside the graph
        last, hidden, _ = self.text_model(
            embeds=embeds, num_tokens=[1], intermediate_output="all", final_layer_norm_intermediate=False
        )
        return last, hidden


def _source(host_module: torch.nn.Module, transformer: CLIPTextModel, name: str) -> Source:
    width = transformer.text_model.final_layer_norm.weight.shape[0]
    layers = transformer.text_model.encoder.layers
    # token embeddings are looked up by ComfyUI, outside the graph
    architecture = f"CLIPTextModel {name} {width}x{len(layers)} heads {layers[0].self_attn.heads}"
    activation = getattr(layers[0].mlp.activation, "__name__", str(layers[0].mlp.activation))

    def convert(alive: CLIPTextModel):
        return convert_text_encoder(_ForTracing(float32_on_cpu(alive)).eval(), width)

    weights = weights_identity(host_module, transformer.text_model.encoder, name, host.progress)
    return Source("text_encoder", weights, f"{architecture} {activation}", while_alive(transformer, convert))
