"""Times of real models, their limits, and what stands beside them: theory, memory, the device that was meant."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from ovpack.ov_backends import bench
from ovpack.ov_backends.bench import benchmark_model
from ovpack.ov_backends.errors import CompileError, DeviceError, PlanError, ShapeError, TensorError
from ovpack.ov_backends.inputs import random_inputs
from ovpack.ov_backends.memory import MemoryWatch
from ovpack.ov_backends.race import Limits
from small_models import WIDTH, dense_model

SHORT = Limits(seconds=0.4, iterations=40, least=5, tolerance=0.5)


def quiet(text: str) -> None:
    pass


def sized(rows: int = 1) -> ov.Model:
    model = dense_model()
    model.reshape({"x": [rows, WIDTH]})
    return model


def test_a_real_model_is_timed_one_at_a_time_and_many_at_a_time(monkeypatch):
    monkeypatch.setattr(bench, "compare_with_peak", lambda *_: None)
    found = benchmark_model(sized(), "CPU", precision="fp32", limits=SHORT, progress=quiet)
    assert (found.name, found.device, found.precision) == ("dense", "CPU", "fp32")
    assert found.one.first_s > 0 and len(found.one.steady_s) >= 5 and found.compile_s > 0
    assert found.many.requests >= 1
    assert found.many.per_second == pytest.approx(1 / found.many.per_run.steady.median_s)
    assert found.many.latency_s == pytest.approx(found.many.requests / found.many.per_second)
    assert found.memory.peak >= found.memory.after > 10**6
    assert {"one", "many", "memory", "compile_s", "theory"} <= set(found.as_json())
    assert "dense on CPU in fp32" in found.text() and "requests at a time" in found.text()


def test_the_figures_stand_beside_theory():
    theory = benchmark_model(sized(), "CPU", precision="fp32", limits=SHORT, progress=quiet).theory
    assert theory.macs == WIDTH * WIDTH and theory.least_bytes == 4 * (WIDTH * WIDTH + 2 * WIDTH)
    assert theory.is_small and theory.measured_s > theory.ideal_s > 0


def test_the_models_own_inputs_are_used_whatever_their_strides():
    grid = np.random.default_rng(0).standard_normal((WIDTH, 3)).astype(np.float32)
    inputs = {"x": grid.T}
    found = benchmark_model(dense_model(), "CPU", inputs, "fp32", SHORT, quiet)
    assert found.theory.macs == 3 * WIDTH * WIDTH


def quantized(kind: str) -> ov.Model:
    """x [1, 64] times a matrix that is stored in `kind`, with quantized activations for int8."""
    x = ops.parameter([1, WIDTH], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    stored = np.random.default_rng(0).integers(-7, 8, (WIDTH, WIDTH)).astype(np.int8)
    element = ov.Type.i4 if kind == "int4-weights" else ov.Type.i8
    weights = ops.multiply(ops.convert(ops.constant(stored, element), "f32"), ops.constant(np.float32(0.1)))
    low, high = (ops.constant(np.float32(edge)) for edge in (-3, 3))
    factor = ops.fake_quantize(x, low, high, low, high, 256) if kind == "int8" else x
    return ov.Model([ops.matmul(factor, weights, False, False)], [x], kind)


@pytest.mark.parametrize("kind", ["int8", "int8-weights", "int4-weights"])
def test_a_quantized_model_counts_as_that(kind):
    model = quantized(kind)
    assert bench.quantized_as(model) == kind
    found = benchmark_model(model, "CPU", limits=SHORT, progress=quiet)
    assert found.precision == kind
    assert found.theory.peak.arithmetic == ("int8" if kind == "int8" else found.theory.peak.arithmetic)
    bits = 4 if kind == "int4-weights" else 8
    assert WIDTH * WIDTH * bits / 8 < found.theory.least_bytes < 1.3 * WIDTH * WIDTH * bits / 8


def test_a_float_model_is_not_measured_as_a_quantized_one():
    with pytest.raises(PlanError, match="dense is not quantized, so it cannot be measured in int8. Quantize it first"):
        benchmark_model(sized(), "CPU", precision="int8", limits=SHORT, progress=quiet)


def test_what_cannot_be_measured_is_said(emulated_npu):
    with pytest.raises(ShapeError, match=r"'x' \[\?,64\] leaves sizes open"):
        benchmark_model(dense_model(), "CPU", limits=SHORT)
    with pytest.raises(ShapeError, match="needs static shapes"):
        benchmark_model(dense_model(), "NPU", {"x": np.zeros((1, WIDTH), np.float32)}, limits=SHORT)
    with pytest.raises(DeviceError, match=r"GPU\.7"):
        benchmark_model(sized(), "GPU.7", limits=SHORT)


def test_a_device_that_refuses_the_model_is_named(core):
    core.refuses["GPU"] = "Unsupported operation: Tanh"
    with pytest.raises(CompileError, match="GPU could not compile dense: .*Unsupported operation: Tanh"):
        benchmark_model(sized(), "GPU", limits=SHORT, progress=quiet)


def test_the_emulated_npu_is_timed_and_named_as_such(emulated_npu):
    found = benchmark_model(sized(), "NPU", limits=SHORT, progress=quiet)
    assert found.device == "NPU (emulated on CPU)" and found.precision == "fp16"


def test_random_inputs_have_the_models_types_and_are_always_the_same():
    kinds = {"f": ov.Type.f32, "h": ov.Type.f16, "i": ov.Type.i64, "b": ov.Type.boolean}
    ports = [ops.parameter([2, 3], kind, name=name) for name, kind in kinds.items()]
    for port in ports:
        port.output(0).set_names({port.get_friendly_name()})
    model = ov.Model([ops.abs(port) for port in ports[:3]], ports)
    first, again = random_inputs(model), random_inputs(model)
    assert {name: array.dtype.name for name, array in first.items()} == {
        "f": "float32", "h": "float16", "i": "int64", "b": "bool",
    }  # fmt: skip
    assert all((first[name] == again[name]).all() and first[name].shape == (2, 3) for name in kinds)
    short = ops.parameter([1], ov.Type.bf16, name="s")
    short.output(0).set_names({"s"})
    with pytest.raises(TensorError, match="'s' is of type bf16"):
        random_inputs(ov.Model([ops.abs(short)], [short]))


def test_memory_is_seen_at_its_highest():
    with MemoryWatch() as watch:
        block = np.ones(30_000_000, np.float32)
        held = watch.memory
        del block
    assert held.added > 100e6 and watch.memory.peak >= held.after > watch.memory.after
