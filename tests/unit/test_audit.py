"""The audit sees what FP16 and BF16 do to a model's numbers, layer by layer, in bounded memory."""

from __future__ import annotations

import json

import numpy as np
import openvino as ov
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openvino import opset13 as ops
from ovpack.ov_backends import audit
from ovpack.ov_backends.audit import FP16_SUBNORMAL, FP16_TINY, audit_activations, measure_range
from ovpack.ov_backends.errors import TensorError

floats = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=60)


def named(node, name: str):
    node.set_friendly_name(name)
    return node


def scaling_model() -> ov.Model:
    """x [?, 8] -> times 1e4 -> plus 1 -> times 1e-12; and a branch that only depends on weights."""
    x = ops.parameter([-1, 8], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    large = named(ops.multiply(x, ops.constant(np.float32(1e4))), "large")
    weights = named(ops.add(ops.constant(np.ones(8, np.float32)), ops.constant(np.float32(0))), "weights_only")
    shifted = named(ops.add(large, weights), "shifted")
    small = named(ops.multiply(shifted, ops.constant(np.float32(1e-12))), "small")
    left, right = ops.split(small, ops.constant(1), 2).outputs()
    y = named(ops.concat([right, left], 1), "joined")
    return ov.Model([y], [x], "scaling")


def absolute_model() -> ov.Model:
    """y = x, by way of six layers."""
    x = ops.parameter([-1, 8], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    y = x
    for _ in range(6):
        y = ops.abs(y)
    return ov.Model([y], [x], "absolute")


def silent(text: str) -> None:
    pass


@settings(max_examples=100, deadline=None)
@given(floats)
def test_ranges_are_those_of_the_ieee_formats(values):
    array = np.array(values, np.float32)
    found = measure_range("layer", "Add", array)
    finite = array[np.isfinite(array)]
    size = np.abs(finite)
    assert found.not_finite == array.size - finite.size
    assert found.overflow == int((size > 65504).sum())
    assert found.max_abs == pytest.approx(size.max(initial=0))
    assert found.flushed == ((size > 0) & (size < FP16_SUBNORMAL)).sum() / array.size
    assert found.subnormal == ((size >= FP16_SUBNORMAL) & (size < FP16_TINY)).sum() / array.size
    # what becomes 0 in FP16 is among what is counted as flushed, and what is counted overflows or is a rounding away
    half = torch.from_numpy(finite).half()
    assert found.flushed * array.size >= int(((half == 0) & (torch.from_numpy(finite) != 0)).sum()) - 1e-9
    assert found.overflow >= int(half.isinf().sum())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(-3, 3))
def test_rounding_errors_are_those_of_torch(seed, exponent):
    values = (np.random.default_rng(seed).standard_normal(500) * 10**exponent).astype(np.float32)
    tensor = torch.from_numpy(values).double()
    found = measure_range("layer", "Add", values)
    for error, dtype in ((found.fp16_error, torch.float16), (found.bf16_error, torch.bfloat16)):
        expected = (torch.from_numpy(values).to(dtype).double() - tensor).norm() / tensor.norm()
        assert error == pytest.approx(float(expected), rel=1e-6)
    assert 1e-4 < found.fp16_error < 5e-4 < 1e-3 < found.bf16_error < 4e-3, "2**-11 and 2**-8 bound the two"


def test_long_arrays_are_measured_in_pieces(monkeypatch):
    values = np.random.default_rng(0).standard_normal((10, 10, 10)).astype(np.float32) * 1e5
    whole = measure_range("layer", "Add", values)
    monkeypatch.setattr(audit, "CHUNK", 77)
    pieces = measure_range("layer", "Add", values)
    assert pieces.shape == (10, 10, 10) and pieces.overflow == whole.overflow > 0
    assert pieces.bf16_error == pytest.approx(whole.bf16_error)
    assert measure_range("layer", "Add", np.zeros((0, 3), np.float32)).max_abs == 0


@pytest.mark.parametrize("group_bytes", [1, 200, 10**9], ids=["one each", "some each", "all at once"])
def test_every_layer_is_measured_however_few_are_read_at_once(group_bytes):
    x = np.linspace(1, 16, 16, dtype=np.float32).reshape(2, 8)
    model, texts = scaling_model(), []
    found = audit_activations(model, {"x": x}, texts.append, group_bytes)
    layers = {layer.name: layer for layer in found.layers}
    assert list(layers)[:3] == ["large", "shifted", "small"] and list(layers)[-1] == "joined"
    assert len(layers) == 6, "both outputs of the split count; weights and the parameter do not"
    assert layers["large"].max_abs == pytest.approx(1.6e5) and layers["large"].overflow == 10
    assert layers["large"].shape == (2, 8) and layers["large"].type == "Multiply"
    assert layers["small"].overflow == 0 and layers["small"].flushed == pytest.approx(5 / 16)
    assert [layer.name for layer in found.overflowing] == ["shifted", "large"], "the largest first"
    assert len(texts) == {1: 6, 200: 2, 10**9: 1}[group_bytes]
    assert [output.get_any_name() for output in model.inputs] == ["x"] and len(model.outputs) == 1


def test_the_text_names_layers_numbers_and_the_way_out():
    found = audit_activations(scaling_model(), {"x": np.full((1, 8), 7.1, np.float32)}, silent)
    text = str(found)
    assert "2 of 6 layers exceed 65504, the largest FP16 number: shifted (max 7.1e4), large (max 7.1e4)." in text
    assert "bf16 or fp32" in text and found.advice in text
    whole = json.loads(json.dumps(found.as_json()))
    assert whole["model"] == "scaling" and len(whole["layers"]) == 6 and whole["layers"][0]["overflow"] == 8


@pytest.mark.parametrize(
    "model, value, said",
    [
        (absolute_model, 1.0, "fp16 holds every value"),
        (absolute_model, 1e-8, "6 of 6 layers lose over 1 % of their values to 0 in FP16"),
        (scaling_model, float("nan"), "6 of 6 layers hold NaN or infinity in fp32 already"),
        (scaling_model, 1e36, "hold NaN or infinity in fp32 already: large (8 values)"),
    ],
)
def test_each_trouble_has_its_words(model, value, said):
    assert said in str(audit_activations(model(), {"x": np.full((1, 8), value, np.float32)}, silent))


def test_torch_and_half_inputs_are_taken_and_weights_in_fp16_are_no_layer(tmp_path):
    ov.save_model(scaling_model(), tmp_path / "model.xml", compress_to_fp16=True)
    model = ov.Core().read_model(tmp_path / "model.xml")
    found = audit_activations(model, {"x": torch.ones(3, 8)}, silent)
    assert all(layer.type != "Convert" for layer in found.layers) and found.layers[0].shape == (3, 8)


def test_cancel_passes_between_two_groups():
    class CancelledError(Exception):
        pass

    def cancel(text: str) -> None:
        if "part 3" in text:
            raise CancelledError

    with pytest.raises(CancelledError):
        audit_activations(scaling_model(), {"x": np.ones((1, 8), np.float32)}, cancel, group_bytes=1)


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({"y": np.ones((1, 8), np.float32)}, "scaling has the inputs x; got y"),
        ({}, "got none"),
        ({"x": np.ones((1, 9), np.float32)}, r"scaling does not take inputs of these shapes (x [1, 9])"),
    ],
)
def test_wrong_inputs_are_named(inputs, message):
    with pytest.raises(TensorError) as caught:
        audit_activations(scaling_model(), inputs, silent)
    assert message in str(caught.value)
