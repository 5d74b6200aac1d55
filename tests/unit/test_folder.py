"""Diffusers folders as ComfyUI's MODEL, CLIP and VAE: the numbers of diffusers, or an error that names the file."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    EDMEulerScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from ovpack.ov_backends.errors import ModelFolderError
from safetensors.torch import load_file, save_file
from train_demo_model import build_scheduler, build_text_encoder, build_unet, build_vae
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

PROMPT = "a red circle on a blue background"
TOLERANCE = 1e-4
UNET_FILE = "unet/diffusion_pytorch_model.safetensors"
VAE_FILE = "vae/diffusion_pytorch_model.safetensors"


@dataclass(frozen=True)
class Saved:
    """A folder and the modules that were saved into it."""

    path: Path
    unet: UNet2DConditionModel
    vae: AutoencoderKL
    text_encoders: list


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def folder(comfy):
    from ovpack.nodes import folder

    return folder


def text_config(**changes) -> CLIPTextConfig:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
    ids = {"bos_token_id": 49406, "eos_token_id": 49407}
    return CLIPTextConfig(vocab_size=49408, projection_dim=32, **ids, **{**size, **changes})


def small_vae(channels: tuple[int, ...] = (32, 64), **changes) -> AutoencoderKL:
    levels = len(channels)
    blocks = {
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
    }
    return AutoencoderKL(**blocks, block_out_channels=channels, latent_channels=4, **changes)


def demo_parts():
    return build_unet(), build_vae(), [build_text_encoder()], build_scheduler(), StableDiffusionPipeline


def sd2_parts():
    unet = UNet2DConditionModel(
        block_out_channels=[32, 64, 64],
        down_block_types=["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
        up_block_types=["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
        layers_per_block=2,
        cross_attention_dim=32,
        attention_head_dim=[2, 4, 4],
        use_linear_projection=True,
        upcast_attention=True,
    )
    scheduler = DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
    )
    encoder = CLIPTextModel(text_config(hidden_act="gelu"))
    return unet, small_vae(layers_per_block=2), [encoder], scheduler, StableDiffusionPipeline


def sdxl_parts():
    unet = UNet2DConditionModel(
        block_out_channels=[32, 64, 128],
        down_block_types=["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
        up_block_types=["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
        layers_per_block=2,
        transformer_layers_per_block=[1, 2, 3],
        cross_attention_dim=64,
        attention_head_dim=[2, 4, 8],
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=32 + 6 * 256,
    )
    encoders = [CLIPTextModel(text_config()), CLIPTextModelWithProjection(text_config(hidden_act="gelu"))]
    vae = small_vae((32, 32, 64, 64, 64), layers_per_block=2, scaling_factor=0.13025)
    return unet, vae, encoders, DDIMScheduler(beta_schedule="linear"), StableDiffusionXLPipeline


def save(path: Path, parts) -> Saved:
    """A folder with random weights in FP32, and the modules in memory to compare with."""
    torch.manual_seed(0)
    unet, vae, encoders, scheduler, pipeline = parts()
    for parameter in itertools.chain(*(module.eval().parameters() for module in (unet, vae, *encoders))):
        # Norms and biases too: ones and zeros would hide a swapped pair. Rounded: ComfyUI keeps text encoders in FP16.
        torch.nn.init.normal_(parameter, std=0.02 if parameter.ndim > 1 else 0.2)
        parameter.data.copy_(parameter.data.half())
    tokenizer = CLIPTokenizer.from_pretrained(Path(sys.modules["ovpack"].__path__[0]) / "demo_model" / "tokenizer")
    second = {"text_encoder_2": encoders[1], "tokenizer_2": tokenizer} if len(encoders) > 1 else {}
    unused = {} if second else {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    names = {"unet": unet, "vae": vae, "text_encoder": encoders[0], "tokenizer": tokenizer, "scheduler": scheduler}
    pipeline(**names, **second, **unused).save_pretrained(path, safe_serialization=True)
    return Saved(path, unet, vae, encoders)


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Saved:
    """The demo model's architecture in a folder with spaces and other letters."""
    return save(tmp_path_factory.mktemp("models") / "Modèle démo 模型", demo_parts)


