"""The compiled submodels in ComfyUI's own MODEL, CLIP and VAE, in the test process, with the demo model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from comfy_in_process import import_comfy
from ovpack.ov_backends.compiler.cache import CompileCache
from ovpack.ov_backends.plan import DevicePlan, SubmodelPlan
from ovpack.ov_backends.runtime.store import SubmodelStore

CPU = SubmodelPlan("CPU", "fp32")
CPU_PLAN = DevicePlan(CPU, CPU, CPU)


def load_seams() -> SimpleNamespace:
    """The pack's ComfyUI side and the demo model's MODEL, CLIP and VAE."""
    import_comfy()
    import ovpack.nodes.seams.precision  # noqa: F401  use_store gives it a store
    from ovpack.nodes import folder, host
    from ovpack.nodes.seams.clip import place_clip
    from ovpack.nodes.seams.unet import place_unet
    from ovpack.nodes.seams.vae import place_vae

    model, clip, vae = folder.load_folder(folder.find_folder("demo"))
    return SimpleNamespace(
        model=model, clip=clip, vae=vae, host=host, place_unet=place_unet, place_clip=place_clip, place_vae=place_vae
    )


def use_store(seams: SimpleNamespace, cache: CompileCache, patch: pytest.MonkeyPatch) -> None:
    """No compiled submodels, an empty report, and `cache`."""
    store = SubmodelStore(cache)
    for module in ("unet", "clip", "vae", "weights", "precision"):
        patch.setattr(f"ovpack.nodes.seams.{module}.store", lambda: store)
    seams.host._reports.clear()


def encode(clip, text: str):
    return clip.encode_from_tokens(clip.tokenize(text), return_pooled=True)


def sample(seams, model, cfg: float = 5.0, size=(16, 16), batch: int = 1, steps: int = 2) -> torch.Tensor:
    import comfy.sample

    conds = [[[encode(seams.clip, text)[0], {}]] for text in ("a red star on a blue background", "")]
    latent = torch.zeros(batch, 4, *size)
    noise = comfy.sample.prepare_noise(latent, 3)
    return comfy.sample.sample(model, noise, steps, cfg, "euler", "normal", *conds, latent, seed=3, disable_pbar=True)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 5e-3) -> bool:
    """Equal up to what rounding the weights to FP16 costs, relative to the spread of the values."""
    return bool((a - b).abs().max() <= tolerance * b.std())
