"""Diffusers folders of the SD 1.x, SD 2.x and SDXL families as ComfyUI's own MODEL, CLIP and VAE.

ComfyUI recognises a model by the sizes of its tensors, and knows the published sizes only. Here every decision is
taken from the folder's config.json files, so any size of these families loads; the classes, the devices and the
dtypes are ComfyUI's. Nothing is guessed: a setting that ComfyUI's modules cannot express, and a tensor that does not
fit its config.json, are errors that name the file and the key.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import comfy.clip_model
import comfy.latent_formats
import comfy.model_management
import comfy.model_patcher
import comfy.sd
import comfy.supported_models
import comfy.supported_models_base
import comfy.text_encoders.sd2_clip
import comfy.utils
import folder_paths
import torch
from comfy.ldm.models.autoencoder import AutoencoderKL
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
from comfy.model_base import ModelType

from ..ov_backends.errors import ModelFolderError

log = logging.getLogger("ovnpu")

DEMO = "demo"
DEMO_FOLDER = Path(__file__).parent.parent / "demo_model"
VOCABULARY = 49408
"""Tokens of CLIP's tokenizer, the only one that ComfyUI has for these families."""


def list_folders() -> list[str]:
    """Names of the folders that can be loaded now: the pack's demo model, then all below the "diffusers" paths."""
    return list(_folders())


def find_folder(name: str) -> Path:
    """The folder behind a name of `list_folders`, and nothing else: no path leads out of ComfyUI's model folders."""
    folders = _folders()
    if not isinstance(name, str) or name not in folders:
        raise ModelFolderError(
            f"There is no diffusers folder {name!r}. Found: {', '.join(folders)}. Put the folder (the one that holds "
            f"model_index.json) below {' or '.join(_roots())}; links that lead elsewhere are not followed."
        )
    return folders[name]


def fingerprint(name: str) -> str:
    """Size and modification time of every file of a folder: changes when the folder must be loaded again."""
    try:
        path = find_folder(name)
    except ModelFolderError as error:
        return str(error)
    files = sorted(file for file in [*path.glob("*"), *path.glob("*/*")] if file.is_file())
    stats = [(file.relative_to(path).as_posix(), file.stat()) for file in files]
    return "\n".join(f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats)


def load_folder(path: Path) -> tuple[comfy.model_patcher.ModelPatcher, comfy.sd.CLIP, comfy.sd.VAE]:
    """MODEL, CLIP and VAE of a diffusers folder, with torch weights, as ComfyUI's own loaders would make them."""
    path = Path(path)
    index = Config.read(path / "model_index.json")
    if index.get("unet") is None:
        raise index.error(
            f"{index.get('_class_name', 'this pipeline')} has no 'unet', so it is not of the SD 1.x, SD 2.x or SDXL "
            f"family. Use ComfyUI's own loaders for it."
        )
    unet = Config.read(path / "unet" / "config.json").of_class("UNet2DConditionModel")
    vae = Config.read(path / "vae" / "config.json").of_class("AutoencoderKL")
    scheduler = Config.read(path / "scheduler" / "scheduler_config.json")
    family = choose_family(index, unet)
    # Every file is read and judged before gigabytes of weights are.
    architecture, vae_size = unet_architecture(unet), vae_architecture(vae)
    text_sizes = {name: text_architecture(path / folder, family) for name, folder in family.encoders.items()}
    prediction, sampling = sampling_settings(scheduler)
    model_config = family.model_config(architecture)
    # The classes carry the head counts of the published sizes and overwrite what they were given.
    model_config.unet_config.update(architecture)
    model_config.sampling_settings.update(sampling)
    model_config.latent_format = latent_format(model_config.latent_format, vae)
    model_config.model_type = lambda state_dict, prefix="": prediction

    model = load_unet(path / "unet", model_config)
    if model.model.model_type is not prediction:
        raise scheduler.error(f"'prediction_type' {prediction.name} is not known to ComfyUI for {family.name}.")
    comfy.model_management.throw_exception_if_processing_interrupted()
    clip = load_clip(path, family, text_sizes, model_config.clip_target())
    comfy.model_management.throw_exception_if_processing_interrupted()
    result = model, clip, load_vae(path / "vae", vae_size)
    log.info("Loaded %s: %s, %s", path.name, family.name, prediction.name)
    return result


