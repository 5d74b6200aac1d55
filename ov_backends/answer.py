"""What a model's outputs say: a picture, the scores of classes, or numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .errors import ModelFolderError

if TYPE_CHECKING:
    import torch

MIN_SIDE = 8
"""A picture has at least this many pixels a side; [1, 1, 100, 7] is a detector's list of boxes."""

VALUES_LIMIT = 1000
"""Outputs of up to this many numbers are written out; of larger ones the first FIRST_VALUES."""
FIRST_VALUES = 8

RANGES = {"0 to 1": (0.0, 1.0), "0 to 255": (0.0, 255.0), "-1 to 1": (-1.0, 1.0)}
"""The numbers that stand for black and for white in a model's picture."""


def picture_of(outputs: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The first output that is a picture, [1, height, width, 1 or 3], its values as they are; None if there is none."""
    for tensor in outputs.values():
        if tensor.ndim != 4 or len(tensor) != 1:
            continue
        _, second, third, fourth = tensor.shape
        if second in (1, 3) and min(third, fourth) >= MIN_SIDE:
            return tensor.permute(0, 2, 3, 1)
        if fourth in (1, 3) and min(second, third) >= MIN_SIDE:
            return tensor
    return None


def to_image(picture: torch.Tensor, values: str, order: str) -> tuple[torch.Tensor, float]:
    """A ComfyUI IMAGE [1, height, width, 3], float32, 0 to 1, and the share of numbers that were cut off to get there.

    picture: [1, height, width, 1 or 3]; values: one of RANGES; order: "RGB" or "BGR", of its channels.
    """
    low, high = RANGES[values]
    image = (picture.float() - low) / (high - low)
    if image.shape[3] == 1:
        image = image.expand(-1, -1, -1, 3)
    elif order == "BGR":
        image = image.flip(-1)
    # a rounding error below black is not worth a word
    cut = float(((image < -1e-3) | (image > 1 + 1e-3)).float().mean())
    return image.clamp(0, 1).contiguous(), cut


def answer(outputs: Mapping[str, torch.Tensor], labels: Sequence[str], top_k: int) -> dict:
    """What the outputs for one image say, for JSON: {"outputs": {name: ...}, "classes": ..., where there are any}."""
    described = {name: _described(tensor) for name, tensor in outputs.items()}
    scores = next((tensor for tensor in outputs.values() if _is_scores(tensor)), None)
    if scores is None:
        return {"outputs": described}
    return {"classes": rank(scores.flatten(), labels, top_k), "outputs": described}


def rank(scores: torch.Tensor, labels: Sequence[str], top_k: int) -> list[dict]:
    """The `top_k` best classes of `scores` [classes], best first: label (None without labels), index and score.

    Scores that are no probabilities (some below 0 or above 1) become so by softmax. ModelFolderError unless there
    are as many labels as classes, or none.
    """
    if labels and len(labels) != len(scores):
        raise ModelFolderError(
            f"There are {len(labels)} labels (from {labels[0]!r} to {labels[-1]!r}), and the model has {len(scores)} "
            "classes. Give one label for each class, in the model's order, one a line."
        )
    scores = scores.float()
    if bool(((scores < 0) | (scores > 1)).any()):
        scores = scores.softmax(0)
    best = scores.topk(min(top_k, len(scores)))
    return [
        {"label": labels[index] if labels else None, "index": index, "score": round(score, 6)}
        for score, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def answer_text(found: dict) -> str:
    """The same for people: classes in order, else the outputs' shapes and ranges."""
    if "classes" in found:
        return ", ".join(f"{c['label'] or 'class ' + str(c['index'])} {c['score']:.1%}" for c in found["classes"])
    return "; ".join(
        f"{name} {output['shape']}: {output['minimum']:.4g} to {output['maximum']:.4g}"
        if output["minimum"] is not None
        else f"{name} {output['shape']}: no numbers"
        for name, output in found["outputs"].items()
    )


def _is_scores(tensor: torch.Tensor) -> bool:
    """[1, classes], perhaps with dimensions of 1 behind."""
    return tensor.ndim >= 2 and tensor.is_floating_point() and tensor.shape[1] > 1 and tensor.shape[1] == tensor.numel()


def _described(tensor: torch.Tensor) -> dict:
    """Shape, type, range of the finite numbers, and the numbers themselves as far as VALUES_LIMIT goes."""
    numbers = tensor.double().flatten()
    finite = numbers[numbers.isfinite()]
    is_whole = numbers.numel() <= VALUES_LIMIT
    return {
        "shape": list(tensor.shape),
        "type": str(tensor.dtype).removeprefix("torch."),
        "minimum": float(finite.min()) if finite.numel() else None,
        "maximum": float(finite.max()) if finite.numel() else None,
        "mean": float(finite.mean()) if finite.numel() else None,
        "infinite": int(numbers.isinf().sum()),
        "values" if is_whole else "first_values": _rounded(tensor if is_whole else tensor.flatten()[:FIRST_VALUES]),
    }


def _rounded(tensor: torch.Tensor) -> list:
    """Nested lists as JSON can hold them: six digits of a float, null for infinity."""
    values = tensor.tolist()
    return _json_numbers(values)


def _json_numbers(value):
    if isinstance(value, list):
        return [_json_numbers(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
