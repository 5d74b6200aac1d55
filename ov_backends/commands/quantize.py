"""Quantize a model, check it against the float model on samples it has not seen, and write it as IR."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from ..convert.save import save_ir
from ..errors import CalibrationError, UseError
from ..plan import QUANTIZED
from ..quantize.int8 import Options, Quantized
from ..quantize.int8 import quantize as quantize_model
from .options import DONE, FELL_SHORT, Output, add_model, add_output, add_shape, megabytes, open_model
from .samples import ImageOptions, numbers, read_samples

if TYPE_CHECKING:
    import openvino as ov

    from ..progress import Progress

HELP = "INT8 or INT4, with an accuracy gate"
EXAMPLE = "quantize model.onnx int8.xml --precision int8 --samples samples.npz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_output(parser)
    add_shape(parser)
    parser.add_argument(
        "--precision",
        choices=QUANTIZED,
        default="int8",
        help="int8: weights and activations, needs samples; the others: weights only; default int8",
    )
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help=".npz or .safetensors with an array for each input, or a folder of .npy files or images",
    )
    parser.add_argument("--mean", type=numbers, default=(0.0,), metavar="M", help="of images, taken off rgb / 255")
    parser.add_argument("--scale", type=numbers, default=(1.0,), metavar="S", help="of images, divided by after --mean")
    parser.add_argument("--layout", default="NCHW", help="of the input that takes images: NCHW or NHWC; default NCHW")
    parser.add_argument("--keep-float", nargs="+", default=[], metavar="LAYER", help="layers to leave as they are")
    parser.add_argument(
        "--limit", type=float, default=Options.limit, help="of the gate: least cosine; default %(default)s"
    )
    parser.add_argument(
        "--range",
        choices=("percentile", "min-max"),
        default=Options.activation_range,
        help="how ranges are found; percentile clips outliers; default %(default)s",
    )
    parser.add_argument("--percentile", type=float, default=Options.percentile, help="default %(default)s")
    parser.add_argument(
        "--smooth-quant",
        type=float,
        default=Options.smooth_quant,
        metavar="S",
        help="how far outliers of activations move into the weights, 0 to 1; 0 turns it off; default %(default)s",
    )


def run(options: argparse.Namespace, progress: Progress) -> Output:
    images = ImageOptions(options.mean, options.scale, options.layout)
    model = open_model(options.model, options.shape, progress)
    _check_names(model, options.keep_float)
    samples = read_samples(options.samples, model, images) if options.samples else []
    if options.precision == "int8" and not samples:
        raise CalibrationError("int8 needs samples of real inputs: --samples FILE. The others do without.")
    choices = Options(
        activation_range=options.range,
        percentile=options.percentile,
        smooth_quant=options.smooth_quant,
        keep_float=tuple(options.keep_float),
        limit=options.limit,
    )
    quantized = quantize_model(model, options.precision, samples, choices, progress, title=options.model)
    if not quantized.gate.passed:
        return Output(_failed(quantized), _data(quantized, len(samples)), FELL_SHORT)
    progress(f"Writing {options.output}")
    written = save_ir(quantized.model, options.output)
    text = f"Wrote {options.output}, {megabytes(written)}\n{_text(quantized, len(samples))}"
    return Output(text, {**_data(quantized, len(samples)), "output": str(options.output), "bytes": written}, DONE)


def _check_names(model: ov.Model, names: list[str]) -> None:
    """A name that is not there would be left out in silence, and the layer quantized."""
    known = [node.get_friendly_name() for node in model.get_ops()]
    for name in (name for name in names if name not in known):
        near = difflib.get_close_matches(name, known, 3, 0.5)
        raise UseError(f"--keep-float: the model has no layer '{name}'{', but ' + ', '.join(near) if near else ''}.")


def _failed(quantized: Quantized) -> str:
    gate = quantized.gate
    return (
        f"Not written: the gate failed. {gate.text()}; the limit is {gate.limit}. Give more samples that are like your "
        "data, name sensitive layers with --keep-float, or use --precision int8-weights."
    )


def _text(quantized: Quantized, samples: int) -> str:
    lines = [f"{quantized.precision}, {samples} samples: {quantized.gate.text()}"]
    kept = [*quantized.kept_float, *quantized.gate.restored]
    if kept:
        lines.append(f"In floating point: {', '.join(kept)}")
    if quantized.unsupported:
        lines.append(f"Not quantized by nncf, so in floating point too: {', '.join(quantized.unsupported)}")
    return "\n".join(lines)


def _data(quantized: Quantized, samples: int) -> dict:
    return {
        "precision": quantized.precision,
        "samples": samples,
        "gate": quantized.gate.as_json(),
        "kept_float": quantized.kept_float,
        "unsupported": quantized.unsupported,
    }
