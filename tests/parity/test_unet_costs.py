"""Multiply-accumulates of Stable Diffusion 1.5's UNet at 512x512, against what torch counts without computing."""

from __future__ import annotations

import openvino as ov
import pytest
import torch
from comfy_in_process import import_comfy
from torch.utils.flop_counter import FlopCounterMode

SEED = 7
EDGE = 64
"""Latent edge of a 512x512 image."""
TOKENS, CONTEXT_WIDTH, EMBEDDING_WIDTH = 77, 768, 320


@pytest.fixture(scope="module")
def unet_ir() -> ov.Model:
    """With random weights: OpenVINO makes one of layers whose weights are equal."""
    import_comfy()
    from ovpack.nodes.seams.unet import _ForTracing
    from ovpack.ov_backends.convert.unet import convert_unet
    from random_models import sd15_model

    return convert_unet(_ForTracing(sd15_model(SEED).model.diffusion_model).eval(), 4, CONTEXT_WIDTH)


@pytest.fixture(scope="module")
def empty_unet() -> torch.nn.Module:
    """The same module with shapes and without memory."""
    import_comfy()
    import comfy.supported_models
    from ovpack.nodes.seams.unet import _ForTracing
    from random_models import SD15_UNET

    config = comfy.supported_models.SD15(SD15_UNET)
    config.set_inference_dtype(torch.float32, None)
    return _ForTracing(config.get_model({}, "", device=torch.device("meta")).diffusion_model).eval()


@pytest.mark.e2e
@pytest.mark.parametrize("batch", [1, 2])
def test_the_unet_has_the_macs_that_torch_counts(empty_unet, unet_ir, batch):
    from ovpack.ov_backends.graph.costs import operator_costs, totals

    unet_ir.reshape(
        {
            "sample": [batch, 4, EDGE, EDGE],
            "timestep_embedding": [batch, EMBEDDING_WIDTH],
            "context": [batch, TOKENS, CONTEXT_WIDTH],
        }
    )
    counted = totals(operator_costs(unet_ir))
    assert counted.macs == pytest.approx(macs_by_torch(empty_unet, batch), rel=0.01)
    weights = sum(parameter.numel() for parameter in empty_unet.parameters())
    assert counted.weight_bytes == pytest.approx(4 * weights, rel=0.01), "whatever the batch"


@pytest.mark.e2e
def test_attention_is_a_tenth_and_more_of_the_work(unet_ir):
    """Two products for each of 16 blocks with themselves and 16 with the text; torch's count has them too."""
    from ovpack.ov_backends.graph.costs import operator_costs, totals

    costs = operator_costs(unet_ir)
    attention = [cost for cost in costs if cost.type == "ScaledDotProductAttention"]
    assert len(attention) == 32
    assert totals(attention).macs > 0.1 * totals(costs).macs


def macs_by_torch(module: torch.nn.Module, batch: int) -> int:
    """Counted by torch operator by operator, on tensors that have shapes and no memory."""
    inputs = (
        torch.empty(batch, 4, EDGE, EDGE, device="meta"),
        torch.empty(batch, device="meta"),
        torch.empty(batch, TOKENS, CONTEXT_WIDTH, device="meta"),
    )
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops() // 2
