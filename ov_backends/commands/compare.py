"""Run two models, or one model on two devices, on the same input, and find the first layer where they part."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UseError
from ..inputs import random_inputs
from ..quantize.divergence import compare_layers
from ..quantize.gate import LIMIT
from .options import DONE, FELL_SHORT, Output, add_model, add_shape, open_model, present_device
from .samples import ImageOptions, read_samples

if TYPE_CHECKING:
    from ..progress import Progress

HELP = "layer by layer, two models or two devices"
EXAMPLE = "compare model.onnx int8.xml --input samples.npz --limit 0.99"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_model(parser, "other", nargs="?")
    add_shape(parser)
    parser.add_argument("--device", default="CPU", metavar="D[,D2]", help="of the first and of the second; default CPU")
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help=".npz, .safetensors or folder; its first sample is taken, else noise"
    )
    parser.add_argument("--limit", type=float, default=LIMIT, help="least cosine of the outputs; default %(default)s")


def run(options: argparse.Namespace, progress: Progress) -> Output:
    first, second = _devices(options.device)
    if options.other is None and first == second:
        raise UseError("Give a second model, or two devices (--device CPU,NPU): there is nothing to compare with.")
    reference = open_model(options.model, options.shape, progress, first)
    other = open_model(options.other or options.model, options.shape, progress, second)
    inputs = read_samples(options.input, reference, ImageOptions())[0] if options.input else random_inputs(reference)
    found = compare_layers(reference, other, inputs, (first, second), progress, options.limit)
    names = f"{options.model} on {first} and {options.other or options.model} on {second}"
    origin = f"the first sample of {options.input}" if options.input else "noise; --input gives real data"
    verdict = "passed" if found.passed else "failed"
    text = f"{names}, input: {origin}\n{found.text()}\nLimit {options.limit}: {verdict}"
    return Output(text, {**found.as_json(), "limit": options.limit}, DONE if found.passed else FELL_SHORT)


def _devices(text: str) -> tuple[str, str]:
    """One or two names -> two devices that are there."""
    names = [name for name in text.split(",") if name]
    if len(names) not in (1, 2):
        raise UseError(f"--device {text}: give one device, or two with a comma between them.")
    return present_device(names[0]), present_device(names[-1])
