"""Train the demo model: a miniature of Stable Diffusion 1.x that draws coloured shapes.

    python tools/train_demo_model.py --work WORK_DIR        (about 80 minutes on 2 cores)

Same classes and conventions as SD 1.x (CLIP text model, UNet2DConditionModel with cross-attention, AutoencoderKL with
4 latent channels scaled by 0.18215, eps-prediction), so whatever loads SD 1.x by its config files loads this too.
Deterministic: every batch is drawn from a seed made of the stage and the step. Resumable: started again with the
same WORK_DIR it goes on from the last checkpoint. Needs diffusers and transformers (requirements-extras.txt).
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

sys.path.insert(0, str(Path(__file__).parent))
from shapes import SIZE, Scene, draw_scene, random_scene

ROOT = Path(__file__).parent.parent
SCALING_FACTOR = 0.18215
"""Stable Diffusion 1.x multiplies latents by this to bring them to unit variance (Rombach et al., 2022)."""

VAE_STEPS, VAE_BATCH, VAE_LR = 1100, 12, 1.5e-3
VAE_CROP_STEPS, VAE_CROP = 900, 64
"""The VAE learns on crops first (a quarter of the work), then on half as many whole images a step."""
DECODER_STEPS, DECODER_BATCH, DECODER_LR = 240, 6, 4.0e-4
"""Then the decoder alone learns on whole images, from the latents that the UNet is trained on."""
UNET_CYCLES, UNET_BATCH = ((2200, 1.2e-3), (500, 6e-4)), 32
"""Steps and peak learning rate of each cycle: shapes are there after the first, colours need the second."""
LATENT_IMAGES, ENCODE_CHUNK = 5_120, 64
EMPTY_PROMPTS = 0.1
MIN_SNR_GAMMA = 5.0
EMA_DECAY = 0.995
CHECKPOINT_EVERY = 100

Cycles = Sequence[tuple[int, float]]


def build_vae() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[32, 64, 64, 64],
        layers_per_block=1,
        latent_channels=4,
        sample_size=SIZE,
        scaling_factor=SCALING_FACTOR,
    )


def build_text_encoder() -> CLIPTextModel:
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=49408,
            hidden_size=64,
            intermediate_size=256,
            projection_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            hidden_act="quick_gelu",
            bos_token_id=49406,
            eos_token_id=49407,
        )
    )


def build_unet() -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=SIZE // 8,
        block_out_channels=[64, 128],
        down_block_types=["CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
        up_block_types=["CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
        layers_per_block=1,
        cross_attention_dim=64,
        # diffusers' SD 1.x configs call the number of heads "attention_head_dim"
        attention_head_dim=8,
    )


def build_scheduler() -> DDIMScheduler:
    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )


def learning_rate(step: int, cycles: Cycles) -> float:
    """In each cycle: linear warm-up over 8 % of its steps, then a half cosine to zero (Smith, 2018)."""
    for steps, peak in cycles:
        if step < steps:
            warm_up = 0.08 * steps
            if step < warm_up:
                return peak * (step + 1) / warm_up
            return peak * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))
        step -= steps
    return 0.0


def draw_batch(stage: int, step: int, count: int) -> tuple[list[Scene], torch.Tensor]:
    """The scenes of one step and their pixels: float32 [count, 3, SIZE, SIZE] in -1..1."""
    rng = np.random.default_rng([stage, step])
    scenes = [random_scene(rng) for _ in range(count)]
    pixels = np.stack([draw_scene(scene, rng) for scene in scenes])
    return scenes, torch.from_numpy(pixels).permute(0, 3, 1, 2).mul(2).sub(1).contiguous()


class Checkpoint:
    """Modules, optimizer and average of one stage in one file, written whole or not at all."""

    def __init__(self, path: Path, **parts):
        self.path, self.parts = path, parts

    def resume(self) -> int:
        """Load the last state; returns the step to go on from."""
        if not self.path.exists():
            return 0
        state = torch.load(self.path, weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        return state["step"]

    def save(self, step: int) -> None:
        state = {name: part.state_dict() for name, part in self.parts.items()}
        temporary = self.path.with_suffix(".part")
        torch.save({**state, "step": step}, temporary)
        temporary.replace(self.path)


def train(
    name: str, cycles: Cycles, checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, loss_of, after=lambda: None
) -> None:
    """Minimise `loss_of(step)` over all cycles from the last checkpoint on; `after()` follows each update."""
    steps = sum(count for count, _ in cycles)
    started, done = time.monotonic(), checkpoint.resume()
    for step in range(done, steps):
        torch.manual_seed(step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, cycles)
        loss = loss_of(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 1.0)
        optimizer.step()
        after()
        if (step + 1) % 20 == 0:
            pace = (time.monotonic() - started) / (step + 1 - done)
            left = pace * (steps - step - 1) / 60
            print(f"{name} {step + 1}/{steps} loss {loss.item():.4f} {pace:.2f} s/step {left:.0f} min left", flush=True)
        if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == steps:
            checkpoint.save(step + 1)


def train_vae(work: Path) -> AutoencoderKL:
    torch.manual_seed(0)
    vae = build_vae()
    optimizer = torch.optim.AdamW(vae.parameters(), lr=VAE_LR, weight_decay=1e-4)

    def loss_of(step: int) -> torch.Tensor:
        _, pixels = draw_batch(1, step, VAE_BATCH if step < VAE_CROP_STEPS else VAE_BATCH // 2)
        if step < VAE_CROP_STEPS:
            top, left = torch.randint(0, SIZE - VAE_CROP, (2,)).tolist()
            pixels = pixels[:, :, top : top + VAE_CROP, left : left + VAE_CROP].contiguous()
        posterior = vae.encode(pixels).latent_dist
        decoded = vae.decode(posterior.sample()).sample
        return F.l1_loss(decoded, pixels) + F.mse_loss(decoded, pixels) + 1e-5 * posterior.kl().mean()

    train("vae", [(VAE_STEPS, VAE_LR)], Checkpoint(work / "vae.pt", vae=vae, optimizer=optimizer), optimizer, loss_of)
    return vae.eval()


@torch.no_grad()
def encode_images(vae: AutoencoderKL, work: Path) -> tuple[list[Scene], torch.Tensor]:
    """Scenes and posterior means [LATENT_IMAGES, 4, SIZE/8, SIZE/8] of the UNet's training set."""
    path = work / "latents.pt"
    batches = [draw_batch(2, i, ENCODE_CHUNK) for i in range(LATENT_IMAGES // ENCODE_CHUNK)]
    scenes = [scene for batch, _ in batches for scene in batch]
    if not path.exists():
        means = []
        for i, (_, pixels) in enumerate(batches):
            means.append(vae.encode(pixels).latent_dist.mean)
            print(f"encode {(i + 1) * ENCODE_CHUNK}/{LATENT_IMAGES}", end="\r", flush=True)
        torch.save(torch.cat(means), path)
    return scenes, torch.load(path, weights_only=True)


def train_decoder(work: Path, vae: AutoencoderKL, latents: torch.Tensor) -> None:
    """Polish the decoder in place; the encoder, and so the latents, stay as they are."""
    decoder = torch.nn.ModuleDict({"post_quant_conv": vae.post_quant_conv, "decoder": vae.decoder})
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=DECODER_LR, weight_decay=0.0)

    def loss_of(step: int) -> torch.Tensor:
        chunk = step % (LATENT_IMAGES // ENCODE_CHUNK)
        _, pixels = draw_batch(2, chunk, ENCODE_CHUNK)
        chosen = torch.randperm(ENCODE_CHUNK)[:DECODER_BATCH]
        latent = latents[chunk * ENCODE_CHUNK + chosen]
        # a little noise: the UNet's latents will not be perfect either
        decoded = vae.decode(latent + 0.05 * latent.std() * torch.randn_like(latent)).sample
        return F.l1_loss(decoded, pixels[chosen]) + F.mse_loss(decoded, pixels[chosen])

    checkpoint = Checkpoint(work / "decoder.pt", decoder=decoder, optimizer=optimizer)
    train("decoder", [(DECODER_STEPS, DECODER_LR)], checkpoint, optimizer, loss_of)


@torch.no_grad()
def fold_latent_scale(vae: AutoencoderKL, latents: torch.Tensor) -> torch.Tensor:
    """Fold a shift and a scale per channel into the VAE so that latents have SD's statistics: mean 0, std 1/0.18215.

    Returns the latents of the folded VAE, multiplied by the scaling factor (unit variance).
    """
    mean, std = latents.mean(dim=(0, 2, 3)), latents.std(dim=(0, 2, 3))
    scale = 1 / (SCALING_FACTOR * std)
    quant, post_quant = vae.quant_conv, vae.post_quant_conv
    quant.weight[:4] *= scale[:, None, None, None]
    quant.bias[:4] = (quant.bias[:4] - mean) * scale
    quant.bias[4:] += 2 * scale.log()
    post_quant.bias += (post_quant.weight[:, :, 0, 0] * mean).sum(dim=1)
    post_quant.weight /= scale[None, :, None, None]
    return (latents - mean[None, :, None, None]) / std[None, :, None, None]


def train_unet(work: Path, tokenizer: CLIPTokenizer, scenes: list[Scene], latents: torch.Tensor):
    """Train UNet and text encoder together; returns their exponential moving averages."""
    torch.manual_seed(0)
    text_encoder, unet = build_text_encoder(), build_unet()
    both = torch.nn.ModuleDict({"text_encoder": text_encoder, "unet": unet})
    average = torch.optim.swa_utils.AveragedModel(
        both, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(EMA_DECAY)
    )
    optimizer = torch.optim.AdamW(both.parameters(), lr=UNET_CYCLES[0][1], betas=(0.9, 0.99), weight_decay=0.0)
    snr = build_scheduler().alphas_cumprod
    snr = snr / (1 - snr)
    prompts = ["", *sorted({scene.prompt for scene in scenes})]
    ids = tokenizer(prompts, padding="max_length", max_length=77, return_tensors="pt").input_ids
    index = torch.tensor([prompts.index(scene.prompt) for scene in scenes])

    def loss_of(step: int) -> torch.Tensor:
        chosen = torch.randint(0, len(scenes), (UNET_BATCH,))
        clean, asked = latents[chosen], index[chosen]
        asked = torch.where(torch.rand(UNET_BATCH) < EMPTY_PROMPTS, 0, asked)
        noise, t = torch.randn_like(clean), torch.randint(0, 1000, (UNET_BATCH,))
        alpha = (snr[t] / (1 + snr[t]))[:, None, None, None]
        noisy = alpha.sqrt() * clean + (1 - alpha).sqrt() * noise
        predicted = unet(noisy, t, text_encoder(ids[asked]).last_hidden_state).sample
        error = (predicted - noise).square().mean(dim=(1, 2, 3))
        # min-SNR weighting for eps-prediction (Hang et al., 2023)
        return (error * snr[t].clamp(max=MIN_SNR_GAMMA) / snr[t]).mean()

    checkpoint = Checkpoint(work / "unet.pt", both=both, average=average, optimizer=optimizer)
    train("unet", UNET_CYCLES, checkpoint, optimizer, loss_of, after=lambda: average.update_parameters(both))
    averaged = cast(torch.nn.ModuleDict, average.module)
    return averaged["text_encoder"].eval(), averaged["unet"].eval()


def save_folder(output: Path, vae, text_encoder, unet, tokenizer_folder: Path) -> None:
    """Write the diffusers folder in FP16 safetensors, with the tokenizer's files as they were given."""
    pipeline = StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=CLIPTokenizer.from_pretrained(tokenizer_folder),
        unet=unet,
        scheduler=build_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    temporary = output.with_name(output.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    pipeline.to(dtype=torch.float16).save_pretrained(temporary, safe_serialization=True)
    # vocab.json and merges.txt are what every version of every tool reads; newer ones write tokenizer.json instead
    shutil.rmtree(temporary / "tokenizer")
    shutil.copytree(tokenizer_folder, temporary / "tokenizer")
    shutil.rmtree(output, ignore_errors=True)
    temporary.rename(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--output", type=Path, default=ROOT / "demo_model", help="diffusers folder to write")
    parser.add_argument("--tokenizer", type=Path, default=ROOT / "demo_model" / "tokenizer", help="CLIP tokenizer")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    torch.use_deterministic_algorithms(True)

    tokenizer = CLIPTokenizer.from_pretrained(arguments.tokenizer)
    vae = train_vae(arguments.work)
    scenes, means = encode_images(vae, arguments.work)
    train_decoder(arguments.work, vae, means)
    latents = fold_latent_scale(vae, means)
    text_encoder, unet = train_unet(arguments.work, tokenizer, scenes, latents)
    save_folder(arguments.output, vae, text_encoder, unet, arguments.tokenizer)
    print(f"Wrote {arguments.output}")


if __name__ == "__main__":
    main()
