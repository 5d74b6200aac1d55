"""What the compiled graph cannot express runs on torch, is counted, and gives what stock ComfyUI gives."""

from __future__ import annotations

import pytest
import torch
from client import output_latent
from comfy_server import PromptFailed
from prompts import FOLDER, PLAN, SAMPLER, bundled, plan, saving_latents, with_stock_sampler

CPU = plan("CPU", "fp32")


def patched(node: dict, policy: str = "warn", **changes) -> dict:
    """The bundled workflow with a model patch between loader and sampler, at four steps."""
    prompt = bundled(n1={**CPU, "policy": policy}, n7={"steps": 4, **changes})
    prompt["30"] = {**node, "inputs": {"model": [FOLDER, 0], **node["inputs"]}}
    prompt[SAMPLER]["inputs"]["model"] = ["30", 0]
    return prompt


FREE_U = {"class_type": "FreeU", "inputs": {"b1": 1.1, "b2": 1.2, "s1": 0.9, "s2": 0.2}}
PAG = {"class_type": "PerturbedAttentionGuidance", "inputs": {"scale": 3.0}}
HYPER_TILE = {
    "class_type": "HyperTile",
    "inputs": {"tile_size": 256, "swap_size": 2, "max_depth": 0, "scale_depth": False},
}


@pytest.mark.parametrize(("node", "openvino", "on_torch", "named"), [
    (FREE_U, 0, 4, "output_block_patch"),
    (HYPER_TILE, 0, 4, "attn1_patch"),
    (PAG, 4, 4, "attn1"),
], ids=["FreeU", "HyperTile", "PAG"])  # fmt: skip
def test_patched_calls_run_on_torch_and_are_counted(cpu_server, run, report_of, node, openvino, on_torch, named):
    unet = report_of(run(cpu_server, patched(node)))["submodels"]["unet"]
    assert unet["calls"] == {"openvino": openvino, "torch": on_torch}
    assert named in unet["torch_reasons"][0]


def test_a_patched_run_gives_what_stock_gives(cpu_server, run):
    made = {}
    for name, prompt in (("pag_ours", patched(PAG)), ("pag_stock", with_stock_sampler(patched(PAG)))):
        run(cpu_server, saving_latents(prompt, name))
        made[name] = output_latent(cpu_server, name).flatten()
    assert torch.nn.functional.cosine_similarity(made["pag_ours"], made["pag_stock"], dim=0) >= 0.9999


def test_policy_error_refuses_a_patched_call(cpu_server, run):
    with pytest.raises(PromptFailed, match="block patch.*fallback policy is 'error'"):
        run(cpu_server, patched(FREE_U, policy="error"))


def test_cfg_one_needs_no_second_evaluation_and_no_torch(cpu_server, run, report_of):
    unet = report_of(run(cpu_server, bundled(n1=CPU, n7={"cfg": 1.0, "steps": 4})))["submodels"]["unet"]
    assert unet["calls"] == {"openvino": 4, "torch": 0}
    assert PLAN in bundled()
