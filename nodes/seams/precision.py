"""One sampling run in two precisions, and where the UNet's values part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ...ov_backends.plan import DevicePlan
from ...ov_backends.quantize.calibration import Recorder
from ...ov_backends.quantize.gate import cosine
from ...ov_backends.runtime.quantization import divergence
from ...ov_backends.runtime.store import store
from .. import host
from .unet import place_unet, source_of

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher


class PrecisionComparison:
    """Samples in floating point, recording, then in the precision of `plan`; decodes both.

    sample: MODEL -> LATENT, the same run each time; decode: LATENT -> image float [batch, height, width, 3] in 0..1.
    """

    def __init__(
        self,
        model: ModelPatcher,
        plan: DevicePlan,
        sample: Callable[[ModelPatcher], dict],
        decode: Callable[[dict], torch.Tensor],
    ):
        latents = [sample(place_unet(model, plan, Recorder())), sample(place_unet(model, plan))]
        self._latents = [latent["samples"] for latent in latents]
        self._images = [decode(latent).cpu().float() for latent in latents]
        source = source_of(model)
        self._divergence = divergence(source, plan.unet.precision, store().cache, host.progress)
        self._report = host.current_report().submodel("unet", plan.unet.device)

    def picture(self) -> torch.Tensor:
        """Floating point on the left, quantized on the right: float [batch, height, 2 * width, 3]."""
        return torch.cat(self._images, dim=2)

    def text(self) -> str:
        """The numbers, in lines."""
        one, other = self._images
        greatest = 255 * float((one - other).abs().max())
        squared = float(((one - other) ** 2).mean())
        psnr = f"{-10 * torch.log10(torch.tensor(squared)).item():.1f} dB" if squared > 0 else "infinite"
        shift = [255 * float(channel) for channel in (other - one).mean(dim=(0, 1, 2))[:3]]
        colours = ", ".join(f"{name} {value:+.2f}" for name, value in zip(("red", "green", "blue"), shift, strict=True))
        latent = cosine(*(latent.cpu().float().numpy() for latent in self._latents))
        return "\n".join(
            [
                f"Latent: cosine {latent:.5f}",
                f"Image: PSNR {psnr}, greatest difference {greatest:.0f} of 255, colour shift {colours}",
                self._report.line(),
                "One recorded call, layer by layer:",
                self._divergence,
            ]
        )