@pytest.fixture(scope="session")
def sd2(tmp_path_factory) -> Saved:
    return save(tmp_path_factory.mktemp("models") / "sd2", sd2_parts)


@pytest.fixture(scope="session")
def sdxl(tmp_path_factory) -> Saved:
    return save(tmp_path_factory.mktemp("models") / "sdxl", sdxl_parts)


@pytest.fixture(scope="session", params=["demo", "sd2", "sdxl"])
def loaded(request, folder):
    """Each kind of folder, saved and loaded."""
    saved = request.getfixturevalue(request.param)
    model, clip, vae = folder.load_folder(saved.path)
    return SimpleNamespace(saved=saved, model=model, clip=clip, vae=vae)


@pytest.fixture
def copy(demo, tmp_path) -> Path:
    """A copy of the demo folder for tests that change it; weights are links until `own` is called."""
    folder = shutil.copytree(demo.path, tmp_path / "copy", ignore=shutil.ignore_patterns("*.safetensors", "tokenizer"))
    for file in demo.path.glob("*/*.safetensors"):
        (folder / file.relative_to(demo.path)).symlink_to(file)
    return folder


def own(file: Path) -> Path:
    """Replace a link by a copy that may be changed."""
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)
    return file


def with_changes(unet: UNet2DConditionModel, **changes) -> UNet2DConditionModel:
    """A UNet with other settings and new weights."""
    # diffusers would set the keys named here back to their defaults
    config = {key: value for key, value in unet.config.items() if key != "_use_default_values"}
    changed = UNet2DConditionModel.from_config({**config, **changes}).eval()
    assert all(changed.config[key] == value for key, value in changes.items())
    return changed


def edit(file: Path, **changes) -> None:
    """Change keys of a JSON file; a value of None removes the key."""
    values = {**json.loads(file.read_text(encoding="utf-8")), **changes}
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}), encoding="utf-8")


def max_abs_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    assert theirs.std() > 1e-3, "random weights that give nothing prove nothing"
    return (ours - theirs).abs().max().item()


@torch.no_grad()
def test_unet_predicts_what_diffusers_predicts(loaded):
    unet = loaded.saved.unet
    torch.manual_seed(1)
    sample, times = torch.randn(2, 4, 16, 24), torch.tensor([3.0, 801.0])
    context = torch.randn(2, 77, unet.config.cross_attention_dim)
    added, y = None, None
    if unet.config.addition_embed_type:
        ids, pooled = torch.tensor([[128.0, 192, 0, 8, 128, 192]] * 2), torch.randn(2, 32)
        added = {"text_embeds": pooled, "time_ids": ids}
        # ComfyUI's own order: pooled text, then the sines and cosines of each number
        y = torch.cat([pooled, loaded.model.model.embedder(ids.flatten()).reshape(2, -1)], dim=1)

    theirs = unet(sample, times, context, added_cond_kwargs=added).sample
    ours = loaded.model.model.diffusion_model(sample, times, context, y=y)

    assert max_abs_error(ours, theirs) < TOLERANCE


@torch.no_grad()
def test_prompt_is_embedded_as_by_transformers(loaded):
    tokens = loaded.clip.tokenize(PROMPT)
    embedding, pooled = loaded.clip.encode_from_tokens(tokens, return_pooled=True)

    encoders = loaded.saved.text_encoders
    keys = ["l", "g"] if len(encoders) > 1 else list(tokens)
    theirs = []
    for key, encoder in zip(keys, encoders, strict=True):
        output = encoder(torch.tensor([[token for token, _ in tokens[key][0]]]), output_hidden_states=True)
        theirs.append(output.hidden_states[-2] if len(encoders) > 1 else output.last_hidden_state)

    assert embedding.shape[1] == 77
    assert max_abs_error(embedding, torch.cat(theirs, dim=-1)) < TOLERANCE
    if len(encoders) > 1:
        assert max_abs_error(pooled, output.text_embeds) < TOLERANCE


