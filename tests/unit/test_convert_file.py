"""Reading what users have: files of several frameworks, functions that return a torch module, and broken ones."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from ovpack.ov_backends import devices
from ovpack.ov_backends.convert.file import _explain, read_file
from ovpack.ov_backends.errors import ConversionError, ShapeError
from ovpack.ov_backends.tensors import format_shapes, parse_shapes
from shipped_models import MAGIKA, SILERO
from small_models import WIDTH, dense_expected, dense_input, dense_model
from tensorflow_files import graph, saved_model

FUNCTIONS = """
import torch

class Twice(torch.nn.Module):
    def forward(self, image, offset):
        return 2 * image + offset

def with_inputs():
    return Twice(), (torch.zeros(1, 3, 8, 8), torch.zeros(1))

def named_inputs():
    return Twice(), {"image": torch.zeros(1, 3, 8, 8), "offset": torch.zeros(1)}

def bare():
    return Twice()

def number():
    return 7

def failing():
    raise KeyError("no weights here")
"""


@pytest.fixture
def ir(tmp_path) -> Path:
    ov.save_model(dense_model(), tmp_path / "dense.xml")
    return tmp_path / "dense.xml"


@pytest.fixture
def own_code(tmp_path, monkeypatch) -> str:
    """The name of a module in the current folder; one of its own in each test, since Python keeps what it imported."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return name


def test_an_onnx_file_has_named_ports_and_takes_the_shape_given():
    model = read_file(str(MAGIKA), {"bytes": (1, 2048)})
    assert [p.get_any_name() for p in model.inputs] == ["bytes"]
    assert list(model.output(0).get_shape()) == [1, 214]
    assert model.get_friendly_name() == "model"


def test_an_ir_computes_what_was_saved(ir):
    x = dense_input()
    result = devices.core().compile_model(read_file(str(ir)), "CPU")({"x": x})["y"]
    np.testing.assert_allclose(result, dense_expected(x), atol=1e-2)  # its weights are FP16


def test_a_tensorflow_graph_and_a_saved_model_are_read(tmp_path):
    (tmp_path / "frozen.pb").write_bytes(graph())
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(saved_model(graph()))
    for source in ("frozen.pb", "saved"):
        model = read_file(str(tmp_path / source))
        assert [list(p.get_partial_shape().to_shape()) for p in model.inputs] == [[2, 3]], source
        assert len(model.outputs) == 1 and model.output(0).get_any_name()


@pytest.mark.parametrize("name", ["with_inputs", "named_inputs"])
def test_a_function_of_the_current_folder_gives_a_module_with_example_inputs(own_code, name):
    model = read_file(f"{own_code}:{name}", may_import=True)
    assert {p.get_any_name(): list(p.get_shape()) for p in model.inputs} == {"image": [1, 3, 8, 8], "offset": [1]}
    result = devices.core().compile_model(model, "CPU")([np.ones((1, 3, 8, 8), np.float32), np.ones(1, np.float32)])
    assert float(result[0].max()) == float(result[0].min()) == 3.0


def test_a_module_without_example_inputs_is_traced_at_the_shapes_given(own_code):
    model = read_file(f"{own_code}:bare", {"image": (1, 3, 4, 4), "offset": (1,)}, may_import=True)
    assert list(model.output(0).get_shape()) == [1, 3, 4, 4]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bare", "--shape image="),
        ("number", "returned int, where a torch.nn.Module was expected"),
        ("failing", "no weights here"),
        ("missing", "has no function 'missing'"),
    ],
)
def test_a_function_that_gives_no_module_is_named(own_code, name, said):
    with pytest.raises(ConversionError, match=said):
        read_file(f"{own_code}:{name}", may_import=True)


def test_a_module_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConversionError, match="'absent_module' could not be imported"):
        read_file("absent_module:make", may_import=True)


def test_code_runs_only_where_the_caller_allows_it(own_code):
    with pytest.raises(ConversionError, match="There is no file"):
        read_file(f"{own_code}:with_inputs")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("absent.onnx", None, "There is no file"),
        ("empty.onnx", b"", "is empty"),
        ("text.onnx", b"hello world", "is damaged, or it is not ONNX"),
        ("half.onnx", MAGIKA.read_bytes()[:100_000], "is damaged, or it is not ONNX"),
        ("broken.xml", b"<net", "is damaged, or it is not OpenVINO IR"),
        ("broken.tflite", b"hello", "is damaged, or it is not TensorFlow Lite"),
        ("broken.pdmodel", b"hello", "is damaged, or it is not PaddlePaddle"),
        ("weights.safetensors", b"x", "weights without a graph"),
        ("model.bin", b"x", "give the .xml beside it"),
        ("picture.jpg", b"x", "of a kind that cannot be read (.jpg)"),
        ("folder", "", "has no saved_model.pb"),
    ],
)
def test_a_file_that_is_no_model_is_explained(tmp_path, name, content, said):
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        file.mkdir()
    with pytest.raises(ConversionError) as caught:
        read_file(str(file))
    assert said in str(caught.value) and str(file) in str(caught.value)
    assert "\n" not in str(caught.value) and "core.cpp" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 20])
def test_an_ir_without_its_whole_weights_says_so(ir, keep):
    weights = ir.with_suffix(".bin")
    content = weights.read_bytes()[:keep]
    os.unlink(weights)
    if content:
        weights.write_bytes(content)
    with pytest.raises(ConversionError, match="dense.bin beside it is missing, cut short or of another model"):
        read_file(str(ir))


def test_operators_that_openvino_lacks_are_named():
    with pytest.raises(ConversionError, match="uses operators that OpenVINO cannot convert: Conv-16"):
        read_file(str(SILERO.with_name("silero_vad.onnx")))


def test_a_streaming_model_of_tensorflow_lite_is_not_called_damaged():
    said = _explain(Path("wake.tflite"), "Check failed at src/frontends/x.cpp:4:\nUnexpected type: RESOURCE\n")
    assert said.startswith("wake.tflite has tensors of the type RESOURCE, which OpenVINO does not read.")


def test_the_width_of_the_small_model_is_kept(ir):
    assert list(read_file(str(ir), {"x": (2, WIDTH)}).output(0).get_shape()) == [2, WIDTH]


def test_a_shape_for_an_unknown_input_or_of_a_wrong_size_is_refused(ir):
    with pytest.raises(ShapeError, match=r"has no input 'z'. Its inputs: x \[\?,64\]"):
        read_file(str(ir), {"z": (1, 3)})
    with pytest.raises(ShapeError, match=r"cannot take x=\[1,3\]: .*doesn't match"):
        read_file(str(ir), {"x": (1, 3)})


@pytest.mark.parametrize(
    "shapes", [{}, {"x": (1, 3, 224, 224), "y": (1, 77)}, {"serving/x:0": (1, -1)}, {"scalar": ()}]
)
def test_shapes_are_read_as_they_are_written(shapes):
    assert parse_shapes(format_shapes(shapes)) == shapes


def test_spaces_and_question_marks_are_welcome_in_a_shape():
    assert parse_shapes("x = [1, 3, ?, -1]  y=[2]") == {"x": (1, 3, -1, -1), "y": (2,)}


@pytest.mark.parametrize("text", ["x", "x=1,3", "x=[a]", "x=[0,1]", "x=[1.5]", "[1,3]", "x=[1] x=[2]"])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(ShapeError, match=r"is no shape; write name=\[n,n,...\]|is given two shapes"):
        parse_shapes(text)
