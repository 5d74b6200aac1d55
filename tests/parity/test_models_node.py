"""Model files of any kind in ComfyUI: found, loaded, run on images, told apart, and refused in plain words."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops
from ovpack.ov_backends.compiler.cache import CompileCache
from ovpack.ov_backends.errors import (
    ConversionError,
    DeviceError,
    InferenceError,
    ModelFolderError,
    PlanError,
    ShapeError,
    TensorError,
)
from ovpack.ov_backends.runtime.model_file import ModelFile, model_files
from ovpack.ov_backends.runtime.store import SubmodelStore
from PIL import Image, ImageDraw, ImageFont
from shipped_models import MAGIKA, SILERO, shipped

pytestmark = pytest.mark.e2e

PACK = Path(__file__).parents[2]
ANGLE = shipped("rapidocr-onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx")
"""Is a line of text upside down: x [?, 3, ?, ?] -> [?, 2], probabilities of 0 and 180 degrees. Made for 48x192."""
DETECTOR = shipped("rapidocr-onnxruntime", "ch_PP-OCRv4_det_infer.onnx")
"""Where text is: x [?, 3, ?, ?] -> [?, 1, height, width], 0 to 1."""

PLAIN = {"mean": "0", "std": "1"}
HALVES = {"mean": "0.5", "std": "0.5"}


@pytest.fixture
def pack(comfy, clean_environment, cache, tmp_path, monkeypatch):
    """The two nodes over an empty cache, and an empty folder of models."""
    import folder_paths
    from ovpack.nodes import host, model_folder, models

    folder = tmp_path / "openvino"
    folder.mkdir()
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "openvino", ([str(folder)], set()))
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "onnx", ([str(tmp_path / "onnx")], set()))
    monkeypatch.setattr(models, "store", lambda: SubmodelStore(cache))
    host._reports.clear()
    return SimpleNamespace(folder=folder, models=models, files=model_folder, host=host, cache=cache)


def load(pack, name: str, shapes: str = "", labels: str = "") -> ModelFile:
    return pack.models.LoadModel.execute(name, shapes, labels).args[0]


def run(pack, model: ModelFile, image: torch.Tensor, **widgets):
    """IMAGE, the parsed result, and the model's part of the report as /history has it."""
    pack.host._reports.clear()
    defaults = {
        "device": "CPU", "precision": "fp32", "policy": "warn", "size": "resize", "layout": "auto", "order": "RGB",
        "mean": "0.485, 0.456, 0.406", "std": "0.229, 0.224, 0.225", "scale": 1.0, "picture_range": "0 to 1",
        "top_k": 5,
    }  # fmt: skip
    with torch.inference_mode():
        output = pack.models.RunModel.execute(model, image, **{**defaults, **widgets})
    picture, result, _ = output.args
    report = json.loads(output.ui["ovnpu_report"][0])["submodels"][f"model {model.name}"]
    return SimpleNamespace(picture=picture, result=json.loads(result), report=report, ui=output.ui)