@torch.no_grad()
def test_vae_encodes_and_decodes_as_diffusers(loaded):
    vae = loaded.saved.vae
    scale = 2 ** (len(vae.config.block_out_channels) - 1)
    torch.manual_seed(2)
    latents, pixels = torch.randn(1, 4, 8, 6), torch.rand(1, 8 * scale, 6 * scale, 3)

    decoded = loaded.vae.first_stage_model.decode(latents)
    encoded = loaded.vae.first_stage_model.encode(pixels.movedim(-1, 1) * 2 - 1)

    assert max_abs_error(decoded, vae.decode(latents).sample) < TOLERANCE
    assert max_abs_error(encoded, vae.encode(pixels.movedim(-1, 1) * 2 - 1).latent_dist.mean) < TOLERANCE
    assert loaded.vae.decode(latents).shape == pixels.shape, "the nodes' calls know the scale too"
    assert loaded.vae.encode(pixels).shape == latents.shape


def test_model_samples_with_the_stock_sampler(comfy, loaded):
    import comfy.sample

    conditioning = loaded.clip.encode_from_tokens_scheduled(loaded.clip.tokenize(PROMPT))
    latent = torch.zeros(1, 4, 16, 16)
    noise = comfy.sample.prepare_noise(latent, 7)
    settings = {"cfg": 1.0, "sampler_name": "euler", "scheduler": "normal", "disable_pbar": True, "seed": 7}

    result = comfy.sample.sample(
        loaded.model, noise, 2, positive=conditioning, negative=conditioning, latent_image=latent, **settings
    )

    assert result.shape == latent.shape
    assert result.isfinite().all()


def test_weights_are_where_and_what_comfyui_would_have_them(comfy, loaded):
    patcher = loaded.model
    assert type(patcher) is comfy.model_patcher.ModelPatcher
    assert patcher.load_device.type == "cpu"
    assert patcher.model.get_dtype() is torch.float32
    assert {p.dtype for p in loaded.vae.first_stage_model.parameters()} == {torch.float32}


def test_lora_keys_reach_every_attention_of_unet_and_text_encoder(comfy, loaded):
    import comfy.lora

    unet_keys = comfy.lora.model_lora_keys_unet(loaded.model.model, {})
    text_keys = comfy.lora.model_lora_keys_clip(loaded.clip.cond_stage_model, {})

    weights = {key for key in loaded.saved.unet.state_dict() if ".attentions." in key and key.endswith(".weight")}
    names = {"lora_unet_" + key.removesuffix(".weight").replace(".", "_") for key in weights}
    assert names <= unet_keys.keys()
    assert {unet_keys[name] for name in names} <= loaded.model.model.state_dict().keys()
    assert any("self_attn_q_proj" in key for key in text_keys)


def test_lora_changes_the_clone_and_not_the_model(comfy, demo, folder):
    import comfy.sd

    model, clip, _ = folder.load_folder(demo.path)
    name, rank = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k", 2
    lora = {f"{name}.lora_up.weight": torch.ones(64, rank), f"{name}.lora_down.weight": torch.ones(rank, 64)}

    patched, _ = comfy.sd.load_lora_for_models(model, clip, lora, 1.0, 1.0)

    assert list(patched.patches) == ["diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"]
    assert not model.patches


@pytest.mark.parametrize("which", ["demo", "sd2", "sdxl"])
def test_noise_levels_are_those_of_the_scheduler(which, request, comfy, folder):
    saved = request.getfixturevalue(which)
    model, _, _ = folder.load_folder(saved.path)
    alphas = DDIMScheduler.from_pretrained(saved.path / "scheduler").alphas_cumprod
    if which == "sd2":
        # zero terminal SNR: an infinite sigma, which ComfyUI replaces by a large one
        assert model.model.model_sampling.sigma_max > 1000
        alphas = alphas[:-1]

    expected = ((1 - alphas) / alphas).sqrt()

    torch.testing.assert_close(model.model.model_sampling.sigmas[: len(expected)], expected, rtol=1e-3, atol=1e-5)
    types = {"demo": "EPS", "sd2": "V_PREDICTION", "sdxl": "EPS"}
    assert model.model.model_type.name == types[which]


