"""INT8 by nncf, the accuracy gate, and the search for the layer that goes wrong."""

from __future__ import annotations

import nncf
import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from ovpack.ov_backends import progress
from ovpack.ov_backends.errors import CalibrationError, CompareError, QuantizeError
from ovpack.ov_backends.quantize import int8
from ovpack.ov_backends.quantize.decompress import decompress, weight_count
from ovpack.ov_backends.quantize.divergence import compare_layers
from ovpack.ov_backends.quantize.gate import Gate, Runner, colour_shift, cosine
from ovpack.ov_backends.quantize.int8 import Options, quantize, split
from ovpack.ov_backends.quantize.saturation import cpu_saturates
from ovpack.ov_backends.quantize.scope import float_layers, is_quantized, layers
from quantizable import Net, plain, plant_outlier, samples, to_ir

pytestmark = pytest.mark.e2e


def quiet(text: str) -> None:
    pass


def constant_types(model: ov.Model) -> set[str]:
    return {
        n.get_output_element_type(0).get_type_name()
        for n in model.get_ordered_ops()
        if n.get_type_name() == "Constant" and len(n.get_output_shape(0)) > 1
    }


@pytest.fixture(scope="module")
def quantized():
    return quantize(plain(), "int8", samples(), progress=quiet)


def fed_by_fake_quantize(model: ov.Model) -> dict[str, bool]:
    return {
        layer.get_friendly_name(): layer.input_value(0).get_node().get_type_name() == "FakeQuantize"
        for layer in layers(model)
    }


def test_int8_passes_the_gate_on_inputs_it_was_not_calibrated_on(quantized):
    assert quantized.gate.passed and quantized.gate.worst >= 0.99
    assert len(quantized.gate.cosines) == 3 and quantized.gate.restored == []
    assert "i8" in constant_types(quantized.model) or "u8" in constant_types(quantized.model)


def test_the_given_model_stays_as_it_is(quantized):
    assert is_quantized(plain()) == "" and is_quantized(quantized.model)


def test_the_time_path_and_the_last_convolution_stay_in_float(quantized):
    kept = float_layers(plain())
    assert quantized.kept_float == kept
    # the first time layer, one in each of the three blocks, the last convolution
    assert len(kept) == 5
    fed = fed_by_fake_quantize(quantized.model)
    assert not any(fed[name] for name in kept)
    assert sum(fed.values()) >= 15


@pytest.mark.parametrize(("fix", "most"), [(True, 64), (False, 127)])
def test_a_bit_of_the_weights_stays_free_for_cpus_that_saturate(fix, most):
    model = quantize(plain(), "int8", samples(), Options(overflow_fix=fix, limit=0), quiet).model
    stored = [
        np.abs(node.data.astype(int)).max()
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Constant" and node.get_output_element_type(0).get_type_name() == "i8"
    ]
    assert len(stored) >= 15 and most - 8 <= max(stored) <= most + 1


def test_saturation_is_measured_on_this_cpu():
    assert cpu_saturates() in (True, False)
    assert Options().needs_overflow_fix == cpu_saturates()
    assert ("7-bit" in str(Options())) == cpu_saturates()


def test_keys_and_values_of_the_text_stay_in_float():
    """Their ranges are those of the prompts that were recorded; every other prompt would be clipped."""
    context, sample = (ops.parameter([1, 8, 8], ov.Type.f32, name=name) for name in ("context", "sample"))
    for parameter in (context, sample):
        parameter.output(0).set_names({parameter.get_friendly_name()})
    weights = ops.constant(np.eye(8, dtype=np.float32))
    key = ops.matmul(ops.relu(context), weights, False, False, name="key")
    query = ops.matmul(sample, weights, False, False, name="query")
    product = ops.matmul(query, key, False, True, name="product")
    assert float_layers(ov.Model([product], [sample, context])) == ["key"]


def test_softmax_and_normalization_are_fed_and_feed_float(quantized):
    for node in quantized.model.get_ordered_ops():
        if node.get_type_name() in ("Softmax", "MVN", "GroupNormalization"):
            assert node.input_value(0).get_node().get_type_name() != "FakeQuantize", node.get_friendly_name()


