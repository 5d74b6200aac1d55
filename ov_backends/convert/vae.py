"""The VAE's two halves: latents to pixels and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .trace import TraceInput, trace

if TYPE_CHECKING:
    import openvino as ov
    import torch


def convert_vae_decoder(module: torch.nn.Module, latent_channels: int) -> ov.Model:
    """Convert `module(latent)`: latent [batch, latent_channels, h, w] -> pixels [batch, 3, 8 h, 8 w], -1..1."""
    import torch

    latent = TraceInput("latent", torch.randn(1, latent_channels, 16, 16), (-1, latent_channels, -1, -1))
    return trace(module, [latent], ["pixels"], "VAE decoder")


def convert_vae_encoder(module: torch.nn.Module) -> ov.Model:
    """Convert `module(pixels)`: pixels [batch, 3, height, width], -1..1 -> latent [batch, channels, h / 8, w / 8]."""
    import torch

    pixels = TraceInput("pixels", torch.rand(1, 3, 64, 64) * 2 - 1, (-1, 3, -1, -1))
    return trace(module, [pixels], ["latent"], "VAE encoder")
