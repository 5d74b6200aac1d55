"""The sizes of each submodel of a diffusers folder, from its config.json, as ComfyUI's modules take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import comfy.clip_model
import torch

from .folder_config import Config
from .folder_family import Family

VOCABULARY = 49408
"""Tokens of CLIP's tokenizer, the only one that ComfyUI has for these families."""


_UNET_ALWAYS = {
    "out_channels": 4,
    "center_input_sample": False,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "downsample_padding": 1,
    "mid_block_scale_factor": 1,
    "act_fn": "silu",
    "norm_num_groups": 32,
    "norm_eps": 1e-5,
    "encoder_hid_dim": None,
    "encoder_hid_dim_type": None,
    "dual_cross_attention": False,
    "class_embed_type": None,
    "num_class_embeds": None,
    "class_embeddings_concat": False,
    "resnet_time_scale_shift": "default",
    "resnet_skip_time_act": False,
    "resnet_out_scale_factor": 1,
    "time_embedding_type": "positional",
    "time_embedding_dim": None,
    "time_embedding_act_fn": None,
    "timestep_post_act": None,
    "time_cond_proj_dim": None,
    "conv_in_kernel": 3,
    "conv_out_kernel": 3,
    "attention_type": "default",
    "cross_attention_norm": None,
}


def unet_architecture(config: Config) -> dict[str, Any]:
    """unet/config.json in the words of ComfyUI's UNetModel, as `comfy.model_detection` writes them."""
    config.must_be(_UNET_ALWAYS)
    width, multiples = config.channels()
    levels = len(multiples)
    layers = config.per_level("layers_per_block", levels, 2)
    if len(set(layers)) > 1:
        raise config.error(f"'layers_per_block' is {layers}; ComfyUI's names of UNet tensors need one number for all.")
    depths = config.per_level("transformer_layers_per_block", levels, 1, lists=True)
    up_depths = config.per_level("reverse_transformer_layers_per_block", levels, depths[::-1], lists=True)
    has_attention = _block_types(config, "down_block_types", levels, "CrossAttnDownBlock2D", "DownBlock2D")
    up_attention = _block_types(config, "up_block_types", levels, "CrossAttnUpBlock2D", "UpBlock2D")

    down = [_depths(config, d, n, a) for d, n, a in zip(depths, layers, has_attention, strict=True)]
    up = [_depths(config, d, n + 1, a) for d, n, a in zip(up_depths, layers[::-1], up_attention, strict=True)]
    middles = {"UNetMidBlock2DCrossAttn": _depths(config, depths[-1], 1, True)[0], "UNetMidBlock2D": -1, None: -2}
    middle = config.choice("mid_block_type", middles, "UNetMidBlock2DCrossAttn")
    attends = [any(a) or any(b) for a, b in zip(down, up[::-1], strict=True)]
    attends[-1] |= middles[middle] > 0

    has_text_time = config.get("addition_embed_type") is not None
    architecture = {
        "use_checkpoint": False,
        "image_size": 32,
        "use_spatial_transformer": True,
        "legacy": False,
        "in_channels": config.integer("in_channels", 4),
        "out_channels": 4,
        "model_channels": width,
        "channel_mult": multiples,
        "num_res_blocks": layers,
        "transformer_depth": sum(down, []),
        "transformer_depth_middle": middles[middle],
        "transformer_depth_output": sum(up, [])[::-1],
        "use_linear_in_transformer": bool(config.get("use_linear_projection", False)),
        "context_dim": config.per_level("cross_attention_dim", levels, 1280)[0],
        "adm_in_channels": config.integer("projection_class_embeddings_input_dim") if has_text_time else None,
        "use_temporal_resblock": False,
        "use_temporal_attention": False,
        **_heads(config, [width * multiple for multiple in multiples], attends),
    }
    if len(set(config.per_level("cross_attention_dim", levels, 1280))) > 1:
        raise config.error("'cross_attention_dim' differs between levels; ComfyUI's model has one for all.")
    if has_text_time:
        architecture["num_classes"] = "sequential"
    only_cross = config.get("only_cross_attention", False)
    only_cross = only_cross if isinstance(only_cross, list) else [only_cross] * levels
    if len(only_cross) != levels or not all(isinstance(item, bool) for item in only_cross):
        raise config.error(f"'only_cross_attention' is {only_cross!r}; true or false, or {levels} of them, are needed.")
    if any(only_cross):
        architecture["disable_self_attentions"] = only_cross
    if config.get("upcast_attention", False):
        architecture["attn_precision"] = torch.float32
    return architecture


