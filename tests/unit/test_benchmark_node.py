"""The benchmark node: a picture and a report of a real model, Cancel, and plain words for what cannot be measured."""

from __future__ import annotations

import sys
from pathlib import Path

import openvino as ov
import pytest
import torch
from ovpack.ov_backends.errors import DeviceError, PlanError, ShapeError
from ovpack.ov_backends.examination import examine
from ovpack.ov_backends.runtime.model_file import ModelFile
from small_models import dense_model
from test_figure import SIZE, small_cnn

SECONDS = 0.5


@pytest.fixture
def node(comfy, clean_environment, monkeypatch):
    from ovpack.nodes import host
    from ovpack.nodes.tools import Benchmark

    monkeypatch.setattr(host, "show", lambda text: None)
    return Benchmark


@pytest.fixture
def cnn(tmp_path) -> ModelFile:
    ov.save_model(small_cnn(), tmp_path / "cnn.xml", compress_to_fp16=False)
    return ModelFile("cnn.xml", tmp_path / "cnn.xml")


def run(node, model, device: str = "CPU", precision: str = "fp32"):
    with torch.inference_mode():
        return node.execute(model, device, precision, SECONDS)


def test_a_model_gives_two_pictures_and_a_report(node, cnn):
    output = run(node, cnn)
    picture, report = output.args
    assert picture.shape == (2, SIZE[1], SIZE[0], 3) and picture.dtype == torch.float32
    assert 0 <= float(picture.min()) < 0.5 < float(picture.max()) <= 1
    assert (picture[0] - picture[1]).abs().mean() > 0.001, "roofline, then bars"
    for part in (
        "cnn on CPU in fp32",
        "one at a time: first",
        "theory: ",
        "1. Operators off CPU",
        "Time by type of layer:",
    ):
        assert part in report, report
    assert "ms around it" in report and "Recommendation: No other device" in report
    assert output.ui["text"] == [report]


def test_the_emulated_npu_cannot_be_mistaken_for_a_real_one(node, cnn, monkeypatch):
    monkeypatch.setenv("OVNPU_NPU_EMULATION", "1")
    report = run(node, cnn, "NPU", "auto").args[1]
    assert "cnn on NPU (emulated on CPU) in fp16" in report and "measured here" in report


def test_every_run_measures_anew(node):
    first, second = (node.fingerprint_inputs(model=None, device="CPU", precision="auto", seconds=1) for _ in range(2))
    assert first != second


def test_without_matplotlib_the_report_still_comes(node, cnn, monkeypatch):
    from comfy_execution.graph_utils import ExecutionBlocker

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    picture, report = run(node, cnn).args
    assert isinstance(picture, ExecutionBlocker) and "pip install matplotlib" in picture.message
    assert "one at a time" in report


def test_cancel_ends_the_measurement(node, cnn, monkeypatch):
    from comfy import model_management
    from ovpack.nodes import host

    told = []

    def show(text: str) -> None:
        told.append(text)
        if "Measuring" in text:
            model_management.interrupt_current_processing()

    monkeypatch.setattr(host, "show", show)
    with pytest.raises(model_management.InterruptProcessingException):
        node.execute(cnn, "CPU", "fp32", 600.0)
    assert any("Compiling cnn" in text for text in told)


def test_open_sizes_are_refused_with_the_text_to_enter(tmp_path: Path):
    ov.save_model(dense_model(), tmp_path / "dense.xml")
    with pytest.raises(ShapeError, match=r"dense leaves sizes open \('x' f32 \[\?,64\]\).* for example: x=\[1,64\]"):
        examine(ModelFile("dense.xml", tmp_path / "dense.xml").model, "CPU")


def test_a_missing_device_is_an_error_and_not_another_device(cnn, clean_environment):
    with pytest.raises(DeviceError, match=r"GPU\.7"):
        examine(cnn.model, "GPU.7")


def test_a_precision_that_the_model_is_not_in_is_refused(cnn):
    with pytest.raises(PlanError, match="cnn is not quantized"):
        examine(cnn.model, "CPU", "int8")


def test_an_examination_is_json_too(cnn):
    import json

    found = json.loads(json.dumps(examine(cnn.model, "CPU", "fp32", SECONDS, lambda text: None).as_json()))
    assert found["measured"]["one"]["median_s"] > 0 and len(found["diagnosis"]["steps"]) == 4
    assert sum(layer["macs"] for layer in found["layers"]["layers"]) == found["measured"]["theory"]["macs"]
