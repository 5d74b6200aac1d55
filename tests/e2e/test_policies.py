"""A workflow saved with a device that this machine does not have."""

from __future__ import annotations

import pytest
from client import image_of
from comfy_server import PromptFailed
from prompts import PLAN, bundled, plan
from shapes import Scene, read_scene

CIRCLE = Scene("circle", "red", "blue")


def test_a_workflow_saved_with_npu_runs_without_one_and_says_why(cpu_server, run, report_of):
    outputs = run(cpu_server, bundled(n1=plan("NPU", policy="warn")))
    assert read_scene(image_of(cpu_server, outputs)) == CIRCLE
    unet = report_of(outputs)["submodels"]["unet"]
    assert (unet["requested_device"], unet["actual_device"]) == ("NPU", "CPU")
    (notice,) = unet["notices"]
    assert "instead of NPU" in notice and len(notice) > len("unet runs on CPU instead of NPU. ")
    assert "instead of NPU" in outputs["7"]["text"][0]


def test_allow_runs_and_only_the_report_tells(cpu_server, run, report_of):
    outputs = run(cpu_server, bundled(n1=plan("NPU", policy="allow")))
    assert "instead of NPU" in report_of(outputs)["submodels"]["unet"]["notices"][0]
    assert "instead of NPU" not in outputs["7"]["text"][0]


@pytest.mark.parametrize("device", ["NPU", "GPU", "GPU.1"])
def test_error_stops_with_device_reason_and_remedy_and_the_server_goes_on(cpu_server, run, device):
    if device.split(".")[0] in cpu_server.get("/system_stats").decode():
        pytest.skip(f"This machine has a {device}.")
    with pytest.raises(PromptFailed) as failure:
        run(cpu_server, bundled(n1=plan(device, policy="error")))
    assert failure.value.node_type in ("OVNPU_CLIP", "OVNPU_KSampler", "OVNPU_VAE")
    assert device in failure.value.message and "set the fallback policy" in failure.value.message
    run(cpu_server, bundled(n1=plan("CPU", policy="error")))


def test_device_widgets_offer_the_same_everywhere(cpu_server, npu_server):
    def offered(server):
        info = server.get_json("/object_info/OVNPU_DevicePlan")["OVNPU_DevicePlan"]["input"]["required"]
        return info["unet_device"][1]["options"]

    assert offered(cpu_server) == offered(npu_server)
    assert {"AUTO", "CPU", "GPU", "NPU", "GPU.0", "GPU.1"} <= set(offered(cpu_server))


def test_a_precision_that_the_device_lacks_follows_the_policy(npu_server, run, report_of):
    prompt = bundled(n1={**plan("NPU", policy="warn"), "unet_precision": "bf16", "vae_device": "CPU"})
    unet = report_of(run(npu_server, prompt))["submodels"]["unet"]
    assert unet["precision"] == "fp16" and "bf16 was asked for" in unet["notices"][0]
    prompt[PLAN]["inputs"]["policy"] = "error"
    with pytest.raises(PromptFailed, match="bf16 was asked for"):
        run(npu_server, prompt)
