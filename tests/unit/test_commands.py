"""The command line: each command on small real models, its exit code, its JSON, and its one-line errors."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from ovpack.ov_backends.__main__ import COMMANDS, ProgressLine, main
from ovpack.ov_backends.quantize.calibration import CalibrationSet
from PIL import Image
from shipped_models import MAGIKA
from small_models import WIDTH, dense_input, dense_model

PACK = Path(__file__).parents[2]
FIXED = ("--shape", f"x=[1,{WIDTH}]")


@pytest.fixture(autouse=True)
def own_place(tmp_path, clean_environment, monkeypatch):
    """A current folder and a cache of each test's own, with dense.xml in it."""
    monkeypatch.setenv("OVNPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    ov.save_model(dense_model(), "dense.xml", compress_to_fp16=False)


@pytest.fixture
def run(capsys):
    """Run a command with --json: (exit code, the JSON)."""

    def call(*arguments: str) -> tuple[int, dict]:
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def fails(capsys):
    """Run a command that is used wrongly: what it says."""

    def call(*arguments: str) -> str:
        try:
            code = main(list(arguments))
        except SystemExit as stop:  # argparse's way
            code = stop.code if isinstance(stop.code, int) else -1
        said = capsys.readouterr()
        assert code == 2 and said.out == "", said
        assert "Traceback" not in said.err
        return said.err.strip().splitlines()[-1]

    return call


@pytest.fixture(scope="module")
def quantized(tmp_path_factory) -> Path:
    """A folder with dense.xml, samples.npz and int8.xml, which `quantize` has made; log.txt holds what it said."""
    folder = tmp_path_factory.mktemp("quantized")
    ov.save_model(dense_model(), folder / "dense.xml", compress_to_fp16=False)
    np.savez(folder / "samples.npz", x=np.random.default_rng(0).standard_normal((16, 1, WIDTH)).astype(np.float32))
    with pytest.MonkeyPatch.context() as patch, (folder / "log.txt").open("w", encoding="utf-8") as log:
        patch.chdir(folder)
        patch.setattr(sys, "stdout", log)
        arguments = ["quantize", "dense.xml", "int8.xml", "--samples", "samples.npz", "--range", "min-max", "--json"]
        # CPUs without VNNI saturate in INT8, and noise into 64 numbers is the hardest that there is
        assert main([*arguments, "--smooth-quant", "0", "--limit", "0.95", *FIXED]) == 0
    return folder


# --- inspect, convert -------------------------------------------------------------------------------------------------


def test_inspect_shows_ports_open_dimensions_and_that_cost_needs_sizes(run):
    code, data = run("inspect", str(MAGIKA))
    assert code == 0
    assert data["inputs"][0] | {"layout": ""} == {
        "name": "bytes", "shape": "[?,2048]", "dtype": "i32", "layout": "", "dynamic": [0],
    }  # fmt: skip
    assert data["is_dynamic"] and data["macs"] is None and data["quantized"] == ""


def test_inspect_counts_macs_and_bytes_of_each_type(run):
    _, data = run("inspect", "dense.xml", *FIXED)
    product = next(group for group in data["operators"] if group["type"] == "MatMul")
    assert product == {
        "type": "MatMul", "count": 1, "macs": WIDTH**2, "weight_bytes": 4 * WIDTH**2, "activation_bytes": 8 * WIDTH,
    }  # fmt: skip
    assert data["macs"] == WIDTH**2


def test_inspect_shows_what_the_device_fused(run):
    _, data = run("inspect", "dense.xml", *FIXED, "--compiled", "CPU")
    assert any({"product", "curve"} <= set(layer["fused"]) for layer in data["execution"]["layers"])


def test_inspect_sees_that_a_model_is_quantized(run, quantized):
    _, data = run("inspect", str(quantized / "int8.xml"))
    assert data["quantized"]


def test_convert_writes_an_ir_of_the_size_asked_for(run):
    code, data = run("convert", str(MAGIKA), "magika.xml", "--shape", "bytes=[1,2048]", "--fp16")
    assert code == 0 and data["inputs"] == {"bytes": "[1,2048]"} and not data["is_dynamic"]
    assert data["bytes"] == Path("magika.xml").stat().st_size + Path("magika.bin").stat().st_size
    assert list(ov.Core().read_model("magika.xml").input(0).shape) == [1, 2048]


# --- quantize ---------------------------------------------------------------------------------------------------------


def test_quantize_writes_a_smaller_model_that_passed_the_gate(quantized):
    data = json.loads((quantized / "log.txt").read_text(encoding="utf-8"))
    assert data["gate"]["passed"] and min(data["gate"]["cosines"]) >= 0.95 and data["samples"] == 16
    assert (quantized / "int8.bin").stat().st_size < (quantized / "dense.bin").stat().st_size / 2


def test_quantize_refuses_a_quantized_model(fails, quantized):
    said = fails("quantize", str(quantized / "int8.xml"), "again.xml", "--samples", str(quantized / "samples.npz"))
    assert "is quantized already" in said
    assert not Path("again.xml").exists()


def test_quantize_writes_nothing_when_the_gate_fails(capsys, quantized):
    arguments = ["quantize", "dense.xml", "out.xml", "--precision", "int4-weights", "--limit", "0.999999"]
    assert main([*arguments, "--samples", str(quantized / "samples.npz"), *FIXED]) == 1
    assert "Not written: the gate failed" in capsys.readouterr().out
    assert not Path("out.xml").exists()


def test_quantize_takes_safetensors_and_folders_of_arrays(run):
    from safetensors.numpy import save_file

    Path("arrays").mkdir()
    for index in range(4):
        np.save(f"arrays/{index}.npy", dense_input(index + 1)[-1:])
    save_file({"x": np.concatenate([dense_input()] * 4)}, "samples.safetensors")
    for source in ("arrays", "samples.safetensors"):
        code, data = run("quantize", "dense.xml", "w.xml", "--precision", "int8-weights", "--samples", source, *FIXED)
        assert (code, data["samples"], len(data["gate"]["cosines"])) == (0, 4, 4), source


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_images_become_samples_with_mean_scale_and_layout(tmp_path, layout):
    from openvino import opset13 as ops
    from ovpack.ov_backends.commands.samples import ImageOptions, read_samples

    (tmp_path / "images").mkdir()
    Image.new("RGB", (10, 10), (255, 0, 51)).save(tmp_path / "images" / "one.png")
    shape = [1, 3, 4, 6] if layout == "NCHW" else [1, 4, 6, 3]
    x = ops.parameter(shape, ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    model = ov.Model([ops.relu(x)], [x], "image")
    (sample,) = read_samples(tmp_path / "images", model, ImageOptions((0.5, 0.5, 0.0), (0.5,), layout))
    assert list(sample["x"].shape) == shape and sample["x"].dtype == np.float32
    colours = sample["x"][0].transpose(1, 2, 0) if layout == "NCHW" else sample["x"][0]
    np.testing.assert_allclose(colours, np.broadcast_to([1.0, -1.0, 0.4], (4, 6, 3)), atol=1e-6)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("absent.npz", "There are no samples at absent.npz"),
        ("broken.npz", "broken.npz cannot be read"),
        ("broken.safetensors", "broken.safetensors is damaged"),
        ("names.npz", "has no array 'x'; it has y"),
        ("shape.npz", "'x' has the shape [1, 3], and the model takes [1,64]"),
        ("empty", "has no .npy files and no images"),
        ("dense.bin", "samples are .npz, .safetensors"),
    ],
)
def test_samples_that_do_not_fit_are_explained(fails, source, said):
    Path("broken.npz").write_bytes(b"no zip")
    Path("broken.safetensors").write_bytes(b"no tensors")
    Path("empty").mkdir()
    np.savez("names.npz", y=dense_input())
    np.savez("shape.npz", x=np.zeros((2, 1, 3), np.float32))
    assert said in fails("quantize", "dense.xml", "out.xml", "--samples", source, *FIXED)