def test_edm_schedule_scales_input_and_output_as_diffusers(comfy, folder, copy):
    EDMEulerScheduler(sigma_max=80.0, sigma_data=0.5).save_pretrained(copy / "scheduler")
    edit(copy / "vae" / "config.json", latents_mean=[-1.5, 2.0, -1.0, 2.5], latents_std=[8.0, 6.0, 6.5, 5.0])
    theirs = EDMEulerScheduler.from_pretrained(copy / "scheduler")

    model = folder.load_folder(copy)[0].model

    torch.manual_seed(3)
    sample, output, sigma = torch.randn(1, 4, 8, 8) * 9, torch.randn(1, 4, 8, 8), torch.tensor(7.0)
    sampling = model.model_sampling
    denoised = sampling.calculate_denoised(sigma, output, sample)
    assert max_abs_error(denoised, theirs.precondition_outputs(sample, output, sigma)) < TOLERANCE
    assert max_abs_error(sampling.calculate_input(sigma, sample), theirs.precondition_inputs(sample, sigma)) < TOLERANCE
    latents = torch.zeros(1, 4, 1, 1)
    assert model.process_latent_out(latents).flatten().tolist() == [-1.5, 2.0, -1.0, 2.5]


@pytest.mark.parametrize("saved, scale", [("demo", 0.18215), ("sdxl", 0.13025)])
def test_latents_are_scaled_by_the_vae_config(saved, scale, request, folder):
    model, _, _ = folder.load_folder(request.getfixturevalue(saved).path)
    assert model.model.latent_format.scale_factor == scale


def published(channels: list[int], attention: list[int], heads: int | list[int], context: int, **changes) -> dict:
    """unet/config.json of a published model; `attention` is 1 for the levels that have it."""
    return {
        "block_out_channels": channels,
        "down_block_types": ["CrossAttnDownBlock2D" if used else "DownBlock2D" for used in attention],
        "up_block_types": ["CrossAttnUpBlock2D" if used else "UpBlock2D" for used in attention[::-1]],
        "layers_per_block": 2,
        "attention_head_dim": heads,
        "cross_attention_dim": context,
        "use_linear_projection": context != 768,
        **changes,
    }


def text_time(width: int, depths: int | list[int], **changes) -> dict:
    added = {"addition_embed_type": "text_time", "projection_class_embeddings_input_dim": width}
    return {**added, "transformer_layers_per_block": depths, **changes}


