"""The checker that every precision and device is measured by must itself be right."""

from __future__ import annotations

import numpy as np
import pytest
from shapes import COLOURS, SHAPES, Scene, draw_scene, fixed_scenes, read_scene, score_images


def as_image(scene: Scene, seed: int = 0) -> np.ndarray:
    return (draw_scene(scene, np.random.default_rng(seed)) * 255).round().astype(np.uint8)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_recognised_at_many_places_and_sizes(shape):
    scene = Scene(shape, "red", "blue")
    assert [read_scene(as_image(scene, seed)) for seed in range(20)] == [scene] * 20


@pytest.mark.parametrize("background", COLOURS)
def test_every_pair_of_colours_is_recognised(background):
    scenes = [Scene("circle", colour, background) for colour in COLOURS if colour != background]
    assert [read_scene(as_image(scene)) for scene in scenes] == scenes


def test_noise_and_blur_do_not_change_what_is_seen():
    rng = np.random.default_rng(0)
    for scene in fixed_scenes(30):
        noisy = np.clip(as_image(scene) + rng.normal(0, 10, (128, 128, 3)), 0, 255).astype(np.uint8)
        assert read_scene(noisy) == scene


@pytest.mark.parametrize("image", [np.zeros((128, 128, 3)), np.random.default_rng(0).uniform(0, 255, (128, 128, 3))])
def test_a_picture_without_a_shape_is_not_counted_as_right(image):
    assert read_scene(image.astype(np.uint8)) is None


def test_the_score_counts_wrong_shapes_and_wrong_colours():
    asked = [Scene("star", "red", "blue"), Scene("ring", "white", "black"), Scene("cross", "green", "yellow")]
    drawn = [asked[0], Scene("circle", "white", "black"), Scene("cross", "green", "orange")]
    score = score_images(asked, [as_image(scene) for scene in drawn])
    assert (score.total, score.right) == (3, 1)
    assert [seen for _, seen in score.wrong] == drawn[1:]


def test_the_fixed_prompts_are_the_same_everywhere():
    assert [scene.prompt for scene in fixed_scenes(3)] == [scene.prompt for scene in fixed_scenes(100)[:3]]
    assert len({scene.shape for scene in fixed_scenes(100)}) == len(SHAPES)
