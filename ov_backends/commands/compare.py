"""Run two models, or one model on two devices, on the same input, and find the first layer where they part."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import UseError
from ..quantize.divergence import compare_layers
from ..quantize.gate import LIMIT
from .options import DONE, FELL_SHORT, Output, add_pair, one_or_two, open_model, present_device
from .samples import add_input, read_input

if TYPE_CHECKING:
    from ..progress import Progress

HELP = "layer by layer, two models or two devices"
EXAMPLE = "compare model.onnx int8.xml --input samples.npz --limit 0.99"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair(parser)
    add_input(parser)
    parser.add_argument("--limit", type=float, default=LIMIT, help="least cosine of the outputs; default %(default)s")


def run(options: argparse.Namespace, progress: Progress) -> Output:
    found = [present_device(name) for name in one_or_two(options.device)]
    first, second = found[0], found[-1]
    if options.other is None and first == second:
        raise UseError("Give a second model, or two devices (--device CPU,NPU): there is nothing to compare with.")
    reference = open_model(options.model, options.shape, progress, first)
    other = open_model(options.other or options.model, options.shape, progress, second)
    inputs = read_input(options.input, reference)
    compared = compare_layers(reference, other, inputs, (first, second), progress, options.limit)
    names = f"{options.model} on {first} and {options.other or options.model} on {second}"
    origin = f"the first sample of {options.input}" if options.input else "random numbers; --input gives real data"
    verdict = "passed" if compared.passed else "failed"
    text = f"{names}, input: {origin}\n{compared.text()}\nLimit {options.limit}: {verdict}"
    return Output(text, {**compared.as_json(), "limit": options.limit}, DONE if compared.passed else FELL_SHORT)