@dataclass(frozen=True)
class Config:
    """One JSON file of a folder. What is wrong in it is reported with the file and the key."""

    path: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Config:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ModelFolderError(f"{path} is missing. Download the whole folder again.") from error
        except (OSError, ValueError, RecursionError) as error:
            raise ModelFolderError(f"{path} is not readable JSON ({error}). Download it again.") from error
        if not isinstance(values, dict):
            raise ModelFolderError(f"{path} holds no JSON object. Download it again.")
        return cls(path, values)

    def error(self, text: str) -> ModelFolderError:
        return ModelFolderError(f"{self.path}: {text}")

    def of_class(self, name: str) -> Config:
        found = self.get("_class_name", name)
        if found != name:
            raise self.error(f"'_class_name' is {found!r}; only {name} is supported. Use ComfyUI's loaders for it.")
        return self

    def get(self, key: str, default: Any = None) -> Any:
        """The value; diffusers writes null for "not set"."""
        value = self.values.get(key)
        return default if value is None else value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not _is_number(value) or not 0 < value < math.inf:
            raise self.error(f"'{key}' is {value!r}; a positive number is needed.")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not _is_count(value):
            raise self.error(f"'{key}' is {value!r}; a positive whole number is needed.")
        return value

    def per_level(self, key: str, levels: int, default: Any = None, *, lists: bool = False) -> list:
        """A whole number (or, with `lists`, a list of them) for each level; a single number counts for all."""
        value = self.get(key, default)
        values = value if isinstance(value, list) else [value] * levels
        flat = [item for level in values for item in (level if lists and isinstance(level, list) else [level])]
        if len(values) != levels or not all(map(_is_count, flat)):
            raise self.error(f"'{key}' is {value!r}; a positive whole number, or {levels} of them, are needed.")
        return values

    def choice(self, key: str, supported: Iterable[str | None], default: str) -> Any:
        """One of the supported words; null counts as a word of its own."""
        value = self.values.get(key, default)
        if value not in list(supported):
            raise self.error(f"'{key}' is {value!r}; ComfyUI can do {', '.join(map(str, supported))}.")
        return value

    def channels(self) -> tuple[int, list[int]]:
        """'block_out_channels' as the first width and the multiple of it at each level."""
        value = self.get("block_out_channels")
        if not isinstance(value, list) or not value or not all(map(_is_count, value)):
            raise self.error(f"'block_out_channels' is {value!r}; a list of whole numbers is needed.")
        if any(item % 32 or item % value[0] for item in value):
            raise self.error(f"'block_out_channels' is {value!r}; ComfyUI needs multiples of 32 and of the first one.")
        return value[0], [item // value[0] for item in value]

    def must_be(self, supported: dict[str, Any]) -> None:
        """Refuse any value of these keys but the one that ComfyUI's module is written for."""
        for key, value in supported.items():
            if self.get(key, value) != value:
                raise self.error(f"'{key}' is {self.get(key)!r}; ComfyUI's model can only do {value!r}.")


@dataclass(frozen=True)
class Family:
    """One family of models: ComfyUI's class for it, and the folder of each of its text encoders."""

    name: str
    model_config: type
    encoders: dict[str, str]


def choose_family(index: Config, unet: Config) -> Family:
    """SD 1.x, SD 2.x, SDXL or its refiner, from the conditioning that the UNet asks for."""
    families = comfy.supported_models
    channels = unet.integer("in_channels", 4)
    edits_images = channels == 8 and "InstructPix2Pix" in str(index.get("_class_name"))
    added = unet.get("addition_embed_type")
    if added is None and not unet.get("use_linear_projection", False):
        sd15 = families.SD15_instructpix2pix if edits_images else families.SD15
        family = Family("SD 1.x", sd15, {"clip_l": "text_encoder"})
    elif added is None:
        family = Family("SD 2.x", families.SD20, {"clip_h": "text_encoder"})
    elif added == "text_time":
        family = _sdxl_family(unet, edits_images)
    else:
        raise unet.error(f"'addition_embed_type' is {added!r}; only SDXL's 'text_time' is supported.")
    if channels not in (4, 9) and not (edits_images and "instructpix2pix" in family.model_config.__name__):
        raise unet.error(f"'in_channels' is {channels}; supported are 4, 9 (inpainting) and 8 (InstructPix2Pix).")
    return family


def _sdxl_family(unet: Config, edits_images: bool) -> Family:
    """Base or refiner: the numbers that follow the pooled text tell, each of them as 256 sines and cosines."""
    unet.must_be({"addition_time_embed_dim": 256})
    pooled = Config.read(unet.path.parent.parent / "text_encoder_2" / "config.json").integer("projection_dim", 512)
    width = unet.integer("projection_class_embeddings_input_dim")
    if width == pooled + 6 * 256:  # original size, crop and target size, height and width each
        sdxl = comfy.supported_models.SDXL_instructpix2pix if edits_images else comfy.supported_models.SDXL
        return Family("SDXL", sdxl, {"clip_l": "text_encoder", "clip_g": "text_encoder_2"})
    if width == pooled + 5 * 256:  # original size, crop, aesthetic score
        return Family("SDXL refiner", comfy.supported_models.SDXLRefiner, {"clip_g": "text_encoder_2"})
    raise unet.error(
        f"'projection_class_embeddings_input_dim' is {width}; with the {pooled} of text_encoder_2, SDXL has "
        f"{pooled + 6 * 256} and its refiner {pooled + 5 * 256}."
    )


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


def sampling_settings(config: Config) -> tuple[ModelType, dict[str, Any]]:
    """What the UNet predicts and its noise schedule, from scheduler_config.json."""
    if str(config.get("_class_name")).startswith("EDM"):
        types = {"epsilon": ModelType.EDM, "v_prediction": ModelType.V_PREDICTION_EDM}
        settings: dict[str, Any] = {"sigma_min": 0.002, "sigma_max": 80.0, "sigma_data": 0.5}
        settings = {key: config.number(key, default) for key, default in settings.items()}
    else:
        types = {"epsilon": ModelType.EPS, "v_prediction": ModelType.V_PREDICTION}
        # ComfyUI follows the names of the first Stable Diffusion: its "linear" is linear in the root of beta.
        schedules = {"scaled_linear": "linear", "linear": "sqrt_linear", "squaredcos_cap_v2": "cosine"}
        config.must_be({"trained_betas": None})
        settings = {
            "beta_schedule": schedules[config.choice("beta_schedule", schedules, "linear")],
            "linear_start": config.number("beta_start"),
            "linear_end": config.number("beta_end"),
            "timesteps": config.integer("num_train_timesteps", 1000),
            "zsnr": bool(config.get("rescale_betas_zero_snr", False)),
        }
    return types[config.choice("prediction_type", types, "epsilon")], settings


def latent_format(standard: comfy.latent_formats.LatentFormat, config: Config) -> comfy.latent_formats.LatentFormat:
    """The family's latent format with the scale of vae/config.json, and its mean and deviation where it has them."""
    config.must_be({"latent_channels": 4, "shift_factor": 0})
    mean, deviation = config.get("latents_mean"), config.get("latents_std")
    if mean is not None or deviation is not None:
        if not all(isinstance(v, list) and len(v) == 4 and all(map(_is_number, v)) for v in (mean, deviation)):
            raise config.error("'latents_mean' and 'latents_std' must be lists of 4 numbers.")
        standard = comfy.latent_formats.SDXL_Playground_2_5()
        standard.latents_mean = torch.tensor(mean).view(1, 4, 1, 1)
        standard.latents_std = torch.tensor(deviation).view(1, 4, 1, 1)
    standard.scale_factor = config.number("scaling_factor", 0.18215)
    return standard


def load_unet(folder: Path, model_config: comfy.supported_models.BASE) -> comfy.model_patcher.ModelPatcher:
    """MODEL, in the steps of `comfy.sd.load_diffusion_model_state_dict` after it has recognised a model."""
    file, weights = read_weights(folder, "diffusion_pytorch_model")
    shapes = _shapes(UNetModel(**model_config.unet_config, device="meta", operations=_PlainLayers))
    names = {d: name for d, name in comfy.utils.unet_to_diffusers(model_config.unet_config).items() if name in shapes}
    # The map has two names for the embedding of added conditions; with 'class_embed_type' refused, one is left.
    names = {d: name for d, name in names.items() if not d.startswith("class_embedding.")}
    _check(file, weights, {d: shapes[name] for d, name in names.items()})

    management = comfy.model_management
    dtype = management.unet_dtype(
        model_params=comfy.utils.calculate_parameters(weights),
        supported_dtypes=list(model_config.supported_inference_dtypes),
        weight_dtype=comfy.utils.weight_dtype(weights),
    )
    load_device, offload_device = management.get_torch_device(), management.unet_offload_device()
    manual_cast = management.unet_manual_cast(dtype, load_device, model_config.supported_inference_dtypes)
    model_config.set_inference_dtype(dtype, manual_cast)
    model = model_config.get_model({}, "").to(offload_device)
    model.load_model_weights({name: weights[d] for d, name in names.items()}, "")
    return comfy.model_patcher.ModelPatcher(model, load_device=load_device, offload_device=offload_device)


def load_clip(
    path: Path, family: Family, sizes: dict[str, dict[str, Any]], target: comfy.supported_models_base.ClipTarget
) -> comfy.sd.CLIP:
    """CLIP of one or two text encoders, by ComfyUI's name for each (clip_l, clip_h, clip_g)."""
    weights = {name: _text_weights(path / folder, name, sizes[name]) for name, folder in family.encoders.items()}
    clip = comfy.sd.CLIP(
        target,
        embedding_directory=folder_paths.get_folder_paths("embeddings"),
        tokenizer_data={f"{name}_max_length": size["max_position_embeddings"] for name, size in sizes.items()},
        parameters=sum(map(comfy.utils.calculate_parameters, weights.values())),
        model_options={"clip_h_class": TruncatedClipH, **{f"{name}_model_config": sizes[name] for name in sizes}},
    )
    for name, state in weights.items():
        getattr(clip.cond_stage_model, name).load_sd(state)
    return clip


class TruncatedClipH(comfy.text_encoders.sd2_clip.SD2ClipHModel):
    """SD 2.x's text encoder as diffusers stores it: cut after the layer before the last, the one that SD 2.x reads.

    Layers keep the numbers of the whole encoder, so "CLIP Set Last Layer" -2 means here what it means elsewhere.
    """

    def __init__(self, **options: Any):
        super().__init__(layer="last", **options)

    def set_clip_options(self, options: dict[str, Any]) -> None:
        layer = options.get("layer")
        super().set_clip_options(options if layer is None else {**options, "layer": min(layer + 1, -1)})


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


def load_vae(folder: Path, size: dict[str, Any]) -> comfy.sd.VAE:
    """VAE, by way of ComfyUI's own constructor, which takes sizes and tensors under its own names."""
    file, weights = read_weights(folder, "diffusion_pytorch_model")
    weights = dict(_modern_attention(key, tensor) for key, tensor in weights.items())
    with torch.device("meta"):
        shapes = _shapes(AutoencoderKL(ddconfig=size, embed_dim=4))
    levels = len(size["ch_mult"])
    names = {_vae_diffusers_key(name, levels): name for name in shapes}
    _check(file, weights, {d: shapes[name] for d, name in names.items()})

    state = {name: weights[d] for d, name in names.items()}
    vae = comfy.sd.VAE(sd=state, config={"params": {"ddconfig": size, "embed_dim": 4}})
    vae.downscale_ratio = vae.upscale_ratio = 2 ** (levels - 1)
    return vae


def read_weights(folder: Path, *stems: str) -> tuple[Path, dict[str, torch.Tensor]]:
    """A submodel's file (the index of one in several parts) and its tensors. Safetensors and full precision first."""
    for suffix, stem, variant in itertools.product((".safetensors", ".bin"), stems, ("", ".fp16")):
        file = folder / f"{stem}{variant}{suffix}"
        if file.is_file():
            return file, _read_file(file)
        for index in (f"{stem}{suffix}.index{variant}.json", f"{stem}{variant}{suffix}.index.json"):
            if (folder / index).is_file():
                return folder / index, _read_parts(Config.read(folder / index))
    raise ModelFolderError(f"{folder / stems[0]}.safetensors is missing. Download the whole folder again.")


def _read_parts(index: Config) -> dict[str, torch.Tensor]:
    parts = index.get("weight_map")
    if not isinstance(parts, dict) or not all(isinstance(n, str) and n == Path(n).name for n in parts.values()):
        raise index.error("'weight_map' must give a file of this folder for each tensor. Download the folder again.")
    weights: dict[str, torch.Tensor] = {}
    for name in sorted(set(parts.values())):
        weights.update(_read_file(index.path.parent / name))
    return weights


def _read_file(file: Path) -> dict[str, torch.Tensor]:
    if not file.is_file():
        raise ModelFolderError(f"{file} is missing. Download the whole folder again.")
    try:
        with file.open("rb") as opened:
            if opened.read(40).startswith(b"version https://git-lfs"):
                raise ValueError("it is a Git LFS pointer, run 'git lfs pull'")
        weights = comfy.utils.load_torch_file(str(file), safe_load=True)
    except Exception as error:  # whatever a damaged file makes its reader raise; nothing else runs in here
        raise ModelFolderError(f"{file} is damaged ({type(error).__name__}: {error}). Download it again.") from error
    if not isinstance(weights, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in weights.values()):
        raise ModelFolderError(f"{file} holds something else than named tensors. Download it again.")
    return weights


def _check(file: Path, found: dict[str, torch.Tensor], expected: dict[str, tuple[int, ...]]) -> None:
    """Refuse weights that are not exactly those of the config.json beside them."""
    missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    wrong = [key for key in sorted(expected.keys() & found.keys()) if tuple(found[key].shape) != expected[key]]
    if not (missing or unknown or wrong):
        return
    problems = [f"{_some(missing)} missing"] if missing else []
    problems += [f"{_some(unknown)} not known to it"] if unknown else []
    if wrong:
        shape, asked = list(found[wrong[0]].shape), list(expected[wrong[0]])
        problems += [f"{_some(wrong)} of another shape ({shape} instead of {asked})"]
    raise ModelFolderError(
        f"{file} does not fit the config.json beside it: {'; '.join(problems)}. Take both from the same model, and "
        f"merge adapters (LoRA, IP-Adapter) in ComfyUI instead of in the file."
    )


def _some(keys: list[str]) -> str:
    return f"'{keys[0]}'" + (f" and {len(keys) - 1} more" if len(keys) > 1 else "")


def _shapes(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


class _PlainLayers:
    """Layers for a module of which only shapes are wanted. Those of `comfy.ops` may have no weights before loading."""

    Linear, Conv2d, Embedding = torch.nn.Linear, torch.nn.Conv2d, torch.nn.Embedding
    LayerNorm, GroupNorm = torch.nn.LayerNorm, torch.nn.GroupNorm

    @staticmethod
    def conv_nd(dims: int, *args: Any, **options: Any) -> torch.nn.Module:
        return torch.nn.Conv2d(*args, **options)


def _text_weights(folder: Path, name: str, size: dict[str, Any]) -> dict[str, torch.Tensor]:
    file, found = read_weights(folder, "model", "pytorch_model")
    weights = {}
    for key, tensor in found.items():
        # transformers 5 saves a CLIPTextModel without its first name; up to 4.30 there was a constant in the file
        key = key if key.startswith(("text_model.", "text_projection.")) else f"text_model.{key}"
        if not key.endswith("embeddings.position_ids"):
            weights[key] = tensor
    if name != "clip_g":
        # ComfyUI's module has a projection even where the family does not use it.
        weights.setdefault("text_projection.weight", torch.eye(size["hidden_size"]))
    _check(file, weights, _shapes(comfy.clip_model.CLIPTextModel(size, None, "meta", _PlainLayers)))
    return weights


_VAE_NAMES = {
    r"\bdown\.(\d+)\.block\.": r"down_blocks.\1.resnets.",
    r"\bdown\.(\d+)\.downsample\.": r"down_blocks.\1.downsamplers.0.",
    r"\bup\.(\d+)\.block\.": r"up_blocks.\1.resnets.",
    r"\bup\.(\d+)\.upsample\.": r"up_blocks.\1.upsamplers.0.",
    r"\bmid\.block_1\.": "mid_block.resnets.0.",
    r"\bmid\.block_2\.": "mid_block.resnets.1.",
    r"\bmid\.attn_1\.norm\.": "mid_block.attentions.0.group_norm.",
    r"\bmid\.attn_1\.([qkv])\.": r"mid_block.attentions.0.to_\1.",
    r"\bmid\.attn_1\.proj_out\.": "mid_block.attentions.0.to_out.0.",
    r"\bnorm_out\.": "conv_norm_out.",
    r"\bnin_shortcut\.": "conv_shortcut.",
}


def _vae_diffusers_key(name: str, levels: int) -> str:
    """diffusers' name of a tensor of ComfyUI's VAE; diffusers counts the decoder's levels from the latent."""
    for pattern, replacement in _VAE_NAMES.items():
        name = re.sub(pattern, replacement, name)
    return re.sub(r"up_blocks\.(\d+)", lambda match: f"up_blocks.{levels - 1 - int(match[1])}", name)


def _modern_attention(key: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """A VAE tensor under today's name (diffusers renamed them in 0.15), linear layers as the 1x1 convolutions of SD."""
    if ".attentions." not in key:
        return key, tensor
    for old, new in {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}.items():
        key = key.replace(f".{old}.", f".{new}.")
    return key, tensor[:, :, None, None] if tensor.ndim == 2 else tensor


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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    """A positive whole number, and no larger than a layer of any of these models is wide."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**20


def _roots() -> Iterable[str]:
    return folder_paths.get_folder_paths("diffusers")


def _folders() -> dict[str, Path]:
    """Every loadable folder by its name. ComfyUI takes the first of several folders with one name, and so do we."""
    found = {DEMO: DEMO_FOLDER}
    for root in _roots():
        inside = [Path(where) for where, _, files in os.walk(root) if "model_index.json" in files and where != root]
        for path in sorted(inside):
            found.setdefault(path.relative_to(root).as_posix(), path)
    return found