WIDTHS = [320, 640, 1280, 1280]
SSD1B = {"reverse_transformer_layers_per_block": [[4, 4, 10], [2, 1, 1], 1], "mid_block_type": "UNetMidBlock2D"}
PUBLISHED = {
    "SD15": (published(WIDTHS, [1, 1, 1, 0], 8, 768), [1] * 9 + [0] * 3),
    "SD20": (published(WIDTHS, [1, 1, 1, 0], [5, 10, 20, 20], 1024), [1] * 9 + [0] * 3),
    "SDXL": (
        published(WIDTHS[:3], [0, 1, 1], [5, 10, 20], 2048, **text_time(2816, [1, 2, 10])),
        [0] * 3 + [2] * 3 + [10] * 3,
    ),
    "SDXLRefiner": (
        published([384, 768, 1536, 1536], [0, 1, 1, 0], [6, 12, 24, 24], 1280, **text_time(2560, 4)),
        [0] * 3 + [4] * 6 + [0] * 3,
    ),
    "SSD1B": (
        published(WIDTHS[:3], [0, 1, 1], [5, 10, 20], 2048, **text_time(2816, [1, 2, 4], **SSD1B)),
        [0, 0, 0, 1, 1, 2, 10, 4, 4],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_are_those_that_comfyui_detects(name, comfy):
    import comfy.model_detection
    from ovpack.nodes.folder_architecture import unet_architecture
    from ovpack.nodes.folder_config import Config

    config, depths_up = PUBLISHED[name]

    architecture = unet_architecture(Config(Path("config.json"), config))

    detected = comfy.model_detection.model_config_from_unet_config(architecture)
    assert type(detected).__name__ == name
    assert architecture["transformer_depth_output"] == depths_up
    heads = {key: architecture[key] for key in ("num_heads", "num_head_channels")}
    assert heads == {key: type(detected).unet_extra_config[key] for key in heads}


def test_image_editing_models_are_told_by_their_pipeline(folder, copy):
    edit(copy / "model_index.json", _class_name="StableDiffusionInstructPix2PixPipeline")
    own(copy / UNET_FILE)
    with_changes(build_unet(), in_channels=8).save_pretrained(copy / "unet")

    assert type(folder.load_folder(copy)[0].model).__name__ == "SD15_instructpix2pix"

    edit(copy / "scheduler" / "scheduler_config.json", prediction_type="v_prediction")
    with pytest.raises(ModelFolderError, match="'prediction_type' V_PREDICTION is not known to ComfyUI"):
        folder.load_folder(copy)


def test_unusual_scaling_factor_is_taken_over(folder, copy):
    edit(copy / "vae" / "config.json", scaling_factor=0.5)
    model, _, _ = folder.load_folder(copy)
    assert model.model.process_latent_in(torch.ones(1)).item() == 0.5


def test_clip_skip_counts_layers_of_the_whole_sd2_encoder(sd2, folder):
    _, clip, _ = folder.load_folder(sd2.path)
    tokens = clip.tokenize(PROMPT)
    usual = clip.encode_from_tokens(tokens)

    def skip(layer: int) -> torch.Tensor:
        clip.clip_layer(layer)
        return clip.encode_from_tokens(tokens)

    assert torch.equal(skip(-2), usual), "-2 is the layer that SD 2.x reads"
    assert not torch.equal(skip(-3), usual)


def test_refiner_is_told_by_its_five_numbers(tmp_path, sdxl, comfy, folder):
    unet = with_changes(sdxl.unet, cross_attention_dim=32, projection_class_embeddings_input_dim=32 + 5 * 256)
    path = shutil.copytree(sdxl.path, tmp_path / "refiner", ignore=shutil.ignore_patterns("text_encoder"))
    unet.save_pretrained(path / "unet")

    model, clip, _ = folder.load_folder(path)

    assert type(model.model).__name__ == "SDXLRefiner"
    assert clip.encode_from_tokens(clip.tokenize(PROMPT)).shape == (1, 77, 32)


@torch.no_grad()
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"mid_block_type": None}, id="no middle block"),
        pytest.param({"mid_block_type": "UNetMidBlock2D"}, id="middle block without attention"),
        pytest.param({"only_cross_attention": [True, False]}, id="no self-attention at the first level"),
        pytest.param({"attention_head_dim": [4, 8], "cross_attention_dim": [64, 64]}, id="lists"),
        pytest.param(
            {"transformer_layers_per_block": [1, 2], "reverse_transformer_layers_per_block": [[2, 3], [1, 1]]},
            id="deeper on the way up",
        ),
        pytest.param({"in_channels": 9}, id="inpainting"),
    ],
)
def test_variants_of_the_family_load_too(changes, folder, copy):
    """Pruned and distilled models (SSD-1B, KOALA, SDXS, ...) differ from the plain ones in these settings."""
    torch.manual_seed(4)
    unet = with_changes(build_unet(), **changes)
    own(copy / UNET_FILE)
    unet.save_pretrained(copy / "unet")
    sample, context = torch.randn(1, unet.config.in_channels, 16, 16), torch.randn(1, 77, 64)

    model, _, _ = folder.load_folder(copy)

    ours = model.model.diffusion_model(sample, torch.tensor([500.0]), context)
    assert max_abs_error(ours, unet(sample, 500, context).sample) < TOLERANCE
    assert bool(model.model.concat_keys) == (unet.config.in_channels == 9)


