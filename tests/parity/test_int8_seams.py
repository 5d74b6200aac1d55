"""INT8 and its calibration in ComfyUI's own MODEL, CLIP and VAE, with the demo model: the longer tests of the seams."""

from __future__ import annotations

import pytest
import torch
from demo_seams import encode, load_seams, sample, use_store
from ovpack.ov_backends.plan import DevicePlan, SubmodelPlan

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def seams():
    return load_seams()


@pytest.fixture(autouse=True)
def fresh(seams, clean_environment, cache, monkeypatch):
    """An empty cache, no compiled submodels and an empty report for each test."""
    use_store(seams, cache, monkeypatch)
    with torch.inference_mode():
        yield


def test_int8_records_in_the_first_run_and_runs_in_the_second(seams):
    stock = sample(seams, seams.model, steps=20)
    plan = DevicePlan(unet=SubmodelPlan("CPU", "int8"))
    for precision in ("fp32", "int8"):
        seams.host._reports.clear()
        ours = sample(seams, seams.place_unet(seams.model, plan), steps=20)
        report = seams.host.current_report().submodel("unet", "")
        assert (report.precision, report.openvino_calls, report.torch_calls) == (precision, 20, 0)
    assert report.quantization["samples"] == 40 and report.quantization["gate"]["passed"]
    assert torch.nn.functional.cosine_similarity(ours.flatten(), stock.flatten(), dim=0) > 0.97


def test_calibrating_records_in_float_and_adds_up(seams):
    from ovpack.ov_backends.quantize.calibration import Recorder

    plan = DevicePlan(unet=SubmodelPlan("CPU", "int8"))
    for total in (6, 12):
        seams.host._reports.clear()
        sample(seams, seams.place_unet(seams.model, plan, Recorder(6)), steps=4)
        report = seams.host.current_report().submodel("unet", "")
        assert report.precision == "fp32"
        assert report.notices == [
            f"6 calls were recorded; the set of this model holds {total} now, and INT8 uses them."
        ]
    sample(seams, seams.place_unet(seams.model, plan))
    assert report.precision == "int8" and report.quantization["samples"] == 12


def test_precisions_are_compared_side_by_side(seams):
    from ovpack.nodes.seams.precision import PrecisionComparison

    plan = DevicePlan(unet=SubmodelPlan("CPU", "int8-weights"))
    compared = PrecisionComparison(
        seams.model,
        plan,
        lambda model: {"samples": sample(seams, model)},
        lambda latent: seams.vae.decode(latent["samples"]),
    )
    assert compared.picture().shape == (1, 128, 256, 3)
    text = compared.text()
    assert "Latent: cosine 0.99" in text and "PSNR" in text and "Output 'noise': cosine 0.99" in text, text


@pytest.mark.parametrize("submodel", ["text encoder", "VAE"])
def test_int8_of_the_other_submodels_is_a_choice(seams, submodel):
    int8 = SubmodelPlan("CPU", "int8")
    name = {"text encoder": "text_encoder", "VAE": "vae_decoder"}[submodel]
    report = seams.host.current_report().submodel(name, "CPU")
    for index in range(5):
        if submodel == "VAE":
            image = seams.place_vae(seams.vae, DevicePlan(vae=int8)).decode(torch.randn(1, 4, 16, 16))
            assert image.std() > 0
        else:
            encode(seams.place_clip(seams.clip, DevicePlan(text_encoder=int8)), f"a red star number {index}")
    assert report.precision == "int8" and report.quantization["samples"] == 4
    assert ("colour shift red" in report.line()) == (submodel == "VAE")
