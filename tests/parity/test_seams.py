"""The compiled submodels in ComfyUI's own MODEL, CLIP and VAE, in this process, with the demo model."""

from __future__ import annotations

import gc
import os
import shutil
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from demo_seams import CPU, CPU_PLAN, close, encode, load_seams, sample, use_store
from fp8_model import KINDS, fp8_model
from ovpack.ov_backends.errors import OVNPUError
from ovpack.ov_backends.plan import DevicePlan, SubmodelPlan
from ovpack.ov_backends.runtime.session import Session

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def seams(comfy):
    return load_seams()


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    """IR of the demo model, as the tests of this file make it: converting it anew for each would take minutes."""
    return tmp_path_factory.mktemp("converted") / "ir"


@pytest.fixture(autouse=True)
def fresh(request, seams, clean_environment, cache, converted, monkeypatch):
    """Nothing compiled and an empty report for each test, and where it is marked `unconverted` an empty cache."""
    mine = cache.root / "ir"
    if converted.exists() and "unconverted" not in request.keywords:
        shutil.copytree(converted, mine, copy_function=os.link)
    use_store(seams, cache, monkeypatch)
    with torch.inference_mode():
        yield
    for entry in mine.glob("*"):
        if not (converted / entry.name).exists():
            shutil.copytree(entry, converted / entry.name, copy_function=os.link)


def spoil(monkeypatch, value: float, times: int = 1) -> None:
    """Let the next `times` results hold only `value`, and the CPU claim FP16: none here overflows by itself."""
    honest, left = Session.__call__, [times]

    def call(self, inputs):
        outputs, seconds = honest(self, inputs)
        if left[0] > 0:
            left[0] -= 1
            outputs = {name: torch.full_like(tensor, value) for name, tensor in outputs.items()}
        return outputs, seconds

    monkeypatch.setattr(Session, "__call__", call)
    monkeypatch.setattr("ovpack.ov_backends.devices.capabilities", lambda device: "FP32 FP16")


@pytest.mark.parametrize("prompt", [
    "a red circle",
    "a (red:1.4) circle on a (blue:0.7) background",
    " ".join(["a green ring on a white background"] * 12),
    "",
], ids=["plain", "weights", "long", "empty"])  # fmt: skip
@pytest.mark.parametrize("skip", [None, -2])
def test_prompts_mean_the_same_on_openvino(seams, prompt, skip):
    clip = seams.clip.clone()
    if skip:
        clip.clip_layer(skip)
    placed = seams.place_clip(clip, CPU_PLAN)
    for ours, stock in zip(encode(placed, prompt), encode(clip, prompt), strict=True):
        assert ours.shape == stock.shape and close(ours, stock, 1e-2)
    assert seams.host.current_report().submodel("text_encoder", "").torch_calls == 0


def test_the_unplaced_clip_is_untouched(seams):
    before = encode(seams.clip, "a red circle")[0]
    encode(seams.place_clip(seams.clip, CPU_PLAN), "a red circle")
    assert torch.equal(encode(seams.clip, "a red circle")[0], before)


@pytest.mark.parametrize(
    ("cfg", "size", "batch"), [(5, (16, 16), 1), (1, (16, 16), 1), (5, (15, 17), 1), (5, (16, 16), 3)]
)
def test_any_size_batch_and_cfg_samples_as_on_torch(seams, cfg, size, batch):
    ours = sample(seams, seams.place_unet(seams.model, CPU_PLAN), cfg, size, batch)
    assert close(ours, sample(seams, seams.model, cfg, size, batch), 2e-2)
    unet = seams.host.current_report().submodel("unet", "")
    assert (unet.openvino_calls, unet.torch_calls) == (2, 0)


def test_unloading_the_model_frees_what_was_compiled_from_it(seams):
    placed = seams.place_unet(seams.model, CPU_PLAN)
    sample(seams, placed, steps=1)
    from ovpack.nodes.seams import unet

    store = unet.store()
    placed.detach(unpatch_all=False)
    assert len(store._submodels) == 1
    placed.detach()
    assert not store._submodels
    sample(seams, placed, steps=1)
    assert seams.host.current_report().submodel("unet", "").torch_calls == 0


