"""Which family a diffusers folder is of, what its UNet predicts and how its latents are scaled, in ComfyUI's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import comfy.latent_formats
import comfy.supported_models
import torch
from comfy.model_base import ModelType

from .folder_config import Config, is_number


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
        if not all(isinstance(v, list) and len(v) == 4 and all(map(is_number, v)) for v in (mean, deviation)):
            raise config.error("'latents_mean' and 'latents_std' must be lists of 4 numbers.")
        standard = comfy.latent_formats.SDXL_Playground_2_5()
        standard.latents_mean = torch.tensor(mean).view(1, 4, 1, 1)
        standard.latents_std = torch.tensor(deviation).view(1, 4, 1, 1)
    standard.scale_factor = config.number("scaling_factor", 0.18215)
    return standard


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
