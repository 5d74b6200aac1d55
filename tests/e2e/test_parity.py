"""Inside one ComfyUI: the stock KSampler on torch beside the compiled UNet, same seed."""

from __future__ import annotations

import pytest
import torch
from client import output_latent
from prompts import FOLDER, PLAN, SAMPLER, bundled, plan, saving_latents, with_stock_sampler


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a.flatten().double(), b.flatten().double(), dim=0).item()


@pytest.fixture(scope="module")
def latents(cpu_server, run):
    """latents(name, prompt): runs `prompt` and returns what its sampler made."""

    def of(name: str, prompt: dict) -> torch.Tensor:
        run(cpu_server, saving_latents(prompt, name))
        return output_latent(cpu_server, name)

    return of


BASE = {"n1": plan("CPU", "fp32"), "n7": {"seed": 77}}


def test_npu_ksampler_gives_the_latents_of_the_stock_ksampler(latents):
    stock = latents("stock", with_stock_sampler(bundled(**BASE)))
    ours = latents("ours", bundled(**BASE))
    assert cosine(ours, stock) >= 0.9999
    assert (ours - stock).abs().max() < 0.05 * stock.std()


def test_the_stock_sampler_on_an_npu_model_gives_the_same_as_npu_ksampler(latents):
    prompt = bundled(**BASE)
    prompt["30"] = {"class_type": "OVNPU_Model", "inputs": {"model": [FOLDER, 0], "plan": [PLAN, 0]}}
    placed = latents("placed", with_stock_sampler(prompt, model=["30", 0]))
    assert torch.equal(placed, latents("ours_again", bundled(**BASE)))


def test_an_unplaced_clone_is_untouched_afterwards(latents):
    before = latents("before", with_stock_sampler(bundled(**BASE, n5={"text": "x"})))
    latents("between", bundled(**BASE, n5={"text": "x"}))
    # another seed in between, so that ComfyUI's cache does not answer
    latents("other", with_stock_sampler(bundled(n1=BASE["n1"], n7={"seed": 78}, n5={"text": "x"})))
    after = latents("after", with_stock_sampler(bundled(**BASE, n5={"text": "x"})))
    assert torch.equal(before, after)


def test_no_noise_differs_when_nothing_is_denoised(latents):
    """Zero steps of denoising leave the initial noise: it must be the same noise."""
    advanced = {
        "add_noise": "enable", "noise_seed": 5, "steps": 20, "start_at_step": 0, "end_at_step": 1,
        "return_with_leftover_noise": "enable",
    }  # fmt: skip

    def prompt(class_type: str, **more) -> dict:
        made = bundled(n1=BASE["n1"])
        inputs = made[SAMPLER]["inputs"]
        for name in ("seed", "steps", "denoise", "plan"):
            inputs.pop(name)
        made[SAMPLER] = {"class_type": class_type, "inputs": {**inputs, **advanced, **more}}
        return made

    stock = latents("noise_stock", prompt("KSamplerAdvanced"))
    ours = latents("noise_ours", prompt("OVNPU_KSamplerAdvanced", plan=[PLAN, 0]))
    assert cosine(ours, stock) >= 0.999999


def test_text_encoder_and_vae_on_openvino_change_nothing_that_can_be_seen(cpu_server, run, report_of):
    import numpy as np
    from client import image_of

    ours = run(cpu_server, bundled(**BASE, n11={"filename_prefix": "all_openvino"}))
    prompt = with_stock_sampler(bundled(**BASE, n11={"filename_prefix": "all_torch"}))
    for node in ("4", "5"):
        prompt[node]["inputs"]["clip"] = [FOLDER, 1]
    prompt["9"]["inputs"]["vae"] = [FOLDER, 2]
    stock = run(cpu_server, prompt)
    difference = np.abs(image_of(cpu_server, ours).astype(int) - image_of(cpu_server, stock).astype(int))
    assert difference.max() <= 8 and difference.mean() < 1
