"""API prompts for the end-to-end tests, made from the bundled workflow."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

PACK = Path(__file__).parent.parent.parent
PLAN, FOLDER, CLIP, POSITIVE, NEGATIVE, SIZE, SAMPLER, VAE, DECODE, REPORT, SAVE = map(str, range(1, 12))
"""Node ids of the bundled workflow."""

Prompt = dict[str, Any]


def as_shipped(**changes: dict[str, Any]) -> Prompt:
    """The bundled workflow: the preset balanced, so INT8 for the UNet on the NPU.

    changes: `n7={"seed": 2}` changes inputs of node 7.
    """
    prompt = json.loads((PACK / "workflows" / "api" / "text_to_image.json").read_text(encoding="utf-8"))
    return _changed(prompt, changes)


def bundled(**changes: dict[str, Any]) -> Prompt:
    """The bundled workflow with the UNet in FP16 on the NPU; changes: as in `as_shipped`.

    INT8 would record and quantize at the end of each server's first run.
    """
    prompt = as_shipped()
    prompt[PLAN]["inputs"] |= {**plan("AUTO"), "unet_device": "NPU", "unet_precision": "fp16"}
    return _changed(prompt, changes)


def _changed(prompt: Prompt, changes: dict[str, dict[str, Any]]) -> Prompt:
    for name, inputs in changes.items():
        prompt[name.removeprefix("n")]["inputs"] |= inputs
    return prompt


def plan(device: str, precision: str = "auto", policy: str = "warn") -> dict[str, Any]:
    """Inputs of OVNPU_DevicePlan with all submodels on `device`."""
    chosen: dict[str, Any] = {"preset": "custom", "policy": policy}
    for name in ("text_encoder", "unet", "vae"):
        chosen |= {f"{name}_device": device, f"{name}_precision": precision}
    return chosen


def saving_latents(prompt: Prompt, prefix: str) -> Prompt:
    """`prompt` cut after the sampler, whose latent is saved as output/<prefix>_00001_.latent."""
    prompt = {k: copy.deepcopy(v) for k, v in prompt.items() if k not in (VAE, DECODE, REPORT, SAVE)}
    prompt["20"] = {"class_type": "SaveLatent", "inputs": {"samples": [SAMPLER, 0], "filename_prefix": prefix}}
    return prompt


def with_stock_sampler(prompt: Prompt, model: list | None = None) -> Prompt:
    """`prompt` with ComfyUI's own KSampler, on torch or on what `model` names."""
    prompt = copy.deepcopy(prompt)
    inputs = prompt[SAMPLER]["inputs"]
    del inputs["plan"]
    if model:
        inputs["model"] = model
    prompt[SAMPLER]["class_type"] = "KSampler"
    return prompt
