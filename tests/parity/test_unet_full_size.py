"""NPU KSampler's UNet at Stable Diffusion 1.5's size, on the CPU in FP32, against the same MODEL on torch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from comfy_in_process import import_comfy

SEED = 7
EDGE = 32
"""Latent edge of a 256x256 image."""
STEPS = 3
CFG = 7.5
MIN_COSINE = 0.9999


@dataclass(frozen=True)
class Sampled:
    """initial: what the sampler started from, noise times the first sigma; latent: what it returned."""

    initial: object
    latent: object


@dataclass(frozen=True)
class Samples:
    """The same MODEL sampled on torch, then through OpenVINO, then on torch again without what was placed."""

    before: Sampled
    placed: Sampled
    after: Sampled
    noise: object
    openvino_calls: int
    torch_reasons: dict[str, int]


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Samples:
    import_comfy()
    from ovpack.nodes import host
    from ovpack.nodes.seams import unet
    from ovpack.ov_backends.compiler.cache import CompileCache
    from ovpack.ov_backends.plan import DevicePlan, SubmodelPlan
    from ovpack.ov_backends.report import RunReport
    from ovpack.ov_backends.runtime.store import SubmodelStore
    from random_models import sd15_model

    store, report = SubmodelStore(CompileCache(tmp_path_factory.mktemp("cache"), 20 * 10**9)), RunReport()
    model = sd15_model(SEED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unet, "store", lambda: store)
        patch.setattr(host, "current_report", lambda: report)
        before, noise = sample(model)
        placed, _ = sample(unet.place_unet(model, DevicePlan(unet=SubmodelPlan("CPU", "fp32"), policy="error")))
        after, _ = sample(model.clone())
    used = report.submodel("unet", "CPU")
    return Samples(before, placed, after, noise, used.openvino_calls, dict(used.torch_reasons))


def sample(model) -> tuple[Sampled, object]:
    """Sample as ComfyUI's common_ksampler does, keeping the latent before the first step; also returns the noise."""
    import comfy.sample
    import torch
    from random_models import random_conditioning

    initial = []

    def callback(step, denoised, latent, total_steps):
        if step == 0:
            initial.append(latent.clone())

    with torch.inference_mode():
        empty = torch.zeros(1, 4, EDGE, EDGE)
        noise = comfy.sample.prepare_noise(empty, SEED)
        positive, negative = random_conditioning(1), random_conditioning(2)
        latent = comfy.sample.sample(
            model, noise, STEPS, CFG, "euler", "normal", positive, negative, empty,
            callback=callback, disable_pbar=True, seed=SEED,
        )  # fmt: skip
    return Sampled(initial[0], latent), noise


@pytest.mark.e2e
def test_latent_equals_torch(samples):
    import torch

    a, b = (s.latent.double().flatten() for s in (samples.before, samples.placed))
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=0).item()
    ratio = (b.norm() / a.norm()).item()
    assert cosine >= MIN_COSINE, f"cosine {cosine}"
    assert ratio == pytest.approx(1, abs=1e-2), "same direction, other length"


@pytest.mark.e2e
def test_latent_does_not_follow_from_the_noise_alone(samples):
    """Guards the test above: latents that the UNet hardly moved would agree whatever it computed."""
    import torch

    a, b = (x.double().flatten() for x in (samples.noise, samples.before.latent))
    assert abs(torch.nn.functional.cosine_similarity(a, b, dim=0).item()) < 0.5


@pytest.mark.e2e
def test_noise_is_identical(samples):
    assert (samples.before.initial - samples.placed.initial).abs().max() == 0


@pytest.mark.e2e
def test_every_call_ran_on_openvino(samples):
    # ComfyUI takes both halves of CFG in one call, or each in its own where memory is short
    assert samples.openvino_calls in (STEPS, 2 * STEPS)
    assert samples.torch_reasons == {}


@pytest.mark.e2e
def test_unpatched_clone_is_untouched(samples):
    assert (samples.before.latent == samples.after.latent).all()
