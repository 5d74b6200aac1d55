"""The score of the demo model with its UNet on the (emulated) NPU, prompt by prompt through the API."""

from __future__ import annotations

import pytest
from client import image_of
from prompts import SAMPLER, bundled
from shapes import fixed_scenes, score_images

GOAL_PERCENT = 90
LOSS_PERCENT = {"int8": 2, "int8-weights": 1}
"""What a precision may cost against FP16."""

CALIBRATION = (
    "a white square on a orange background",
    "a yellow triangle on a purple background",
    "a green cross on a white background",
    "a orange star on a black background",
    "a purple ring on a green background",
    "a black circle on a yellow background",
)


@pytest.fixture(scope="module")
def score(npu_server):
    """score(precision): percent of a hundred prompts that come out right."""

    def score(precision: str) -> float:
        scenes = fixed_scenes(100)
        queued = [
            npu_server.post(bundled(n1={"unet_precision": precision}, n4={"text": scene.prompt}, n7={"seed": number}))
            for number, scene in enumerate(scenes)
        ]
        outputs = [npu_server.wait(prompt_id, timeout=1800)["outputs"] for prompt_id in queued]
        result = score_images(scenes, [image_of(npu_server, output) for output in outputs])
        print(f"{precision}: {result}")
        return result.percent

    return score


def calibrate(server) -> None:
    """Record a handful of prompts, as a user would: with one alone, colours of other prompts suffer."""
    for number, text in enumerate(CALIBRATION):
        prompt = bundled(n4={"text": text}, n7={"seed": 500 + number, "calls": 20})
        prompt[SAMPLER]["class_type"] = "OVNPU_Calibrate"
        server.wait(server.post(prompt))


def test_int8_and_int8_weights_cost_next_to_nothing(npu_server, score, run, report_of):
    in_float = score("fp16")
    assert in_float >= GOAL_PERCENT
    calibrate(npu_server)
    unet = report_of(run(npu_server, bundled(n1={"unet_precision": "int8"}, n7={"seed": 1000})))["submodels"]["unet"]
    assert unet["precision"] == "int8" and unet["quantization"]["used"], unet
    found = {precision: score(precision) for precision in LOSS_PERCENT}
    assert all(found[name] >= in_float - loss for name, loss in LOSS_PERCENT.items()), (in_float, found)