def text_architecture(folder: Path, family: Family) -> dict[str, Any]:
    """A text encoder's config.json as ComfyUI's CLIPTextModel takes it; missing keys have transformers' defaults."""
    config = Config.read(folder / "config.json")
    config.must_be({"model_type": "clip_text_model", "vocab_size": VOCABULARY, "layer_norm_eps": 1e-5})
    activation = config.choice("hidden_act", comfy.clip_model.ACTIVATIONS, "quick_gelu")
    size = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8}
    size = {key: config.integer(key, default) for key, default in size.items()}
    if size["hidden_size"] % size["num_attention_heads"]:
        raise config.error(f"'num_attention_heads' {size['num_attention_heads']} does not divide 'hidden_size'.")
    if "clip_g" in family.encoders and size["num_hidden_layers"] < 3:
        raise config.error("'num_hidden_layers' must be 3 or more: SDXL reads the layer before the last.")
    positions = config.integer("max_position_embeddings", 77)
    return {**size, "hidden_act": activation, "max_position_embeddings": positions, "eos_token_id": VOCABULARY - 1}


_VAE_ALWAYS = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 4,
    "act_fn": "silu",
    "norm_num_groups": 32,
    "mid_block_add_attention": True,
    "use_quant_conv": True,
    "use_post_quant_conv": True,
}


def vae_architecture(config: Config) -> dict[str, Any]:
    """vae/config.json in the words of ComfyUI's AutoencoderKL."""
    config.must_be(_VAE_ALWAYS)
    width, multiples = config.channels()
    levels = len(multiples)
    _block_types(config, "down_block_types", levels, "DownEncoderBlock2D")
    _block_types(config, "up_block_types", levels, "UpDecoderBlock2D")
    return {
        "double_z": True,
        "z_channels": 4,
        "resolution": 256,
        "in_channels": 3,
        "out_ch": 3,
        "ch": width,
        "ch_mult": multiples,
        "num_res_blocks": config.integer("layers_per_block", 1),
        "attn_resolutions": [],
        "dropout": 0.0,
    }


def _block_types(config: Config, key: str, levels: int, *supported: str) -> list[bool]:
    """Whether the block of each level is the first of the supported types."""
    value = config.get(key)
    if not isinstance(value, list) or len(value) != levels or not all(item in supported for item in value):
        raise config.error(f"'{key}' is {value!r}; supported are {levels} times {' or '.join(supported)}.")
    return [item == supported[0] for item in value]


def _depths(config: Config, depth: int | list[int], layers: int, has_attention: bool) -> list[int]:
    """Transformer blocks after each resnet of a level; one number counts for all."""
    depths = depth if isinstance(depth, list) else [depth] * layers
    if has_attention and len(depths) != layers:
        raise config.error(
            f"'transformer_layers_per_block' has {depths!r} for {layers} layers; "
            f"'reverse_transformer_layers_per_block' may be missing."
        )
    return depths if has_attention else [0] * layers


def _heads(config: Config, channels: list[int], attends: list[bool]) -> dict[str, int]:
    """Heads of the levels with attention: one number of heads, or one width of a head, for all of them.

    diffusers calls the number of heads 'attention_head_dim' (huggingface/diffusers issue 2011).
    """
    key = "attention_head_dim" if config.get("num_attention_heads") is None else "num_attention_heads"
    heads = config.per_level(key, len(channels), 8)
    used = [(width, count) for width, count, attention in zip(channels, heads, attends, strict=True) if attention]
    if not used or any(width % count for width, count in used):
        raise config.error(f"'{key}' is {config.get(key, 8)!r}; it must divide the channels of a level with attention.")
    if len({count for _, count in used}) == 1:
        return {"num_heads": used[0][1], "num_head_channels": -1}
    if len({width // count for width, count in used}) == 1:
        return {"num_heads": -1, "num_head_channels": used[0][0] // used[0][1]}
    raise config.error(f"'{key}' is {config.get(key)!r}; ComfyUI needs equal heads, or heads of equal width.")