def old_names(file: Path) -> None:
    """A VAE as saved before diffusers 0.15, and a text encoder as saved by transformers 4.30."""
    weights = load_file(file)
    for new, old in {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}.items():
        weights = {key.replace(f"attentions.0.{new}.", f"attentions.0.{old}."): t for key, t in weights.items()}
    save_file(weights, file)


def other_prefix(file: Path) -> None:
    """CLIPTextModel with "text_model." where this transformers leaves it out, and the other way round."""
    weights = load_file(file)
    has_prefix = "text_model.final_layer_norm.bias" in weights
    rename = (lambda key: key.removeprefix("text_model.")) if has_prefix else (lambda key: f"text_model.{key}")
    weights = {rename(key): tensor for key, tensor in weights.items()}
    weights["text_model.embeddings.position_ids"] = torch.arange(77)[None]
    save_file(weights, file)


def as_fp16_variant(file: Path) -> None:
    save_file({key: tensor.half() for key, tensor in load_file(file).items()}, file.with_suffix(".fp16.safetensors"))
    file.unlink()


def as_pickle(file: Path) -> None:
    name = "pytorch_model.bin" if file.parent.name.startswith("text") else "diffusion_pytorch_model.bin"
    torch.save(load_file(file), file.with_name(name))
    file.unlink()


def as_shards(file: Path) -> None:
    weights, index = load_file(file), {}
    for part in (0, 1):
        name = f"{file.stem}-0000{part + 1}-of-00002.safetensors"
        chosen = {key: weights[key] for key in sorted(weights)[part::2]}
        save_file(chosen, file.with_name(name))
        index.update(dict.fromkeys(chosen, name))
    file.with_name(f"{file.name}.index.json").write_text(json.dumps({"weight_map": index}))
    file.unlink()


def weights_in(folder, path: Path) -> list[dict[str, torch.Tensor]]:
    """Of MODEL, CLIP and VAE."""
    parts = folder.load_folder(path)
    return [(part.patcher if hasattr(part, "patcher") else part).model.state_dict() for part in parts]


@pytest.fixture(scope="session")
def demo_weights(demo, folder) -> list[dict[str, torch.Tensor]]:
    return weights_in(folder, demo.path)


@pytest.mark.parametrize(
    "file, change",
    [
        (VAE_FILE, old_names),
        ("text_encoder/model.safetensors", other_prefix),
        ("text_encoder/model.safetensors", as_fp16_variant),
        ("text_encoder/model.safetensors", as_pickle),
        (UNET_FILE, as_fp16_variant),
        (UNET_FILE, as_pickle),
        (UNET_FILE, as_shards),
    ],
    ids=lambda value: value.split("/")[0] if isinstance(value, str) else value.__name__,
)
def test_every_way_of_saving_gives_the_same_weights(file, change, demo_weights, folder, copy):
    change(own(copy / file))

    for ours, expected in zip(weights_in(folder, copy), demo_weights, strict=True):
        assert ours.keys() == expected.keys()
        for key, tensor in ours.items():
            torch.testing.assert_close(tensor, expected[key], rtol=1e-3, atol=1e-3)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def fill_with_garbage(file: Path) -> None:
    file.write_bytes(b"\xff\x00garbage" * 100)


