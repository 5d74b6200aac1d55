"""The UNet: noisy latents, a timestep embedding and text in, predicted noise out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..graph.timestep import hoist_timestep_embedding
from .trace import TraceInput, trace

if TYPE_CHECKING:
    import openvino as ov
    import torch


def timestep_embedding(timesteps: torch.Tensor, width: int) -> torch.Tensor:
    """Sinusoidal embedding of the timesteps: float32 [batch] -> float32 [batch, width], cosines first.

    Ho, Jain and Abbeel (2020), in the order that Stable Diffusion uses. Stays in FP32 on the CPU: t reaches 1000, and
    sin(t) of an FP16 t has an error of up to 0.25.
    """
    import torch

    half = width // 2
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
    angles = timesteps.float()[:, None] * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def convert_unet(
    module: torch.nn.Module, in_channels: int, context_width: int, vector_width: int | None = None
) -> ov.Model:
    """Convert `module(sample, timestep, context[, vector])` to dynamic IR.

    Inputs of the IR: sample [batch, in_channels, height, width]; timestep_embedding [batch, model channels], see
    `timestep_embedding`; context [batch, tokens, context_width]; vector [batch, vector_width] where the
    architecture has one (SDXL's pooled text and sizes). Output: noise [batch, out channels, height, width].
    """
    import torch

    # 16x16: smaller than any real latent, and large enough for four halvings
    inputs = [
        TraceInput("sample", torch.randn(2, in_channels, 16, 16), (-1, in_channels, -1, -1)),
        TraceInput("timestep", torch.tensor([1.0, 500.0]), (-1,)),
        TraceInput("context", torch.randn(2, 77, context_width), (-1, -1, context_width)),
    ]
    if vector_width:
        inputs.append(TraceInput("vector", torch.randn(2, vector_width), (-1, vector_width)))
    return hoist_timestep_embedding(trace(module, inputs, ["noise"], "UNet"), "timestep")
