"""Convert a model of any framework to OpenVINO IR (.xml and .bin), with fixed sizes and FP16 weights if you like."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..convert.save import save_ir
from ..graph.summary import summarize
from .options import Output, add_model, add_output, add_shape, megabytes, open_model

if TYPE_CHECKING:
    from ..progress import Progress

HELP = "write OpenVINO IR"
EXAMPLE = "convert model.onnx model.xml --shape bytes=[1,2048] --fp16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_output(parser)
    add_shape(parser)
    parser.add_argument("--fp16", action="store_true", help="store weights in FP16: half the size")


def run(options: argparse.Namespace, progress: Progress) -> Output:
    model = open_model(options.model, options.shape, progress)
    summary = summarize(model)
    progress(f"Writing {options.output}")
    written = save_ir(model, options.output, options.fp16)
    ports = [*(f"  in  {port}" for port in summary.inputs), *(f"  out {port}" for port in summary.outputs)]
    lines = [f"Wrote {options.output} and {options.output.with_suffix('.bin').name}, {megabytes(written)}", *ports]
    if summary.is_dynamic:
        lines.append("Some dimensions are open: the NPU needs all of them fixed (--shape).")
    data = {
        "output": str(options.output),
        "bytes": written,
        "fp16": options.fp16,
        "inputs": {port.name: port.shape for port in summary.inputs},
        "outputs": {port.name: port.shape for port in summary.outputs},
        "is_dynamic": summary.is_dynamic,
    }
    return Output("\n".join(lines), data)