@pytest.mark.parametrize(
    ("precision", "types", "least"), [("int8-weights", {"u8", "i8"}, 0.9999), ("int4-weights", {"i4", "u4"}, 0.95)]
)
def test_weights_only_needs_no_samples_and_quantizes_no_activation(precision, types, least):
    result = quantize(plain(), precision, options=Options(group_size=16), progress=quiet)
    assert result.gate.worst is None and result.gate.passed and "not measured" in result.gate.text()
    assert constant_types(result.model) & types
    assert not any(fed_by_fake_quantize(result.model).values())
    measured = quantize(plain(), precision, samples(), Options(group_size=16, limit=0), quiet)
    assert measured.gate.worst >= least


@pytest.mark.parametrize("precision", ["int8", "int8-weights"])
def test_a_quantized_model_is_never_quantized_again(quantized, precision):
    with pytest.raises(QuantizeError, match="quantized already"):
        quantize(quantized.model, precision, samples(), progress=quiet)
    compressed = quantize(plain(), "int8-weights", progress=quiet).model
    with pytest.raises(QuantizeError, match="quantized already"):
        quantize(compressed, precision, samples(), progress=quiet)


def test_integer_tables_are_not_taken_for_quantized_weights():
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    table = ops.constant(np.arange(8, dtype=np.int8).reshape(2, 4))
    picked = ops.gather(table, ops.constant(np.int32(1)), ops.constant(np.int32(0)))
    model = ov.Model([ops.add(x, ops.convert(picked, "f32"))], [x])
    assert is_quantized(model) == ""


def test_a_model_without_layers_is_refused():
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    with pytest.raises(QuantizeError, match="nothing to quantize"):
        quantize(ov.Model([ops.relu(x)], [x]), "int8", [{"x": np.ones((1, 4), np.float32)}], progress=quiet)


def test_no_samples_is_an_error_and_few_are_a_warning(caplog):
    with pytest.raises(CalibrationError, match="needs recorded inputs"):
        quantize(plain(), "int8", [], progress=quiet)
    quantize(plain(), "int8", samples(3), progress=quiet)
    assert "only 3 samples" in caplog.text


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_in_a_sample_is_named(bad):
    given = samples(6)
    given[4]["sample"][0, 1, 2, 3] = bad
    with pytest.raises(CalibrationError, match=r"sample 4 has NaN or infinity in input 'sample'"):
        quantize(plain(), "int8", given, progress=quiet)


def test_samples_of_several_sizes_calibrate_one_model():
    result = quantize(plain(), "int8", [*samples(6), *samples(6, 12)], progress=quiet)
    assert result.gate.passed


def test_every_fourth_sample_is_held_out():
    given = samples(10)
    calibration, held_out = split(given)
    assert held_out == [given[3], given[7]] and len(calibration) == 8
    assert split(given[:7]) == (given[:7], given[:7])


def test_what_nncf_leaves_alone_is_listed(quantized):
    assert quantized.unsupported == []
    x = ops.parameter([1, 4, 8], ov.Type.f32, name="x")
    weights = [ops.constant(np.random.default_rng(n).standard_normal((8, 8)).astype(np.float32)) for n in (0, 1)]
    summed = ops.einsum([ops.matmul(x, weights[0], False, False, name="product"), weights[1]], "bij,jk->bik")
    summed.set_friendly_name("sum")
    given = [{"x": np.random.default_rng(n).standard_normal((1, 4, 8)).astype(np.float32)} for n in range(4)]
    found = quantize(ov.Model([summed], [x]), "int8", given, progress=quiet)
    assert found.gate.passed and found.unsupported == ["sum"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), r"not enough memory to quantize the UNet \(\d+\.\d GB are free\).*fewer or smaller calls"),
        (RuntimeError("Check failed\nstd::bad_alloc"), "not enough memory to quantize the UNet"),
        (
            RuntimeError("Check failed\nno such operation"),
            "UNet could not be quantized: no such operation. Choose fp16",
        ),
    ],
)
@pytest.mark.parametrize("where", ["nncf.quantize", "ovpack.ov_backends.quantize.int8.Runner"])
def test_what_stops_nncf_or_the_check_is_said(monkeypatch, error, said, where):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(where, fail)
    with pytest.raises(QuantizeError, match=said):
        quantize(plain(), "int8", samples(4), progress=quiet, title="UNet")