def test_int8_without_samples_says_what_to_give(fails):
    assert "--samples FILE" in fails("quantize", "dense.xml", "out.xml")


def test_a_layer_to_keep_that_is_not_there_is_named(fails):
    said = fails("quantize", "dense.xml", "out.xml", "--precision", "int8-weights", "--keep-float", "produkt")
    assert "the model has no layer 'produkt', but product" in said


# --- compile, cache ---------------------------------------------------------------------------------------------------


def test_compile_fills_the_cache_and_then_uses_it(run):
    _, first = run("compile", "dense.xml", *FIXED)
    _, second = run("compile", "dense.xml", *FIXED)
    assert (first["cache"]["state"], first["cache"]["reason"], second["cache"]["state"]) == ("miss", "new", "hit")
    assert first["cache"]["key"] == second["cache"]["key"]
    assert first["compile_s"] > 0 == second["compile_s"] and first["import_s"] > 0 and first["blob_bytes"] > 0
    assert first["placement"]["devices"] == {"CPU": 2} and first["precision"] == "fp32"


def test_compile_says_why_it_was_made_again(run):
    run("compile", "dense.xml", *FIXED)
    _, data = run("compile", "dense.xml", "--shape", f"x=[2,{WIDTH}]")
    assert data["cache"]["reason"] == f"shape changed: x=[1,{WIDTH}] -> x=[2,{WIDTH}]"