def photo(height: int, width: int, batch: int = 1) -> torch.Tensor:
    """A smooth picture in colours: every pixel is another."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    rows = [torch.stack([x, y, (x * y + 0.1 * n) % 1], dim=-1) for n in range(batch)]
    return torch.stack(rows)


def written(text: str, turned: bool = False, size: tuple[int, int] = (192, 48)) -> torch.Tensor:
    """Black text on white, as an IMAGE; size: width and height."""
    picture = Image.new("RGB", size, "white")
    ImageDraw.Draw(picture).text((8, 6), text, "black", ImageFont.load_default(30))
    picture = picture.rotate(180) if turned else picture
    return torch.from_numpy(np.array(picture, np.float32) / 255)[None]


_converted: dict[tuple, ov.Model] = {}


def save(module: torch.nn.Module, path: Path, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """The module as IR in FP32 with one input 'x' of `shape`, -1 where open; outputs 'y0', 'y1', ..."""
    settings = [getattr(module, name, None) for name in ("axes", "factor")]
    key = (type(module).__qualname__, *settings, shape, dtype)
    if key not in _converted:
        example = torch.zeros([16 if length < 0 else length for length in shape], dtype=dtype)
        model = ov.convert_model(module.eval(), example_input=example, input=[ov.PartialShape(list(shape))])
        model.inputs[0].get_tensor().set_names({"x"})
        for index, port in enumerate(model.outputs):
            port.get_tensor().set_names({f"y{index}"})
        _converted[key] = model
    ov.save_model(_converted[key], path, compress_to_fp16=False)


class Mean(torch.nn.Module):
    """The mean of each channel [batch, 3], whatever the layout says of where they are."""

    def __init__(self, axes: tuple[int, ...] = (2, 3)):
        super().__init__()
        self.axes = axes

    def forward(self, x):
        return x.float().mean(self.axes)


def values(run, name: str = "y0") -> np.ndarray:
    return np.array(run.result["images"][0]["outputs"][name]["values"])


# Finding and loading


def test_models_are_listed_by_their_path_below_the_model_folders(pack, tmp_path):
    for name in ("a.onnx", "sub/b.xml", "sub/b.bin", "c.tflite", "notes.txt", "saved/saved_model.pb", "saved/x.pb"):
        file = pack.folder / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "d.onnx").touch()
    (tmp_path / "outside.onnx").touch()
    assert pack.files.list_models() == ["a.onnx", "c.tflite", "d.onnx", "saved", "sub/b.xml"]
    assert pack.models.LoadModel.define_schema().inputs[0].options == pack.files.list_models()
    for name in ("../outside.onnx", str(tmp_path / "outside.onnx"), "sub", "notes.txt", "", ["a.onnx"]):
        with pytest.raises(ModelFolderError, match=r"There is no model .* Found: a.onnx, c.tflite"):
            load(pack, name)


def test_loading_tells_what_the_model_takes_and_what_the_npu_needs(pack):
    shutil.copy(ANGLE, pack.folder / "angle.onnx")
    output = pack.models.LoadModel.execute("angle.onnx", "", "0\n180")
    info = output.args[1]
    assert output.ui["text"] == [info]
    for part in ("ONNX, 0.6 MB", "input 'x' f32 [?,3,?,?]", "f32 [?,2]", "2 labels, from '0' to '180'"):
        assert part in info
    suggested = re.search(r"for example: (.+)", info).group(1)
    fixed = pack.models.LoadModel.execute("angle.onnx", suggested).args[1]
    assert "input 'x' f32 [1,3,640,640]" in fixed and "NPU" not in fixed


@pytest.mark.parametrize(
    ("name", "content", "shapes", "error", "words"),
    [
        ("cut.onnx", lambda: ANGLE.read_bytes()[:5000], "", ConversionError, "cut.onnx is damaged"),
        ("text.xml", lambda: b"this is no model", "", ConversionError, "text.xml is damaged"),
        ("empty.tflite", lambda: b"", "", ConversionError, "empty.tflite is empty"),
        ("angle.onnx", ANGLE.read_bytes, "x=1,3,48", ShapeError, "'x=1,3,48' is no shape"),
        ("angle.onnx", ANGLE.read_bytes, "images=[1,3,48,192]", ShapeError, "no input 'images'. Its inputs: x"),
        ("angle.onnx", ANGLE.read_bytes, "x=[1,5,48,192]", ShapeError, "cannot take x=[1,5,48,192]"),
    ],
)
def test_files_and_shapes_that_are_no_good_are_refused_by_name(pack, name, content, shapes, error, words):
    (pack.folder / name).write_bytes(content())
    with pytest.raises(error, match=re.escape(words)):
        load(pack, name, shapes)


def test_labels_beside_the_model_are_found_and_those_entered_win(pack):
    shutil.copy(ANGLE, pack.folder / "angle.onnx")
    assert load(pack, "angle.onnx").labels == ()
    (pack.folder / "labels.txt").write_text("of\nthe folder\n", encoding="utf-8")
    assert load(pack, "angle.onnx").labels == ("of", "the folder")
    (pack.folder / "angle.txt").write_text("\ufeffauf\nüber Kopf\n", encoding="utf-8")
    assert load(pack, "angle.onnx").labels == ("auf", "über Kopf")
    assert load(pack, "angle.onnx", labels="a\n b \n").labels == ("a", "b")
    (pack.folder / "angle.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ModelFolderError, match=r"angle.txt cannot be read .* UTF-8"):
        load(pack, "angle.onnx")


def test_a_changed_file_is_read_and_compiled_again_and_a_renamed_one_is_the_same_weights(pack):
    path = pack.folder / "mean.xml"
    save(Mean(), path, (1, 3, 8, 8))
    before, mark = load(pack, "mean.xml"), pack.models.LoadModel.fingerprint_inputs("mean.xml")
    identity = before.identity
    assert run(pack, before, photo(8, 8)).report["cache"]["state"] == "miss"
    weights = path.with_suffix(".bin").read_bytes()
    path.with_suffix(".bin").write_bytes(weights + b"\0")
    assert load(pack, "mean.xml").identity != identity
    assert pack.models.LoadModel.fingerprint_inputs("mean.xml") != mark
    again = run(pack, load(pack, "mean.xml"), photo(8, 8))
    assert again.report["cache"]["reason"].startswith("weights changed: ")
    path.with_suffix(".bin").write_bytes(weights)
    assert load(pack, "mean.xml").identity == identity
    assert run(pack, load(pack, "mean.xml"), photo(8, 8)).report["cache"]["state"] == "hit"


def test_weights_in_other_files_belong_to_an_onnx_model(pack, tmp_path):
    import onnxruntime  # magika and silero-vad bring it

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(pack.folder / "apart.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "apart.weights")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "64")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    onnxruntime.InferenceSession(str(ANGLE), options, providers=["CPUExecutionProvider"])
    weights = pack.folder / "apart.weights"
    assert weights in model_files(pack.folder / "apart.onnx")
    model = load(pack, "apart.onnx")
    shutil.copy(ANGLE, pack.folder / "whole.onnx")
    upside_down = {"image": written("HELLO", turned=True), **HALVES}
    apart, whole = (run(pack, load(pack, name), **upside_down) for name in ("apart.onnx", "whole.onnx"))
    assert apart.result["images"][0]["classes"] == whole.result["images"][0]["classes"]
    identity = model.identity
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    assert model.identity != identity


def test_an_onnx_model_cannot_reach_out_of_its_folder(pack, tmp_path):
    """The name of a file with weights, as ONNX writes it in a tensor's external data."""
    (tmp_path / "secret").touch()
    (pack.folder / "sly.onnx").write_bytes(b"...\x0a\x08location\x12\x09../secret...")
    with pytest.raises(ModelFolderError, match="'../secret', which is outside of its folder"):
        load(pack, "sly.onnx")