def become_a_pointer(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", encoding="utf-8")


def remove(file: Path) -> None:
    file.unlink()


def become_a_garbage_pickle(file: Path) -> None:
    file.with_suffix(".bin").write_bytes(b"not a pickle")
    file.unlink()


def become_a_pickled_list(file: Path) -> None:
    torch.save([1, 2], file.with_suffix(".bin"))
    file.unlink()


def lose_a_shard(file: Path) -> None:
    as_shards(file)
    file.with_name(f"{file.stem}-00002-of-00002.safetensors").unlink()


def leave_the_folder(file: Path) -> None:
    file.with_name(f"{file.name}.index.json").write_text('{"weight_map": {"conv_in.weight": "../../x.safetensors"}}')
    file.unlink()


def change_weights(file: Path, change) -> None:
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


def drop_tensor(file: Path) -> None:
    change_weights(file, lambda weights: weights.pop("conv_in.weight", weights.pop("decoder.conv_in.weight", None)))


def add_tensor(file: Path) -> None:
    change_weights(file, lambda weights: weights.update({"adapter.to_k_ip.weight": torch.zeros(2)}))


def reshape_tensor(file: Path) -> None:
    change_weights(file, lambda weights: weights.update({sorted(weights)[0]: torch.zeros(5, 7)}))


@pytest.mark.parametrize(
    "change, words",
    [
        (truncate, "is damaged .*Download it again"),
        (fill_with_garbage, "is damaged .*Download it again"),
        (become_a_pointer, "is damaged .*run 'git lfs pull'"),
        (remove, "is missing. Download the whole folder again"),
        (become_a_garbage_pickle, r"\.bin is damaged"),
        (become_a_pickled_list, r"\.bin holds something else than named tensors"),
        (lose_a_shard, "-00002-of-00002.safetensors is missing"),
        (leave_the_folder, "'weight_map' must give a file of this folder"),
        (drop_tensor, "does not fit the config.json beside it: '(decoder.)?conv_in.weight' missing"),
        (add_tensor, "'adapter.to_k_ip.weight' not known to it"),
        (reshape_tensor, r"of another shape \(\[5, 7\] instead of"),
    ],
)
@pytest.mark.parametrize("file", [UNET_FILE, VAE_FILE])
def test_damaged_weights_are_named(file, change, words, folder, copy):
    change(own(copy / file))
    with pytest.raises(ModelFolderError, match=words) as caught:
        folder.load_folder(copy)
    assert str(copy / Path(file).parent) in str(caught.value)


@pytest.mark.parametrize(
    "file", ["model_index.json", "unet/config.json", "vae/config.json", "text_encoder/config.json"]
)
@pytest.mark.parametrize(
    "text, words", [(None, "is missing"), ("{", "is not readable JSON"), ("[]", "holds no JSON object")]
)
def test_missing_or_broken_json_is_named(file, text, words, folder, copy):
    (copy / file).unlink()
    if text is not None:
        (copy / file).write_text(text)
    with pytest.raises(ModelFolderError, match=words) as caught:
        folder.load_folder(copy)
    assert str(copy / file) in str(caught.value)


@pytest.mark.parametrize(
    "file, key, value",
    [
        ("model_index.json", "unet", None),
        ("unet/config.json", "_class_name", "UNet3DConditionModel"),
        ("unet/config.json", "class_embed_type", "projection"),
        ("unet/config.json", "encoder_hid_dim_type", "ip_image_proj"),
        ("unet/config.json", "time_cond_proj_dim", 256),
        ("unet/config.json", "addition_embed_type", "image"),
        ("unet/config.json", "in_channels", 5),
        ("unet/config.json", "in_channels", 8),
        ("unet/config.json", "in_channels", "four"),
        ("unet/config.json", "block_out_channels", None),
        ("unet/config.json", "block_out_channels", [64, 96]),
        ("unet/config.json", "block_out_channels", [64, -128]),
        ("unet/config.json", "block_out_channels", [10**15, 10**15]),
        ("unet/config.json", "down_block_types", ["AttnDownBlock2D"] * 2),
        ("unet/config.json", "mid_block_type", "UNetMidBlock2DSimpleCrossAttn"),
        ("unet/config.json", "mid_block_type", [1]),
        ("unet/config.json", "layers_per_block", [1, 2]),
        ("unet/config.json", "layers_per_block", [[1], [1]]),
        ("unet/config.json", "layers_per_block", [1, 1, 1]),
        ("unet/config.json", "transformer_layers_per_block", [[1], [1, 1]]),
        ("unet/config.json", "attention_head_dim", [7, 8]),
        ("unet/config.json", "attention_head_dim", [8, 4]),
        ("unet/config.json", "cross_attention_dim", [64, 32]),
        ("unet/config.json", "only_cross_attention", "yes"),
        ("vae/config.json", "_class_name", "AutoencoderTiny"),
        ("vae/config.json", "latent_channels", 16),
        ("vae/config.json", "latents_mean", [1.0]),
        ("vae/config.json", "shift_factor", 0.1),
        ("vae/config.json", "scaling_factor", 0),
        ("vae/config.json", "use_quant_conv", False),
        ("text_encoder/config.json", "model_type", "t5"),
        ("text_encoder/config.json", "vocab_size", 21128),
        ("text_encoder/config.json", "hidden_act", "relu"),
        ("text_encoder/config.json", "num_attention_heads", 5),
        ("scheduler/scheduler_config.json", "beta_start", None),
        ("scheduler/scheduler_config.json", "beta_schedule", "sigmoid"),
        ("scheduler/scheduler_config.json", "prediction_type", "sample"),
    ],
)
def test_settings_that_comfyui_cannot_express_are_named(file, key, value, folder, copy):
    edit(copy / file, **{key: value})
    with pytest.raises(ModelFolderError) as caught:
        folder.load_folder(copy)
    assert str(copy / file) in str(caught.value)
    assert key in str(caught.value) or value == [[1], [1, 1]]


@pytest.fixture
def models(comfy, folder, copy, tmp_path, monkeypatch) -> Path:
    """ComfyUI's "diffusers" path with one folder in a subfolder."""
    import folder_paths

    root = tmp_path / "diffusers"
    shutil.copytree(copy, root / "style A" / "été", symlinks=True)
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "diffusers", ([str(root)], {"folder"}))
    return root