def test_too_little_memory_is_said_before_it_runs_out(monkeypatch):
    monkeypatch.setattr(int8, "free_bytes", lambda: 100_000)
    said = r"Quantizing the UNet to INT8 takes about 0\.\d GB of memory, and 0\.0 GB are free.*int8-weights"
    with pytest.raises(QuantizeError, match=said):
        quantize(plain(), "int8", samples(4), progress=quiet, title="UNet")
    assert quantize(plain(), "int8-weights", progress=quiet).gate.passed


def test_weights_are_decompressed_as_they_are_computed_with(tmp_path):
    ov.save_model(plain(), tmp_path / "half.xml", compress_to_fp16=True)
    model = ov.Core().read_model(tmp_path / "half.xml")
    first, *others = (layer.get_friendly_name() for layer in layers(model))
    found = decompress(model.clone(), but=[first])
    kinds = {layer.get_friendly_name(): layer.input_value(1).get_node().get_type_name() for layer in layers(found)}
    assert kinds[first] == "Convert" and kinds[others[0]] == "Constant"
    given = samples(1)[0]
    assert np.array_equal(Runner(model)(given)[0], Runner(found)(given)[0])
    assert weight_count(found) == weight_count(model) > 1000


def test_cancel_stops_between_the_stages():
    class Cancelled(Exception):
        pass

    def cancel(text: str) -> None:
        if text.startswith("Checking"):
            raise Cancelled

    with pytest.raises(Cancelled):
        quantize(plain(), "int8", samples(), progress=cancel)


def test_cancel_ends_nncf_at_its_next_sample(monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.01)
    whole, finished = nncf.quantize, []
    monkeypatch.setattr(nncf, "quantize", lambda *a, **k: finished.append(whole(*a, **k)) or finished[0])

    def cancel(text: str) -> None:
        if ", pass 1, call " in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(plain(), "int8", samples(40), progress=cancel, held_out=[])
    assert finished == []


# A layer that goes wrong


@pytest.fixture(scope="module")
def spoiled():
    return to_ir(plant_outlier(Net(), 1))


RECORDED = samples(24, 12)


def test_the_finder_names_the_layer_with_the_planted_outlier(spoiled):
    broken = quantize(spoiled, "int8", RECORDED, Options(rounds=1), quiet)
    assert not broken.gate.passed and broken.gate.worst < 0.98
    found = compare_layers(spoiled, broken.model, RECORDED[3], progress=quiet)
    # the product of attention and values is the first to read the tensor with the huge channel
    assert found.first is not None and found.first.name == "__module.blocks.1/aten::matmul/MatMul_1", found.text()
    assert found.looks == "per-tensor" and "SmoothQuant" in found.advice
    assert found.first.input_balanced > 0.95 and found.first.balanced < 0.5
    assert "blocks.1" in found.text() and found.as_json()["first"]["name"] == found.first.name


def test_the_gate_repairs_it_with_few_layers_in_float(spoiled):
    repaired = quantize(spoiled, "int8", RECORDED, progress=quiet)
    assert repaired.gate.passed and repaired.gate.worst >= 0.99, repaired.gate
    assert 1 <= len(repaired.gate.restored) <= 3
    assert repaired.gate.restored[0] == "__module.blocks.1/aten::matmul/MatMul_1"
    assert 0 < repaired.gate.restored_macs_share < 0.15
    assert "kept in floating point" in repaired.gate.text()


def test_the_budget_ends_the_repair(spoiled):
    result = quantize(spoiled, "int8", RECORDED, Options(restored_macs_share=0.0), quiet)
    assert not result.gate.passed and result.gate.restored == []


# Kinds of differences