# Real models


@pytest.mark.parametrize("device", ["CPU", "NPU"])
def test_the_text_angle_classifier_sees_text_turned_by_180_degrees(pack, monkeypatch, device):
    if device == "NPU":
        monkeypatch.setenv("OVNPU_NPU_EMULATION", "1")
    shutil.copy(ANGLE, pack.folder / "angle.onnx")
    model = load(pack, "angle.onnx", "x=[1,3,48,192]", "upright\nupside down")
    image = torch.cat([written("HELLO", turned) for turned in (False, True)])
    found = run(pack, model, image, device=device, precision="auto", policy="error", **HALVES)
    best = [answer["classes"][0] for answer in found.result["images"]]
    assert [b["label"] for b in best] == ["upright", "upside down"] and all(b["score"] > 0.9 for b in best), best
    assert found.ui["text"][0].startswith("upright 9")
    assert found.report["calls"] == {"openvino": 2, "torch": 0} and found.report["fallback"] == []
    assert found.report["actual_device"] == ("CPU" if device == "CPU" else "NPU (emulated on CPU)")


def test_its_scores_are_those_of_the_model_run_by_hand(pack):
    shutil.copy(ANGLE, pack.folder / "angle.onnx")
    image = written("HELLO", turned=True)
    expected = ov.Core().compile_model(ANGLE, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(
        ((image.numpy() - 0.5) / 0.5).transpose(0, 3, 1, 2)
    )[0]
    found = run(pack, load(pack, "angle.onnx"), image, **HALVES)
    (name,) = found.result["images"][0]["outputs"]
    assert np.abs(values(found, name) - expected).max() < 1e-5


def test_the_text_detector_gives_a_picture_that_is_bright_where_text_is(pack):
    shutil.copy(DETECTOR, pack.folder / "detector.onnx")
    image = torch.ones(1, 160, 320, 3)
    image[:, 40:88, 60:252] = written("HELLO")
    found = run(pack, load(pack, "detector.onnx"), image)
    assert found.picture.shape == image.shape and found.picture.dtype == torch.float32
    text = (image.mean(-1) < 0.5).nonzero()
    (top, left), (bottom, right) = text.amin(0)[1:].tolist(), text.amax(0)[1:].tolist()
    inside = found.picture[:, top:bottom, left:right].mean()
    assert inside > 0.4 and found.picture[:, 110:].mean() < 0.01, inside


def test_a_size_that_a_model_of_open_sizes_cannot_take_is_explained(pack):
    shutil.copy(DETECTOR, pack.folder / "detector.onnx")
    with pytest.raises(
        InferenceError, match=r"detector.onnx failed on an image of 70x50: .*enter one in shap"
    ) as caught:
        run(pack, load(pack, "detector.onnx"), photo(50, 70))
    entered = re.search(r"x=\[\S+\]", str(caught.value)).group()
    assert run(pack, load(pack, "detector.onnx", entered), photo(50, 70)).picture.shape == (1, 64, 96, 3)


# Pixels


@pytest.mark.parametrize(
    ("layout", "order", "scale"),
    [("NCHW", "RGB", 1.0), ("NCHW", "BGR", 255.0), ("NHWC", "RGB", 255.0), ("NHWC", "BGR", 1.0)],
)
def test_the_model_gets_pixels_as_the_widgets_say(pack, layout, order, scale):
    image = photo(8, 12)
    shape, axes = ((1, 3, 8, 12), (2, 3)) if layout == "NCHW" else ((1, 8, 12, 3), (1, 2))
    save(Mean(axes), pack.folder / "mean.xml", shape)
    mean, std = np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.6, 0.7])
    found = run(
        pack, load(pack, "mean.xml"), image, order=order, scale=scale, mean="0.1, 0.2, 0.3", std="[0.5 0.6 0.7]"
    )
    channels = image.numpy()[..., ::-1] if order == "BGR" else image.numpy()
    expected = ((channels * scale - mean) / std).mean((1, 2))
    assert np.allclose(values(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=str)
def test_a_model_of_whole_numbers_gets_0_to_255_rounded(pack, dtype):
    class Corner(torch.nn.Module):
        def forward(self, x):
            return x[:, :, 0, 0].clone(), x[:, :, 0, 0].float()

    save(Corner(), pack.folder / "corner.xml", (1, 3, 8, 8), dtype)
    image = photo(8, 8)
    image[0, 0, 0] = torch.tensor([0.0, 0.5, 1.0]) + torch.tensor([1e-4, 1e-4, -1e-4])
    found = run(pack, load(pack, "corner.xml"), image)
    assert values(found).tolist() == [[0, 128, 255]]
    described = found.result["images"][0]["outputs"]["y0"]
    assert described["type"] == str(dtype).removeprefix("torch.")


def test_a_half_precision_input_and_output_work(pack):
    class Half(torch.nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    save(Half(), pack.folder / "half.xml", (1, 3, 8, 8), torch.float16)
    assert load(pack, "half.xml").model.inputs[0].get_element_type() == ov.Type.f16
    found = run(pack, load(pack, "half.xml"), photo(8, 8), **PLAIN)
    assert found.result["images"][0]["outputs"]["y0"]["type"] == "float16"
    assert np.allclose(values(found), photo(8, 8).mean((1, 2)), atol=2e-3)


def test_a_grey_model_gets_the_luma(pack):
    save(Mean(), pack.folder / "grey.xml", (1, 1, 8, 8))
    image = torch.zeros(1, 8, 8, 3)
    image[..., 1] = 1
    assert np.allclose(values(run(pack, load(pack, "grey.xml"), image, **PLAIN)), 0.587)


def test_an_open_layout_is_not_guessed_and_the_choice_counts(pack):
    save(Mean((1, 2)), pack.folder / "cube.xml", (1, 3, 3, 3))
    with pytest.raises(ShapeError, match="layout cannot be told .*ambiguous.* Choose NCHW or NHWC"):
        run(pack, load(pack, "cube.xml"), photo(3, 3))
    found = run(pack, load(pack, "cube.xml"), photo(3, 3), layout="NHWC", **PLAIN)
    assert np.allclose(values(found), photo(3, 3).mean((1, 2)), atol=1e-6)


# Pictures


class Soften(torch.nn.Module):
    """A 3x3 mean of each channel, red and blue exchanged; `factor` times larger."""

    def __init__(self, factor: int = 1):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        x = torch.nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")
        x = torch.nn.functional.avg_pool2d(x, 3, stride=1)[:, [2, 1, 0]]
        return x.repeat_interleave(self.factor, 2).repeat_interleave(self.factor, 3)


def by_torch(module: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
    return module(image.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


@pytest.mark.parametrize("shape", [(1, 3, 24, 40), (1, 3, -1, -1), (-1, 3, 24, 40)], ids=["fixed", "open", "batch"])
def test_an_image_model_gives_what_torch_gives_for_each_image_of_a_batch(pack, shape):
    save(Soften(), pack.folder / "soften.xml", shape)
    image = photo(24, 40, batch=3)
    found = run(pack, load(pack, "soften.xml"), image, size="none", **PLAIN)
    assert found.picture.shape == image.shape and found.report["calls"]["openvino"] == 3
    assert (found.picture - by_torch(Soften(), image)).abs().max() < 1e-5
    assert found.result["images"][2]["picture_cut_off"] == 0


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("device", ["CPU", "NPU"])
def test_tiles_join_without_a_seam(pack, monkeypatch, factor, device):
    monkeypatch.setenv("OVNPU_NPU_EMULATION", "1")
    save(Soften(factor), pack.folder / "soften.xml", (1, 3, 32, 32))
    image = photo(50, 75)
    found = run(pack, load(pack, "soften.xml"), image, size="tile", device=device, precision="auto", **PLAIN)
    expected = by_torch(Soften(factor), image)
    assert found.picture.shape == expected.shape and found.report["calls"]["openvino"] == 6
    assert (found.picture - expected).abs().max() < 1e-4


def test_padding_keeps_proportions_and_the_border_is_cut_off_again(pack):
    save(Soften(2), pack.folder / "soften.xml", (1, 3, 32, 32))
    image = photo(32, 16)
    found = run(pack, load(pack, "soften.xml"), image, size="pad", **PLAIN)
    assert found.picture.shape == (1, 64, 32, 3)
    assert (found.picture[:, :, :30] - by_torch(Soften(2), image)[:, :, :30]).abs().max() < 1e-5
    wide = run(pack, load(pack, "soften.xml"), photo(20, 64), size="pad", **PLAIN)
    assert wide.picture.shape == (1, 20, 64, 3) and wide.result["images"][0]["scale"] == [0.5, 0.5]


def test_resizing_stretches_to_the_models_size(pack):
    save(Soften(), pack.folder / "soften.xml", (1, 3, 32, 32))
    found = run(pack, load(pack, "soften.xml"), photo(64, 128), **PLAIN)
    assert found.picture.shape == (1, 32, 32, 3) and found.result["images"][0]["scale"] == [0.5, 0.25]
    assert (found.picture.flip(-1)[0, 4:-4, 4:-4] - photo(32, 32)[0, 4:-4, 4:-4]).abs().max() < 0.06


@pytest.mark.parametrize(
    ("values", "scale", "mean", "std"),
    [("0 to 255", 255.0, "0", "1"), ("-1 to 1", 1.0, "0.5", "0.5"), ("0 to 1", 1.0, "0", "1")],
)
def test_the_range_of_the_models_picture_is_mapped_to_an_image(pack, values, scale, mean, std):
    save(Soften(), pack.folder / "soften.xml", (1, 3, 24, 40))
    image = photo(24, 40)
    widgets = {"picture_range": values, "scale": scale, "mean": mean, "std": std}
    found = run(pack, load(pack, "soften.xml"), image, **widgets)
    assert (found.picture - by_torch(Soften(), image)).abs().max() < 1e-4
    as_bgr = run(pack, load(pack, "soften.xml"), image, order="BGR", **widgets)
    # the model changes red and blue back, and its picture is BGR as its input is
    assert (as_bgr.picture - by_torch(Soften(), image)).abs().max() < 1e-4


def test_numbers_outside_of_the_range_are_counted(pack):
    save(Soften(), pack.folder / "soften.xml", (1, 3, 24, 40))
    found = run(pack, load(pack, "soften.xml"), torch.ones(1, 24, 40, 3), mean="0.5", std="0.25")
    assert found.result["images"][0]["picture_cut_off"] == 1 and float(found.picture.max()) == 1


def test_a_grey_picture_and_one_with_channels_last_become_images(pack):
    class Both(torch.nn.Module):
        def forward(self, x):
            return x.mean(1), x.mean((1, 2, 3)), x[:, :1].permute(0, 2, 3, 1)

    save(Both(), pack.folder / "both.xml", (1, 3, 24, 40))
    image = photo(24, 40)
    found = run(pack, load(pack, "both.xml"), image, **PLAIN)
    assert (found.picture - image[..., :1]).abs().max() < 1e-6 and found.picture.shape == image.shape
    assert [o["shape"] for o in found.result["images"][0]["outputs"].values()] == [[1, 24, 40], [1], [1, 24, 40, 1]]


# Answers


def test_a_model_without_a_picture_stops_only_who_wants_one(pack):
    from comfy_execution.graph_utils import ExecutionBlocker

    save(Mean(), pack.folder / "mean.xml", (1, 3, 8, 8))
    picture = run(pack, load(pack, "mean.xml"), photo(8, 8)).picture
    assert isinstance(picture, ExecutionBlocker) and "mean.xml gives no image" in picture.message


def test_scores_that_are_no_probabilities_become_so_and_the_best_come_first(pack):
    class Logits(torch.nn.Module):
        def forward(self, x):
            return torch.cat([x[:, 0, 0, :1] - 2, x[:, 0, 0, :1] * 0 - 2, x[:, 0, 0, :1] + 4], 1)

    save(Logits(), pack.folder / "logits.xml", (1, 3, 8, 8))
    found = run(pack, load(pack, "logits.xml", labels="a\nb\nc"), torch.ones(1, 8, 8, 3), top_k=2, **PLAIN)
    probabilities = torch.tensor([-1.0, -2.0, 5.0]).softmax(0)
    first, second = found.result["images"][0]["classes"]
    assert (first["label"], first["index"], second["label"]) == ("c", 2, "a")
    assert abs(first["score"] - float(probabilities[2])) < 1e-5
    with pytest.raises(ModelFolderError, match="4 labels .*'a' to 'd'.* 3 classes"):
        run(pack, load(pack, "logits.xml", labels="a\nb\nc\nd"), photo(8, 8))


def test_large_outputs_are_described_and_not_written_out(pack):
    class Large(torch.nn.Module):
        def forward(self, x):
            return x.flatten(2), x.argmax(1), torch.log(x[:, :, 0, 0] * 0)

    save(Large(), pack.folder / "large.xml", (1, 3, 40, 40))
    outputs = run(pack, load(pack, "large.xml"), photo(40, 40), **PLAIN).result["images"][0]["outputs"]
    assert outputs["y0"]["shape"] == [1, 3, 1600] and len(outputs["y0"]["first_values"]) == 8
    assert (outputs["y0"]["minimum"], outputs["y0"]["maximum"]) == (0, 1)
    assert outputs["y1"]["type"] == "int64" and outputs["y1"]["shape"] == [1, 40, 40]
    assert outputs["y2"]["infinite"] == 3 and outputs["y2"]["values"] == [[None, None, None]]


# Refusals


def test_nan_is_an_error_with_a_way_out(pack):
    class Root(torch.nn.Module):
        def forward(self, x):
            return torch.sqrt(x.mean((2, 3)) - 2)

    save(Root(), pack.folder / "root.xml", (1, 3, 8, 8))
    with pytest.raises(InferenceError, match="Output 'y0' of root.xml holds NaN on CPU in fp32. Choose precision fp32"):
        run(pack, load(pack, "root.xml"), photo(8, 8))


def test_the_npu_is_refused_open_sizes_and_the_text_to_enter_works(pack, emulated_npu):
    shutil.copy(ANGLE, pack.folder / "angle.onnx")
    with pytest.raises(ShapeError, match=r"leaves sizes open \('x' f32 \[\?,3,\?,\?\]\); the NPU needs") as caught:
        run(pack, load(pack, "angle.onnx"), written("HELLO"), device="NPU", **HALVES)
    entered = re.search(r"x=\[\S+\]", str(caught.value)).group()
    assert entered == "x=[1,3,64,192]", "the image's size, rounded up to 32"
    found = run(pack, load(pack, "angle.onnx", entered), written("HELLO"), device="NPU", **HALVES)
    assert found.report["actual_device"] == "NPU (emulated on CPU)"


def test_auto_goes_past_the_npu_for_open_sizes_and_says_so(pack, emulated_npu):
    shutil.copy(ANGLE, pack.folder / "angle.onnx")
    found = run(pack, load(pack, "angle.onnx"), written("HELLO"), device="AUTO", **HALVES)
    assert found.report["actual_device"] == "CPU"
    assert "AUTO took CPU and not the NPU" in found.report["notices"][0]
    model = load(pack, "angle.onnx", "x=[1,3,48,192]")
    fixed = run(pack, model, written("HELLO"), device="AUTO", precision="auto", **HALVES)
    assert fixed.report["actual_device"] == "NPU (emulated on CPU)" and fixed.report["notices"] == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (MAGIKA, r"takes 'bytes' i32 \[\?,2048\], which is not an image"),
        (SILERO, r"takes 'input' f32 .* and 'state' f32 .*: 2 inputs. This node gives one image"),
    ],
    ids=["magika", "silero"],
)
def test_models_for_other_than_one_image_are_told_what_they_want(pack, source, words):
    shutil.copy(source, pack.folder / "other.onnx")
    with pytest.raises(ShapeError, match=words):
        run(pack, load(pack, "other.onnx"), photo(8, 8))


@pytest.mark.parametrize(
    ("shape", "image", "widgets", "error", "words"),
    [
        ((1, 4, 8, 8), photo(8, 8), {}, ShapeError, "4 channels in layout NCHW"),
        ((1, 3, 8, 8), photo(8, 8), {"layout": "NHWC"}, ShapeError, "8 channels in layout NHWC"),
        ((1, 3, 8, 8), torch.zeros(1, 8, 8, 4), {}, ShapeError, "Take alpha off first"),
        ((1, 3, 8, 8), photo(9, 8), {"size": "none"}, ShapeError, "8x9 (width x height); model.xml takes 8x8"),
        ((1, 3, -1, -1), photo(9, 8), {"size": "tile"}, ShapeError, "the size of a tile must be given"),
        ((1, 3, 8, 8), photo(9, 8), {"size": "tile"}, ShapeError, "gives no image"),
        ((1, 3, 8, 8), photo(8, 8), {"mean": "a half"}, TensorError, "mean is 'a half'"),
        ((1, 3, 8, 8), photo(8, 8), {"mean": "1, 2"}, TensorError, "mean has 2 numbers"),
        ((1, 3, 8, 8), photo(8, 8), {"std": "0"}, TensorError, "may not be 0"),
        ((1, 3, 8, 8), photo(8, 8), {"device": "GPU.7", "policy": "error"}, DeviceError, "GPU.7"),
        ((1, 3, 8, 8), photo(8, 8), {"size": "squeeze"}, PlanError, "'squeeze'"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_compiled(pack, shape, image, widgets, error, words):
    save(Mean(), pack.folder / "model.xml", shape)
    with pytest.raises(error, match=re.escape(words)):
        run(pack, load(pack, "model.xml"), image, **widgets)


def test_a_model_that_cannot_take_single_images_is_refused(pack):
    x = ops.parameter([2, 3, 8, 8], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    y = ops.add(x, ops.constant(np.ones((2, 3, 8, 8), np.float32)))
    ov.save_model(ov.Model([y], [x]), pack.folder / "pairs.xml")
    # OpenVINO would take one image, and go on giving two
    with pytest.raises(ShapeError, match="pairs.xml works on 2 images at a time .* Export it with batch 1"):
        run(pack, load(pack, "pairs.xml"), photo(8, 8))


def test_cancel_between_two_images_stops_the_batch(pack, monkeypatch):
    from comfy import model_management

    save(Mean(), pack.folder / "mean.xml", (1, 3, 8, 8))
    model = load(pack, "mean.xml")

    def cancel(text: str) -> None:
        if text.startswith("1 of 3"):
            model_management.interrupt_current_processing()

    monkeypatch.setattr(pack.host, "show", cancel)
    with pytest.raises(model_management.InterruptProcessingException):
        run(pack, model, photo(8, 8, batch=3))
    part = pack.host.current_report().submodel("model", "", "mean.xml")
    assert part.openvino_calls == 1


def test_a_new_process_finds_the_compiled_model(pack, tmp_path, monkeypatch):
    save(Mean(), pack.folder / "mean.xml", (1, 3, 8, 8))
    first = run(pack, load(pack, "mean.xml"), photo(8, 8))
    again = SubmodelStore(CompileCache(tmp_path / "cache", 10**9))
    monkeypatch.setattr(pack.models, "store", lambda: again)
    second = run(pack, load(pack, "mean.xml"), photo(8, 8))
    assert (first.report["cache"]["state"], second.report["cache"]["state"]) == ("miss", "hit")
    assert values(first).tolist() == values(second).tolist()
    assert run(pack, load(pack, "mean.xml"), photo(8, 8), mean="0.1").report["cache"]["state"] == "miss"


# The bundled workflow


@pytest.fixture
def executor(pack, monkeypatch):
    """ComfyUI's own executor, with this pack's two nodes and those of the workflow. Its messages are in `sent`."""
    import execution
    from comfy_extras import nodes_preview_any

    import nodes

    ours = {node.GET_SCHEMA().node_id: node for node in (pack.models.LoadModel, pack.models.RunModel)}
    for name, node in {**nodes_preview_any.NODE_CLASS_MAPPINGS, **ours}.items():
        monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, name, node)
    sent: list[tuple[str, dict]] = []
    server = SimpleNamespace(
        client_id="test", last_node_id=None, send_sync=lambda event, data, to: sent.append((event, data))
    )

    def execute(prompt: dict) -> dict[str, dict]:
        """What each node shows, by node id."""
        is_valid, error, outputs, node_errors = asyncio.run(execution.validate_prompt("p", prompt, None))
        assert is_valid, (error, node_errors)
        execution.PromptExecutor(server, False, {"lru": 0, "ram": 0}).execute(
            prompt, "p", {"client_id": "test"}, outputs
        )
        return {data["node"]: data["output"] for event, data in sent if event == "executed"}

    return SimpleNamespace(execute=execute, sent=sent)


def bundled() -> dict:
    return json.loads((PACK / "workflows" / "api" / "classify_image.json").read_text(encoding="utf-8"))


def test_the_readmes_classifier_runs_in_the_bundled_workflow(pack, executor, tmp_path, monkeypatch):
    import folder_paths
    from torchvision.models import MobileNet_V3_Small_Weights, mobilenet_v3_small

    block = re.search(r"```python\n(from pathlib.*?)```", (PACK / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    # no network in tests: weights that are as good as any for finding out whether it runs
    weights = mobilenet_v3_small().state_dict()
    monkeypatch.setattr(MobileNet_V3_Small_Weights, "get_state_dict", lambda *_, **__: weights)
    monkeypatch.chdir(tmp_path)
    with torch.inference_mode(False):
        exec(compile(block.group(1), "README.md", "exec"), {})  # noqa: S102
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "openvino", ([str(tmp_path / "models/openvino")], set()))
    prompt = bundled()
    prompt["3"]["inputs"]["device"] = "CPU"
    shown = executor.execute(prompt)
    info = shown["4"]["text"][0]
    assert "classifier.xml: OpenVINO IR" in info and "1000 labels, from 'tench'" in info and "[1,3,224,224]" in info
    (answer,) = json.loads(shown["5"]["text"][0])["images"]
    categories = MobileNet_V3_Small_Weights.DEFAULT.meta["categories"]
    assert [c["label"] for c in answer["classes"]] == [categories[c["index"]] for c in answer["classes"]]
    assert len(answer["classes"]) == 5 and "| model classifier.xml | CPU | fp32 |" in shown["6"]["text"][0]
    assert shown["3"]["text"][0].startswith(answer["classes"][0]["label"])


def test_a_node_that_wants_the_image_of_a_classifier_is_stopped_and_the_others_run(pack, executor):
    save(Mean(), pack.folder / "mean.xml", (1, 3, 8, 8))
    prompt = bundled()
    prompt["1"]["inputs"]["model"] = "mean.xml"
    prompt["7"] = {"class_type": "PreviewImage", "inputs": {"images": ["3", 0]}}
    shown = executor.execute(prompt)
    assert "7" not in shown and json.loads(shown["5"]["text"][0])["model"] == "mean.xml"
    (error,) = (data for event, data in executor.sent if event == "execution_error")
    assert "mean.xml gives no image" in error["exception_message"] and error["node_id"] == "7"


def test_the_workflow_for_the_canvas_is_the_one_for_the_api(comfy):
    """Each widget in the order of the schema, each link where the API has it."""
    canvas = json.loads((PACK / "workflows" / "classify_image.json").read_text(encoding="utf-8"))
    nodes = {str(node["id"]): node for node in canvas["nodes"] if node["type"] != "MarkdownNote"}
    links = {link[0]: [str(link[1]), link[2]] for link in canvas["links"]}
    api = bundled()
    assert nodes.keys() == api.keys()
    for number, node in nodes.items():
        values = iter(node.get("widgets_values", []))
        given = {i["name"]: next(values) if "widget" in i else links[i["link"]] for i in node["inputs"]}
        given.pop("upload", None)
        assert (node["type"], given) == (api[number]["class_type"], api[number]["inputs"])
    assert (PACK / "workflows" / "classify_image.jpg").read_bytes()[:2] == b"\xff\xd8"
