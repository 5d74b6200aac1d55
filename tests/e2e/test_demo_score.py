"""The score of the demo model with its UNet on the (emulated) NPU, prompt by prompt through the API."""

from __future__ import annotations

import pytest
from client import image_of
from prompts import bundled
from shapes import fixed_scenes, score_images

GOAL_PERCENT = 90
LOSS_PERCENT = {"int8": 2, "int8-weights": 1}
"""What a precision may cost against FP16."""


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


def test_int8_and_int8_weights_cost_next_to_nothing(npu_server, score, run, report_of):
    in_float = score("fp16")
    assert in_float >= GOAL_PERCENT
    # the first run in int8 records and quantizes
    run(npu_server, bundled(n1={"unet_precision": "int8"}))
    unet = report_of(run(npu_server, bundled(n1={"unet_precision": "int8"}, n7={"seed": 1000})))["submodels"]["unet"]
    assert unet["precision"] == "int8" and unet["quantization"]["used"], unet
    found = {precision: score(precision) for precision in LOSS_PERCENT}
    assert all(found[name] >= in_float - loss for name, loss in LOSS_PERCENT.items()), (in_float, found)