def linear(weights: np.ndarray, transposed: bool = False) -> ov.Model:
    x = ops.parameter([1, 8, 8], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    data = ops.transpose(x, ops.constant(np.array([0, 2, 1]))) if transposed else x
    y = ops.matmul(data, ops.constant(weights), False, False, name="layer")
    y.output(0).set_names({"y"})
    return ov.Model([y], [x])


def test_the_same_model_does_not_diverge():
    found = compare_layers(plain(), plain(), samples(1)[0], progress=quiet)
    assert found.first is None and found.passed and found.worst_output > 0.999999
    assert "No layer" in found.text() and found.unmatched == []


def test_permuted_values_look_like_a_layout_error():
    x = np.random.default_rng(0).standard_normal((1, 8, 8)).astype(np.float32)
    found = compare_layers(linear(np.eye(8, dtype=np.float32)), linear(np.eye(8, dtype=np.float32), True), {"x": x})
    assert found.first.name == "layer" and found.looks == "layout" and "NCHW" in found.advice


def clipped(limit: float) -> ov.Model:
    x = ops.parameter([1, 8, 8], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    ends = [ops.constant(np.float32(v)) for v in (-limit, limit, -limit, limit)]
    y = ops.matmul(
        ops.fake_quantize(x, *ends, 256), ops.constant(np.eye(8, dtype=np.float32)), False, False, name="layer"
    )
    y.output(0).set_names({"y"})
    return ov.Model([y], [x])


def test_values_beyond_the_range_look_saturated():
    x = np.random.default_rng(0).standard_normal((1, 8, 8)).astype(np.float32)
    found = compare_layers(linear(np.eye(8, dtype=np.float32)), clipped(0.5), {"x": x})
    assert found.first.name == "layer" and found.looks == "range"
    assert found.first.max_abs_error == pytest.approx(np.abs(x).max() - 0.5, abs=0.01)
    spread = compare_layers(linear(np.eye(8, dtype=np.float32)), clipped(60.0), {"x": x})
    assert spread.looks == "rounding"


def test_the_worst_channel_is_named():
    weights = np.eye(8, dtype=np.float32)
    other = weights.copy()
    other[5, 5] = 3
    found = compare_layers(linear(weights), linear(other), {"x": np.ones((1, 8, 8), np.float32)})
    assert found.first.worst_channel == 5 and found.first.channel_errors == [0, 0, 0, 0, 0, 2, 0, 0]
    assert found.as_json()["first"]["worst_channel_error"] == 2


def test_models_that_have_nothing_in_common_are_refused():
    with pytest.raises(CompareError, match="no layer name in common"):
        one = linear(np.eye(8, dtype=np.float32))
        other = one.clone()
        layers(other)[0].set_friendly_name("another")
        compare_layers(one, other, {"x": np.ones((1, 8, 8), np.float32)})


def test_values_for_other_inputs_are_refused():
    with pytest.raises(CompareError, match="values given are for sample, timestep_embedding, and a model takes x"):
        compare_layers(plain(), linear(np.eye(8, dtype=np.float32)), samples(1)[0])


# Numbers


def test_cosine_of_special_arrays():
    a = np.array([1.0, 2.0])
    assert cosine(a, a) == pytest.approx(1) and cosine(a, -a) == pytest.approx(-1)
    assert cosine(a * 0, a * 0) == 1 and cosine(a, a * 0) == 0 and cosine(a, a * np.nan) == 0


def test_colour_shift_is_in_steps_of_255():
    white = np.concatenate([np.full((1, 3, 4, 2), -1.0), np.full((1, 3, 4, 2), 1.0)], axis=3)
    other = white.copy()
    other[:, 0] += 2 / 255
    assert colour_shift([[white]], [[other]]) == pytest.approx([1, 0, 0])
    assert colour_shift([[white[:, :2]]], [[other[:, :2]]]) == []


def test_a_gate_survives_json():
    gate = Gate([0.999, 0.98], 0.97, ["a"], 0.01, [0.5, 0.0, -0.5])
    assert Gate.from_json(gate.as_json()) == gate and int8.Options().limit == 0.99
