"""Every operator is counted where it runs, and every crossing between devices."""

from __future__ import annotations

import json

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from ovpack.ov_backends.graph.placement import Placement, everything_on, place
from ovpack.ov_backends.report import FallenOperator


@pytest.fixture
def model() -> ov.Model:
    """product -> curve -> sum, where `product` also feeds `sum`; the weights are FP16 behind a Convert."""
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    weights = ops.convert(ops.constant(np.eye(4, dtype=np.float16)), "f32", name="decompressed")
    product = ops.matmul(x, weights, False, False, name="product")
    curve = ops.tanh(product, name="curve")
    return ov.Model([ops.add(product, curve, name="sum")], [x], "m")


def without(*lacking: str):
    """A plugin that takes every operator but these."""

    def query(model: ov.Model, device: str) -> dict[str, str]:
        return {n.get_friendly_name(): device for n in model.get_ops() if n.get_friendly_name() not in lacking}

    return query


def test_weights_inputs_and_results_are_not_counted(model):
    assert everything_on(model, "NPU") == Placement({"NPU": 3})
    assert place(model, "NPU", without()) == Placement({"NPU": 3})


def test_a_weight_conversion_is_no_fallback(model):
    assert place(model, "NPU", without("decompressed")).fallback == ()


def test_what_the_device_lacks_is_listed_by_name_and_type(model):
    placement = place(model, "NPU", without("curve"))
    assert placement.fallback == (FallenOperator("curve", "Tanh", "CPU"),)
    assert dict(placement.devices) == {"NPU": 2, "CPU": 1}


@pytest.mark.parametrize(
    "lacking, switches",
    [
        ((), 0),
        (("curve",), 2),  # there and back
        (("sum",), 2),  # two tensors go over
        (("product",), 1),  # one tensor with two users there goes over once
        (("curve", "sum"), 1),
        (("product", "curve", "sum"), 0),
    ],
)
def test_switches_are_tensors_that_change_device(model, lacking, switches):
    assert place(model, "NPU", without(*lacking)).switches == switches


def test_a_real_plugin_answers_by_the_same_names(model):
    assert place(model, "CPU", ov.Core().query_model) == Placement({"CPU": 3})


def test_a_placement_survives_json(model):
    placement = place(model, "NPU", without("curve"))
    assert Placement.from_json(json.loads(json.dumps(placement.as_json()))) == placement