def test_two_sizes_in_turn_compile_twice_in_all(seams):
    placed = seams.place_unet(seams.model, CPU_PLAN)
    for size in ((16, 16), (16, 24), (16, 16), (16, 24)):
        sample(seams, placed, size=size, steps=1)
    assert seams.host.current_report().submodel("unet", "").compilations == 2


def test_a_changed_weight_is_never_served_by_the_old_graph(seams):
    """A LoRA, in effect: a patch on one weight."""
    key = "diffusion_model.out.2.weight"
    patched = seams.model.clone()
    patched.add_patches({key: ("diff", (torch.full_like(seams.model.model.state_dict()[key], 0.05),))}, 1.0)
    base = sample(seams, seams.place_unet(seams.model, CPU_PLAN))
    seams.host._reports.clear()
    ours = sample(seams, seams.place_unet(patched, CPU_PLAN))
    assert close(ours, sample(seams, patched), 2e-2)
    assert not close(ours, base, 0.1)
    unet = seams.host.current_report().submodel("unet", "")
    assert unet.cache_state == "miss" and unet.cache_reason.startswith("weights changed: ")


@pytest.mark.unconverted
@pytest.mark.parametrize("submodel", ["UNet", "text encoder", "VAE decoder", "VAE encoder"])
def test_cancel_while_a_submodel_is_traced_cancels_the_prompt(seams, monkeypatch, submodel):
    """ComfyUI's layers raise it inside the trace; taken for a failed conversion, the run would go on in torch."""
    from comfy import model_management

    def cancel(text: str) -> None:
        if text.startswith(f"Converting the {submodel} "):
            model_management.interrupt_current_processing()

    runs = {
        "UNet": lambda: sample(seams, seams.place_unet(seams.model, CPU_PLAN)),
        "text encoder": lambda: encode(seams.place_clip(seams.clip, CPU_PLAN), "a red star"),
        "VAE decoder": lambda: seams.place_vae(seams.vae, CPU_PLAN).decode(torch.randn(1, 4, 16, 16)),
        "VAE encoder": lambda: seams.place_vae(seams.vae, CPU_PLAN).encode(torch.rand(1, 64, 64, 3)),
    }
    monkeypatch.setattr(seams.host, "show", cancel)
    with pytest.raises(model_management.InterruptProcessingException):
        runs[submodel]()


def test_calibrating_what_runs_on_torch_says_why(seams):
    from ovpack.ov_backends.quantize.calibration import Recorder

    patched = seams.model.clone()
    patched.set_model_attn1_patch(lambda q, k, v, options: (q, k, v))
    with pytest.raises(OVNPUError, match=r"every call of the UNet ran on torch, because of attention"):
        sample(seams, seams.place_unet(patched, CPU_PLAN, Recorder()))


def test_weights_that_lack_their_lora_are_never_converted(seams, monkeypatch):
    """As ComfyUI leaves them on a GPU with little memory; the run then goes to torch, as with any other error."""
    from ovpack.nodes.seams.weights import weights_identity

    base = seams.model.model
    monkeypatch.setattr(base.diffusion_model.out[2], "weight_function", [lambda weight: weight], raising=False)
    with pytest.raises(OVNPUError, match="Low-VRAM"):
        weights_identity(base, base.diffusion_model, "unet", lambda text: None)


def test_nan_from_the_unet_sends_the_rest_to_torch_and_says_so(seams, monkeypatch):
    stock = sample(seams, seams.model)
    spoil(monkeypatch, float("nan"))
    ours = sample(seams, seams.place_unet(seams.model, CPU_PLAN))
    assert torch.equal(ours, stock)
    unet = seams.host.current_report().submodel("unet", "")
    assert unet.torch_calls == 2 and "NaN" in unet.notices[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.25], ids=["nan", "inf", "flat"])