def test_a_model_that_changed_on_disk_is_compiled_again(run):
    run("compile", "dense.xml", *FIXED)
    ov.save_model(dense_model(), "dense.xml", compress_to_fp16=True)
    _, data = run("compile", "dense.xml", *FIXED)
    assert data["cache"]["state"] == "miss" and data["cache"]["reason"].startswith("weights changed")


def test_the_emulated_npu_takes_a_model_of_fixed_size(run, emulated_npu):
    _, data = run("compile", "dense.xml", "--device", "NPU", *FIXED)
    assert data["device"] == "NPU (emulated on CPU)" and data["precision"] == "fp16"


def test_open_dimensions_are_refused_for_the_npu_with_the_option_to_type(fails, emulated_npu):
    assert "--shape bytes=[1,2048]" in fails("compile", str(MAGIKA), "--device", "NPU")


def test_a_device_that_is_not_there_is_explained(fails):
    assert fails("compile", "dense.xml", "--device", "FPGA").startswith("error: FPGA is not available. OpenVINO knows")


def test_the_cache_is_listed_and_emptied(run, fails, capsys):
    _, compiled = run("compile", "dense.xml", *FIXED)
    key = compiled["cache"]["key"]
    _, listed = run("cache", "list")
    assert [(entry["key"], entry["why"]) for entry in listed["entries"]] == [(key, "new")]
    assert main(["cache", "list"]) == 0
    assert key[:12] in capsys.readouterr().out
    _, size = run("cache", "size")
    assert size["bytes"] == compiled["blob_bytes"] and size["entries"] == 1
    assert "0 entries" in fails("cache", "remove", "zzz")
    assert "add --yes" in fails("cache", "clear")
    assert run("cache", "remove", key[:12])[1]["removed"] == [key]
    run("compile", "dense.xml", *FIXED)
    assert run("cache", "clear", "--yes")[1]["removed"] == [key]
    assert run("cache", "size")[1]["entries"] == 0


def recorded(count: int, letter: str = "a") -> Path:
    """The folder of a calibration set of `count` calls in this test's cache."""
    identity = {"submodel": "unet", "model": f"Net {letter}", "weights": letter * 32}
    calibration = CalibrationSet(Path(os.environ["OVNPU_CACHE_DIR"]), identity)
    calibration.add([{"x": np.full((1, 4), number, np.float32)} for number in range(count)], "a red ball, " * 20)
    return calibration.path


def test_a_bad_calibration_set_is_found_and_removed_alone(run, fails, capsys):
    good, bad = recorded(3, "a"), recorded(2, "b")
    _, listed = run("cache", "list")
    rows = {row["what"]: row for row in listed["calibration"]}
    assert rows["unet Net b"]["key"] == bad.name and rows["unet Net b"]["samples"] == 2
    assert main(["cache", "list"]) == 0
    shown = capsys.readouterr().out
    assert "2 calibration sets" in shown and "2 calls of 1 runs: a red ball, a red ball," in shown
    assert max(map(len, shown.splitlines()[1:])) < 120
    assert run("cache", "size")[1]["calibration_sets"] == 2
    assert run("cache", "remove", bad.name[:12])[1]["removed"] == [bad.name]
    assert good.exists() and not bad.exists()


def test_clearing_the_cache_leaves_calibration_sets_unless_told(run, fails):
    kept = recorded(3)
    run("compile", "dense.xml", *FIXED)
    assert len(run("cache", "clear", "--yes")[1]["removed"]) == 1 and kept.exists()
    assert "all 1 entries, calibration sets among them," in fails("cache", "clear", "--calibration")
    assert run("cache", "clear", "--calibration", "--yes")[1]["removed"] == [kept.name] and not kept.exists()


def test_a_calibration_set_whose_manifest_is_damaged_can_be_removed(run):
    folder = recorded(3)
    (folder / "manifest.json").write_text("{", encoding="utf-8")
    (row,) = run("cache", "list")[1]["calibration"]
    assert row["key"] == folder.name and row["what"].startswith("of an unknown model") and row["bytes"] > 0
    assert run("cache", "remove", row["key"])[1]["removed"] == [folder.name]


