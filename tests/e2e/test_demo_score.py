"""The score of the demo model with its UNet on the (emulated) NPU and on the CPU, prompt by prompt through the API."""

from __future__ import annotations

import pytest
from client import image_of
from prompts import SAMPLER, bundled
from shapes import fixed_scenes, score_images

GOAL_PERCENT = 90
LOSS_PERCENT = {"int8": 2, "int8-weights": 1}
"""What a precision may cost against floating point."""

CALIBRATION = (
    "a white square on a orange background",
    "a yellow triangle on a purple background",
    "a green cross on a white background",
    "a orange star on a black background",
    "a purple ring on a green background",
    "a black circle on a yellow background",
)


def score(server, device: str, precision: str) -> float:
    """Percent of a hundred prompts that come out right."""
    scenes = fixed_scenes(100)
    plan = {"unet_device": device, "unet_precision": precision}
    queued = [
        server.post(bundled(n1=plan, n4={"text": scene.prompt}, n7={"seed": number}))
        for number, scene in enumerate(scenes)
    ]
    outputs = [server.wait(prompt_id, timeout=1800)["outputs"] for prompt_id in queued]
    result = score_images(scenes, [image_of(server, output) for output in outputs])
    print(f"{device} {precision}: {result}")
    return result.percent


def calibrate(server) -> None:
    """Record a handful of prompts, as a user would: with one alone, colours of other prompts suffer."""
    for number, text in enumerate(CALIBRATION):
        prompt = bundled(n4={"text": text}, n7={"seed": 500 + number, "calls": 20})
        prompt[SAMPLER]["class_type"] = "OVNPU_Calibrate"
        server.wait(server.post(prompt))


@pytest.mark.parametrize(("device", "in_float"), [("NPU", "fp16"), ("CPU", "fp32")])
def test_int8_and_int8_weights_cost_next_to_nothing(npu_server, cpu_server, run, report_of, device, in_float):
    server = npu_server if device == "NPU" else cpu_server
    reference = score(server, device, in_float)
    assert reference >= GOAL_PERCENT
    calibrate(server)
    plan = {"unet_device": device, "unet_precision": "int8"}
    unet = report_of(run(server, bundled(n1=plan, n7={"seed": 1000})))["submodels"]["unet"]
    assert unet["precision"] == "int8" and unet["quantization"]["used"], unet
    found = {precision: score(server, device, precision) for precision in LOSS_PERCENT}
    assert all(found[name] >= reference - loss for name, loss in LOSS_PERCENT.items()), (reference, found)
