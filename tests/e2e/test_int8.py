"""The bundled workflow as it is shipped, on an emulated NPU: the first run records and quantizes, the next is INT8."""

from __future__ import annotations

import json

from client import EMULATED, image_of, messages_until_done
from prompts import SAMPLER, as_shipped
from shapes import Scene, read_scene

CIRCLE = Scene("circle", "red", "blue")


def test_int8_comes_by_itself_and_is_there_after_a_restart(start_server, run, report_of, tmp_path):
    texts: list[str] = []
    with start_server("int8", EMULATED, cache=tmp_path / "cache") as server:
        first = messages_until_done(server, as_shipped(), texts.append)["outputs"]
        said = "\n".join(texts)
        assert "recording calibration" in said and "Quantizing the UNet to int8" in said, said
        assert report_of(first)["submodels"]["unet"]["precision"] == "fp16"
        assert read_scene(image_of(server, first)) == CIRCLE
    with start_server("int8 again", EMULATED, cache=tmp_path / "cache") as server:
        outputs = run(server, as_shipped())
        assert read_scene(image_of(server, outputs)) == CIRCLE
    unet = report_of(outputs)["submodels"]["unet"]
    assert (unet["actual_device"], unet["precision"]) == ("NPU (emulated on CPU)", "int8")
    assert unet["seconds"]["quantize"] == unet["seconds"]["convert"] == 0
    assert unet["quantization"]["gate"]["passed"] and unet["quantization"]["samples"] == 40
    assert "int8 (cosine to the float model at least 0.99" in outputs[SAMPLER]["text"][0]


def test_calibrate_adds_to_the_set(npu_server, run):
    prompt = as_shipped()
    prompt[SAMPLER]["class_type"] = "OVNPU_Calibrate"
    prompt[SAMPLER]["inputs"] |= {"calls": 8, "steps": 4}
    totals = []
    for seed in (101, 102):
        prompt[SAMPLER]["inputs"]["seed"] = seed
        report = json.loads(run(npu_server, prompt)[SAMPLER]["ovnpu_report"][0])
        unet = report["submodels"]["unet"]
        assert unet["precision"] == "fp16"
        (notice,) = unet["notices"]
        assert notice.startswith("8 calls were recorded; the set of this model holds ")
        totals.append(int(notice.split("holds ")[1].split(" ")[0]))
    assert totals[1] == totals[0] + 8
