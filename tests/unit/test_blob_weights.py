"""A blob for the CPU refers to the IR's weights instead of holding a copy of them for every image size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from ovpack.ov_backends.compiler.compile import BLOB, Compiled, Order, compile_cached
from ovpack.ov_backends.compiler.ir import BIN, IR, Source, WeightsFile, load_or_convert

pytestmark = pytest.mark.usefixtures("clean_environment")

EDGE = 512


def wide_model() -> ov.Model:
    """y = x @ W with a megabyte of weights."""
    weights = np.random.default_rng(0).standard_normal((EDGE, EDGE)).astype(np.float32)
    x = ops.parameter([-1, EDGE], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    return ov.Model([ops.matmul(x, ops.constant(weights), False, False)], [x], "wide")


@pytest.fixture
def ir(cache) -> IR:
    return load_or_convert(Source("unet", "a" * 32, "Wide", wide_model), cache, lambda text: None)


def order(ir: IR, device: str = "CPU", rows: int = 1) -> Order:
    return Order("unet", ir.identity, ir.read, {"x": (rows, EDGE)}, device, "fp32", "warn", ir.weights)


def make(given: Order, cache) -> Compiled:
    return compile_cached(given, cache, lambda text: None)


def blob_bytes(compiled: Compiled) -> int:
    return (compiled.entry.path / BLOB).stat().st_size


def test_cpu_blob_is_small_and_computes_the_same_when_imported(ir, cache):
    made, x = make(order(ir), cache), np.random.default_rng(1).standard_normal((1, EDGE)).astype(np.float32)
    weights_bytes = (ir.entry.path / BIN).stat().st_size
    assert blob_bytes(made) < weights_bytes / 10, f"{blob_bytes(made)} bytes beside {weights_bytes} of weights"
    imported = make(order(ir), cache)
    assert (imported.state, imported.reason) == ("hit", "")
    assert np.array_equal(imported.model(x)[0], made.model(x)[0])


def test_other_weights_on_disk_are_a_miss_and_never_a_wrong_result(ir, cache):
    """The same torch weights converted by another OpenVINO may lie elsewhere in the file."""
    make(order(ir), cache)
    moved = replace(order(ir), weights=WeightsFile(ir.weights.path, "b" * 64))
    again = make(moved, cache)
    assert again.state == "miss" and again.reason.startswith("weights_file changed: ")


def test_missing_weights_compile_again(ir, cache, caplog):
    make(order(ir), cache)
    gone = replace(order(ir), weights=WeightsFile(ir.weights.path.with_name("gone.bin"), ir.weights.digest))
    again = make(gone, cache)
    assert (again.state, again.reason) == ("miss", "corrupt: the blob does not load")
    assert "does not load" in caplog.text


def test_blob_holds_its_weights_where_the_ir_was_not_kept(ir, cache):
    made = make(replace(order(ir), weights=None), cache)
    assert blob_bytes(made) > (ir.entry.path / BIN).stat().st_size


def test_blob_for_another_device_holds_its_weights(ir, cache, emulated_npu):
    made = make(replace(order(ir, "NPU"), precision="fp16"), cache)
    assert blob_bytes(made) > (ir.entry.path / BIN).stat().st_size
