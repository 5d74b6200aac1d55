"""MODELs as ComfyUI makes them of checkpoints in FP8."""

from __future__ import annotations

import pytest
import torch

FP8 = torch.float8_e4m3fn
KINDS = ("plain", "scaled", "per layer")
"""Weights rounded to FP8; with one scale a layer (`scaled_fp8` in the file); the same as newer files say it."""


def fp8_model(model, kind: str):
    """`model` from a state dict as such a checkpoint holds it, made by ComfyUI's own classes."""
    import comfy.model_patcher

    # not copy.copy: these objects answer every name, __setstate__ too
    original = model.model.model_config
    config = object.__new__(type(original))
    config.__dict__.update(original.__dict__)
    state = {key: tensor.clone() for key, tensor in model.model.diffusion_model.state_dict().items()}
    linear = [
        f"{name}.weight" for name, part in model.model.diffusion_model.named_modules() if "Linear" in str(type(part))
    ]
    layers = {}
    for key in linear:
        if kind == "plain":
            state[key] = state[key].to(FP8)
            continue
        layer = key.removesuffix(".weight")
        scale = state[key].abs().max() / 448  # FP8's greatest value
        state[key] = (state[key] / scale).to(FP8)
        state[f"{layer}.{'scale_weight' if kind == 'scaled' else 'weight_scale'}"] = scale
        layers[layer] = {"format": "float8_e4m3fn"}
    if kind == "scaled":
        if not hasattr(type(config), "scaled_fp8"):
            pytest.skip("this ComfyUI rewrites such files to those with a format for each layer")
        config.scaled_fp8 = FP8
    if kind == "per layer":
        newer = hasattr(type(config), "quant_config")
        setattr(config, "quant_config" if newer else "layer_quant_config", {"layers": layers} if newer else layers)
    config.set_inference_dtype(FP8 if kind == "plain" else torch.float32, torch.float32)
    loaded = config.get_model({}, "")
    loaded.load_model_weights(state, "")
    cpu = torch.device("cpu")
    return comfy.model_patcher.ModelPatcher(loaded, load_device=cpu, offload_device=cpu)
