"""The score of the demo model with its UNet on the (emulated) NPU, prompt by prompt through the API."""

from __future__ import annotations

from client import image_of
from prompts import bundled
from shapes import fixed_scenes, score_images

GOAL_PERCENT = 90


def test_ninety_of_a_hundred_prompts_come_out_right_on_the_npu(npu_server):
    scenes = fixed_scenes(100)
    queued = [
        npu_server.post(bundled(n4={"text": scene.prompt}, n7={"seed": number})) for number, scene in enumerate(scenes)
    ]
    outputs = [npu_server.wait(prompt_id, timeout=1800)["outputs"] for prompt_id in queued]
    score = score_images(scenes, [image_of(npu_server, output) for output in outputs])
    assert score.percent >= GOAL_PERCENT, str(score)