def test_list_names_the_demo_first_and_sees_new_folders(models, folder):
    assert folder.list_folders() == ["demo", "style A/été"]
    shutil.copytree(models / "style A" / "été", models / "another", symlinks=True)
    assert folder.list_folders() == ["demo", "another", "style A/été"]
    assert folder.find_folder("style A/été") == models / "style A" / "été"
    assert folder.find_folder("demo").name == "demo_model"


def test_nothing_outside_the_model_folders_is_found(models, folder, copy):
    (models / "link").symlink_to(copy, target_is_directory=True)
    for name in ["../copy", str(copy), "link", "style A", "style A/../../copy", "", ".", "a\0b", "x" * 5000, ["demo"]]:
        with pytest.raises(ModelFolderError, match="Found: demo, style A/été"):
            folder.find_folder(name)


def test_missing_model_path_leaves_the_demo(folder, monkeypatch, tmp_path):
    import folder_paths

    monkeypatch.setitem(folder_paths.folder_names_and_paths, "diffusers", ([str(tmp_path / "none")], {"folder"}))
    assert folder.list_folders() == ["demo"]


def test_node_loads_a_folder_and_notices_an_edited_file(models, folder):
    from ovpack.nodes.loaders import LoadFolder

    schema = LoadFolder.define_schema()
    assert schema.node_id == "OVNPU_LoadFolder"
    assert schema.inputs[0].options == ["demo", "style A/été"]
    before = LoadFolder.fingerprint_inputs(folder="style A/été")
    assert before == LoadFolder.fingerprint_inputs(folder="style A/été")

    model, clip, vae = LoadFolder.execute(folder="style A/été").result
    assert [type(part).__name__ for part in (model, clip, vae)] == ["ModelPatcher", "CLIP", "VAE"]

    edit(models / "style A" / "été" / "vae" / "config.json", scaling_factor=0.5)
    assert LoadFolder.fingerprint_inputs(folder="style A/été") != before
    assert "no diffusers folder 'gone'" in LoadFolder.fingerprint_inputs(folder="gone")