# --- compare ----------------------------------------------------------------------------------------------------------


def test_compare_passes_what_is_alike_and_fails_below_the_limit(run, quantized):
    files = (str(quantized / "dense.xml"), str(quantized / "int8.xml"), "--input", str(quantized / "samples.npz"))
    code, data = run("compare", *files, *FIXED, "--limit", "0.95")
    assert code == 0 and data["passed"] and 0.95 < data["outputs"]["y"] < 1
    code, data = run("compare", *files, *FIXED, "--limit", "0.9999999")
    assert code == 1 and not data["passed"]


def test_compare_runs_one_model_on_two_devices(run, emulated_npu):
    code, data = run("compare", "dense.xml", "--device", "CPU,NPU", *FIXED)
    assert code == 0 and data["outputs"]["y"] == pytest.approx(1, abs=1e-6)


def test_compare_needs_two_of_something(fails):
    assert "Give a second model, or two devices" in fails("compare", "dense.xml")
    assert "give one device, or two" in fails("compare", "dense.xml", "--device", "CPU,CPU,CPU")


# --- bench ------------------------------------------------------------------------------------------------------------


def test_bench_tells_first_steady_and_concurrent_times_and_draws_the_layers(run):
    code, data = run("bench", "dense.xml", *FIXED, "--seconds", "0.3", "--diagnose", "--picture", "layers.png")
    assert code == 0 and data["one"]["median_s"] > 0 and data["many"]["per_second"] > 0 and data["theory"]
    assert sum(data["layers"]["by_type"].values()) > 0
    assert len(data["diagnosis"]["steps"]) == 4 and data["diagnosis"]["recommendation"]
    with Image.open("layers.png") as picture:
        assert picture.width > 500


def test_bench_lets_two_models_and_two_devices_take_turns(run, emulated_npu):
    shutil.copy("dense.xml", "other.xml")
    shutil.copy("dense.bin", "other.bin")
    _, models = run("bench", "dense.xml", "other.xml", *FIXED, "--seconds", "0.2")
    assert models["other.xml on CPU"]["ratio"]["median"] > 0
    _, both = run("bench", "dense.xml", "--device", "CPU,NPU", *FIXED, "--seconds", "0.2")
    assert list(both) == ["dense.xml on CPU", "dense.xml on NPU (emulated on CPU)"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a.xml", "b.xml", "--device", "CPU,NPU"), "two models on one device, or one model on two devices"),
        (("dense.xml", "--seconds", "0"), "a measurement takes time"),
        (("dense.xml", "dense.xml", *FIXED), "nothing to set against each other"),
        (("dense.xml", "--device", "CPU,CPU", "--picture", "x.png"), "--picture shows one model"),
        (("dense.xml",), "leaves sizes open"),
    ],
)
def test_what_bench_cannot_measure_is_explained(fails, arguments, said):
    assert said in fails("bench", *arguments)


# --- the command line itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__.rpartition(".")[2])
def test_every_command_has_help_with_an_example(command, capsys):
    name = command.__name__.rpartition(".")[2]
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert f"python -m ov_backends {name} " in text.partition("example:")[2] and "--json" in text


@pytest.mark.parametrize(
    "arguments", [(), ("unknown",), ("inspect",), ("quantize", "a.onnx", "b.xml", "--precision", "x")]
)
def test_bad_use_ends_with_2_and_one_reason(fails, arguments):
    assert "error:" in fails(*arguments)


def test_the_module_runs_in_a_console_that_lacks_most_characters(tmp_path):
    shutil.copy("dense.xml", "\u6a21\u578b.xml")
    shutil.copy("dense.bin", "\u6a21\u578b.bin")
    environment = {**os.environ, "PYTHONPATH": str(PACK), "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(
        [sys.executable, "-m", "ov_backends", "inspect", "\u6a21\u578b.xml"],
        env=environment, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"Inputs of ??:" in done.stdout


def test_progress_is_one_line_on_a_terminal_and_a_line_a_step_elsewhere(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, expected in ((io.StringIO(), "Compiling\nNext\n"), (Terminal(), "\rCompiling\rCompiling, 1 s\rNext")):
        monkeypatch.setattr(sys, "stderr", stream)
        line = ProgressLine()
        for text in ("Compiling", "Compiling, 1 s", "Next"):
            line(text)
        assert stream.getvalue().rstrip(" ") == expected
