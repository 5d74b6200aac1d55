"""An IR is written whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from ovpack.ov_backends import devices
from ovpack.ov_backends.convert.save import save_ir
from ovpack.ov_backends.errors import ConversionError
from ovpack.ov_backends.graph.execution import execution_graph
from small_models import dense_expected, dense_input, dense_model


def read_back(path: Path) -> np.ndarray:
    return devices.core().compile_model(ov.Core().read_model(path), "CPU")({"x": dense_input()})["y"]


def test_what_is_saved_computes_the_same(tmp_path):
    written = save_ir(dense_model(), tmp_path / "a.xml")
    np.testing.assert_allclose(read_back(tmp_path / "a.xml"), dense_expected(dense_input()), atol=1e-5)
    assert written == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.bin", "a.xml"]


def test_fp16_halves_the_weights(tmp_path):
    save_ir(dense_model(), tmp_path / "a.xml")
    save_ir(dense_model(), tmp_path / "b.xml", compress_to_fp16=True)
    assert (tmp_path / "b.bin").stat().st_size * 2 == (tmp_path / "a.bin").stat().st_size


def test_an_older_file_of_the_name_is_replaced(tmp_path):
    (tmp_path / "a.xml").write_text("old", encoding="utf-8")
    save_ir(dense_model(), tmp_path / "a.xml")
    assert read_back(tmp_path / "a.xml").shape == (1, 64)


def test_a_model_may_be_saved_over_the_file_it_was_read_from(tmp_path):
    save_ir(dense_model(), tmp_path / "a.xml")
    model = devices.core().read_model(tmp_path / "a.xml")
    try:
        save_ir(model, tmp_path / "a.xml", compress_to_fp16=True)
    except ConversionError:
        assert sys.platform == "win32", "only Windows keeps a file from being replaced while it is in use"
    np.testing.assert_allclose(read_back(tmp_path / "a.xml"), dense_expected(dense_input()), atol=1e-2)


@pytest.mark.skipif(sys.platform == "win32", reason="a limit of file size stands for the full disk; Windows has none")
def test_a_full_disk_leaves_what_was_there(tmp_path):
    import resource

    save_ir(dense_model(), tmp_path / "a.xml", compress_to_fp16=True)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, hard))
    try:
        with pytest.raises(ConversionError, match="a.xml (could not be written|was not written)"):
            save_ir(dense_model(), tmp_path / "a.xml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(("name", "said"), [("a.onnx", "ends in .xml"), ("absent/a.xml", "There is no folder")])
def test_a_place_that_cannot_hold_it_is_named(tmp_path, name, said):
    with pytest.raises(ConversionError, match=said):
        save_ir(dense_model(), tmp_path / name)


def test_the_execution_graph_shows_what_was_fused():
    model = dense_model()
    model.reshape([1, 64])
    graph = execution_graph(devices.core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}))
    assert [layer.precision for layer in graph.layers] == ["f32"] * len(graph.layers)
    assert any({"product", "curve"} <= set(layer.fused) for layer in graph.layers), graph.layers
    assert "product + curve" in graph.text()
