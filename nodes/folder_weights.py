"""The tensors of each submodel of a diffusers folder under ComfyUI's names, checked against its config.json."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import comfy.clip_model
import comfy.utils
import torch
from comfy.ldm.models.autoencoder import AutoencoderKL
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

from ..ov_backends.errors import ModelFolderError
from .folder_config import Config


def unet_weights(folder: Path, size: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The UNet's tensors under the names of ComfyUI's UNetModel."""
    file, weights = read_weights(folder, "diffusion_pytorch_model")
    shapes = _shapes(UNetModel(**size, device="meta", operations=_PlainLayers))
    names = {d: name for d, name in comfy.utils.unet_to_diffusers(size).items() if name in shapes}
    # The map has two names for the embedding of added conditions; with 'class_embed_type' refused, one is left.
    names = {d: name for d, name in names.items() if not d.startswith("class_embedding.")}
    _check(file, weights, {d: shapes[name] for d, name in names.items()})
    return {names[d]: tensor for d, tensor in weights.items()}


def text_weights(folder: Path, name: str, size: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A text encoder's tensors under the names of ComfyUI's CLIPTextModel; name: clip_l, clip_h or clip_g."""
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


def vae_weights(folder: Path, size: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The VAE's tensors under the names of ComfyUI's AutoencoderKL."""
    file, weights = read_weights(folder, "diffusion_pytorch_model")
    weights = dict(_modern_attention(key, tensor) for key, tensor in weights.items())
    with torch.device("meta"):
        shapes = _shapes(AutoencoderKL(ddconfig=size, embed_dim=4))
    levels = len(size["ch_mult"])
    names = {_vae_diffusers_key(name, levels): name for name in shapes}
    _check(file, weights, {d: shapes[name] for d, name in names.items()})
    return {name: weights[d] for d, name in names.items()}


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
