"""Diffusers folders of the SD 1.x, SD 2.x and SDXL families as ComfyUI's own MODEL, CLIP and VAE.

ComfyUI recognises a model by the sizes of its tensors, and knows the published sizes only. Here every decision is
taken from the folder's config.json files, so any size of these families loads; the classes, the devices and the
dtypes are ComfyUI's. Nothing is guessed: a setting that ComfyUI's modules cannot express, and a tensor that does not
fit its config.json, are errors that name the file and the key.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.model_patcher
import comfy.sd
import comfy.supported_models
import comfy.supported_models_base
import comfy.text_encoders.sd2_clip
import comfy.utils
import folder_paths

from ..ov_backends.errors import ModelFolderError
from .folder_architecture import text_architecture, unet_architecture, vae_architecture
from .folder_config import Config
from .folder_family import Family, choose_family, latent_format, sampling_settings
from .folder_weights import text_weights, unet_weights, vae_weights

log = logging.getLogger("ovnpu")

DEMO = "demo"
DEMO_FOLDER = Path(__file__).parent.parent / "demo_model"


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


def load_unet(folder: Path, model_config: comfy.supported_models.BASE) -> comfy.model_patcher.ModelPatcher:
    """MODEL, in the steps of `comfy.sd.load_diffusion_model_state_dict` after it has recognised a model."""
    weights = unet_weights(folder, model_config.unet_config)
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
    model.load_model_weights(weights, "")
    return comfy.model_patcher.ModelPatcher(model, load_device=load_device, offload_device=offload_device)


def load_clip(
    path: Path, family: Family, sizes: dict[str, dict[str, Any]], target: comfy.supported_models_base.ClipTarget
) -> comfy.sd.CLIP:
    """CLIP of one or two text encoders, by ComfyUI's name for each (clip_l, clip_h, clip_g)."""
    weights = {name: text_weights(path / folder, name, sizes[name]) for name, folder in family.encoders.items()}
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


def load_vae(folder: Path, size: dict[str, Any]) -> comfy.sd.VAE:
    """VAE, by way of ComfyUI's own constructor, which takes sizes and tensors under its own names."""
    vae = comfy.sd.VAE(sd=vae_weights(folder, size), config={"params": {"ddconfig": size, "embed_dim": 4}})
    vae.downscale_ratio = vae.upscale_ratio = 2 ** (len(size["ch_mult"]) - 1)
    return vae


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
