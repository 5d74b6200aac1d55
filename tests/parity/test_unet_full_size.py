"""NPU KSampler's UNet at Stable Diffusion 1.5's size, on the CPU in FP32, against the same MODEL on torch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from comfy_in_process import import_comfy

SEED = 7
EDGE = 32
"""Latent edge of a 256x256 image."""
STEPS = 3
CFG = 7.5
MIN_COSINE = 0.9999
SCALING_FACTOR = 0.18215
"""ComfyUI divides sampled latents by it (Rombach et al., 2022)."""


@dataclass(frozen=True)
class Sampled:
    """initial: what the sampler started from, noise times the first sigma; latent: what it returned."""

    initial: torch.Tensor
    latent: torch.Tensor

    @property
    def added(self) -> torch.Tensor:
        """What the UNet made of it: Euler's method with a UNet that predicts nothing returns what it started from."""
        return self.latent - self.initial / SCALING_FACTOR


@dataclass(frozen=True)
class Samples:
    """The same MODEL sampled on torch, then through OpenVINO, then on torch again without what was placed."""

    before: Sampled
    placed: Sampled
    after: Sampled
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
        before = sample(model)
        placed = sample(unet.place_unet(model, DevicePlan(unet=SubmodelPlan("CPU", "fp32"), policy="error")))
        after = sample(model.clone())
    used = report.submodel("unet", "CPU")
    return Samples(before, placed, after, used.openvino_calls, dict(used.torch_reasons))


def sample(model) -> Sampled:
    """Sample as ComfyUI's common_ksampler does, keeping the latent before the first step."""
    import comfy.sample
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
    return Sampled(initial[0], latent)


def compare(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """Cosine of the two, and the length of b in lengths of a."""
    a, b = a.double().flatten(), b.double().flatten()
    return torch.nn.functional.cosine_similarity(a, b, dim=0).item(), (b.norm() / a.norm()).item()


@pytest.mark.e2e
def test_latent_equals_torch(samples):
    cosine, ratio = compare(samples.before.latent, samples.placed.latent)
    assert cosine >= MIN_COSINE, f"cosine {cosine}"
    assert ratio == pytest.approx(1, abs=1e-2), "same direction, other length"


@pytest.mark.e2e
def test_what_the_unet_added_to_the_noise_equals_torch(samples):
    """Without the noise, which both share and which would make any two latents alike."""
    cosine, ratio = compare(samples.before.added, samples.placed.added)
    assert cosine >= MIN_COSINE, f"cosine {cosine}"
    assert ratio == pytest.approx(1, abs=1e-2), "same direction, other length"


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