def test_a_spoiled_image_is_decoded_again_in_fp32_and_said_so(seams, monkeypatch, value):
    latent = torch.randn(1, 4, 16, 16)
    stock = seams.vae.decode(latent)
    spoil(monkeypatch, value)
    plan = DevicePlan(vae=SubmodelPlan("CPU", "fp16"))
    ours = seams.place_vae(seams.vae, plan).decode(latent)
    assert (ours - stock).abs().max() < 0.02
    notices = seams.host.current_report().submodel("vae_decoder", "").notices
    assert any("made again in fp32" in notice for notice in notices), notices


def test_a_flat_picture_that_is_flat_in_fp32_too_is_kept(seams, monkeypatch):
    spoil(monkeypatch, 0.25, times=2)
    ours = seams.place_vae(seams.vae, DevicePlan(vae=SubmodelPlan("CPU", "fp16"))).decode(torch.randn(1, 4, 16, 16))
    assert ours.std() == 0
    notices = seams.host.current_report().submodel("vae_decoder", "").notices
    assert any("still flat" in notice for notice in notices), notices


def test_nan_in_fp32_too_goes_to_torch_or_stops_as_the_policy_says(seams, monkeypatch):
    latent = torch.randn(1, 4, 16, 16)
    stock = seams.vae.decode(latent)
    spoil(monkeypatch, float("nan"), times=9)
    assert torch.equal(seams.place_vae(seams.vae, CPU_PLAN).decode(latent), stock)
    with pytest.raises(OVNPUError, match="NaN"):
        seams.place_vae(seams.vae, DevicePlan(vae=CPU, policy="error")).decode(latent)


def test_encode_and_tiled_decode_give_what_torch_gives(seams):
    placed = seams.place_vae(seams.vae, CPU_PLAN)
    pixels, latent = torch.rand(1, 64, 96, 3), torch.randn(1, 4, 24, 40)
    assert close(placed.encode(pixels), seams.vae.encode(pixels), 2e-2)
    ours, stock = (v.decode_tiled(latent, tile_x=16, tile_y=16, overlap=4) for v in (placed, seams.vae))
    assert (ours - stock).abs().max() < 0.02
    report = seams.host.current_report()
    assert report.submodel("vae_decoder", "").compilations == 1
    assert report.submodel("vae_decoder", "").torch_calls == report.submodel("vae_encoder", "").torch_calls == 0


@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_fp8_give_what_torch_gives(seams, kind):
    model = fp8_model(seams.model, kind)
    expected = sample(seams, model)
    given = sample(seams, seams.place_unet(model, CPU_PLAN))
    report = seams.host.current_report().submodel("unet", "CPU")
    assert report.torch_calls == 0, report.line()
    assert torch.nn.functional.cosine_similarity(given.flatten(), expected.flatten(), dim=0) > 0.9999
    assert not torch.allclose(expected, sample(seams, seams.model)), "rounding to FP8 changes the result"
    # the weights arrive in floating point: what is in few bits already would be quantized a second time
    from ovpack.nodes.seams.unet import source_of
    from ovpack.ov_backends.quantize.scope import is_quantized

    assert is_quantized(source_of(model).convert()) == ""


def test_what_comfyui_has_let_go_of_is_not_kept_in_memory(seams, monkeypatch):
    """Else ComfyUI, which finds it, collects garbage several times in every prompt."""
    from ovpack.nodes import folder

    def use() -> list[weakref.ref]:
        """Run all three submodels of a model loaded anew."""
        model, clip, vae = folder.load_folder(folder.find_folder("demo"))
        fresh = SimpleNamespace(**{**vars(seams), "clip": seams.place_clip(clip, CPU_PLAN)})
        latent = sample(fresh, seams.place_unet(model, CPU_PLAN))
        placed = seams.place_vae(vae, CPU_PLAN)
        placed.encode(placed.decode(latent))
        parts = (model.model, clip.cond_stage_model, vae.first_stage_model)
        return [weakref.ref(part) for part in parts]

    parts = [*use(), *use()]
    gc.collect()
    assert [type(part()).__name__ for part in parts if part() is not None] == []
