"""The text encoder: token embeddings in, every hidden state out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .trace import TraceInput, trace

if TYPE_CHECKING:
    import openvino as ov
    import torch


def convert_text_encoder(module: torch.nn.Module, width: int) -> ov.Model:
    """Convert `module(embeds)` to IR with a free batch of 77 tokens.

    Input: embeds [batch, 77, width], token embeddings without positions, so that textual inversions can be spliced in
    before. Outputs: last [batch, 77, width], after the final LayerNorm; hidden [batch, layers, 77, width], the output
    of each layer before it, so that any clip skip can be served by one compiled model.
    """
    import torch

    embeds = TraceInput("embeds", torch.randn(2, 77, width), (-1, 77, width))
    return trace(module, [embeds], ["last", "hidden"], "text encoder")
