"""Score the demo model on torch: how many of the fixed prompts come out with the right shape and both right colours.

    python tools/score_demo_model.py [--count 100] [--sheet scores.png]

20 steps of Euler, CFG 5, by diffusers. Exit code 0 at 90 % or more, else 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionPipeline
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
from shapes import Scene, fixed_scenes, score_images

ROOT = Path(__file__).parent.parent
STEPS, CFG, GOAL_PERCENT = 20, 5.0, 90
BATCH = 20


def draw(folder: Path, scenes: list[Scene]) -> list[np.ndarray]:
    """One uint8 image [128, 128, 3] for each scene; the seed is the scene's number."""
    pipeline = StableDiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.scheduler = EulerDiscreteScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    images = []
    for start in range(0, len(scenes), BATCH):
        prompts = [scene.prompt for scene in scenes[start : start + BATCH]]
        seeds = [torch.Generator().manual_seed(start + i) for i in range(len(prompts))]
        drawn = pipeline(prompts, num_inference_steps=STEPS, guidance_scale=CFG, generator=seeds, output_type="np")
        images += list((drawn.images * 255).round().astype(np.uint8))
        print(f"drawn {len(images)}/{len(scenes)}", flush=True)
    return images


def contact_sheet(images: list[np.ndarray], columns: int = 10) -> Image.Image:
    """All images in rows of `columns`."""
    rows = [
        np.concatenate(images[i : i + columns], axis=1) for i in range(0, len(images) // columns * columns, columns)
    ]
    return Image.fromarray(np.concatenate(rows, axis=0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "demo_model", help="diffusers folder")
    parser.add_argument("--count", type=int, default=100, help="how many of the fixed prompts")
    parser.add_argument("--sheet", type=Path, help="write all images as one picture")
    arguments = parser.parse_args()
    scenes = fixed_scenes(arguments.count)
    images = draw(arguments.model, scenes)
    if arguments.sheet:
        contact_sheet(images).save(arguments.sheet)
    score = score_images(scenes, images)
    print(score)
    return 0 if score.percent >= GOAL_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
