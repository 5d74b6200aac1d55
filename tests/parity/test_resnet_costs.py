"""Multiply-accumulates and bytes of ResNet-50, against what torch counts while it computes."""

from __future__ import annotations

from collections import Counter

import openvino as ov
import pytest
import torch
from ovpack.ov_backends.graph.costs import operator_costs, totals

pytestmark = pytest.mark.e2e

RESNET50_MACS = 4.09e9
"""At 224x224, as the field has it."""


@pytest.fixture(scope="module")
def resnet() -> torch.nn.Module:
    import torchvision

    return torchvision.models.resnet50(weights=None).eval()


@pytest.fixture(scope="module")
def resnet_ir(resnet) -> ov.Model:
    return ov.convert_model(resnet, example_input=torch.zeros(1, 3, 224, 224), input=[[1, 3, 224, 224]])


def macs_by_hooks(module: torch.nn.Module, *inputs: torch.Tensor) -> int:
    """Counted in torch while it runs: each output element of a layer is a sum over one kernel."""
    found = Counter()

    def count(layer, _, output):
        found["macs"] += output.numel() * layer.weight[0].numel()

    hooks = [m.register_forward_hook(count) for m in module.modules() if hasattr(m, "weight") and m.weight.ndim > 1]
    with torch.no_grad():
        module(*inputs)
    for hook in hooks:
        hook.remove()
    return found["macs"]


def test_resnet50_has_the_macs_that_torch_counts(resnet, resnet_ir):
    counted = totals(operator_costs(resnet_ir)).macs
    assert counted == pytest.approx(macs_by_hooks(resnet, torch.zeros(1, 3, 224, 224)), rel=0.01)
    assert counted == pytest.approx(RESNET50_MACS, rel=0.01)


def test_resnet50_reads_its_weights_once(resnet, resnet_ir):
    counted = totals(operator_costs(resnet_ir)).weight_bytes
    parameters = sum(p.numel() for p in resnet.parameters())
    # batch normalisation is folded into scale and shift, which takes a few numbers a channel
    assert counted == pytest.approx(4 * parameters, rel=0.01)


def test_batch_multiplies_macs_and_activations_and_not_weights(resnet_ir):
    model = resnet_ir.clone()
    model.reshape([3, 3, 224, 224])
    once, now = totals(operator_costs(resnet_ir)), totals(operator_costs(model))
    assert now.macs == 3 * once.macs and now.activation_bytes == 3 * once.activation_bytes
    assert now.weight_bytes == pytest.approx(once.weight_bytes, abs=100), "all but constants that hold a shape"
