"""Show what a model is: inputs, outputs, layouts, open dimensions, operators with MACs and bytes, quantized or not."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .. import devices
from ..errors import CompileError
from ..graph.execution import ExecutionGraph, execution_graph
from ..graph.summary import summarize
from ..quantize.scope import is_quantized
from .options import Output, add_model, add_shape, open_model, present_device

if TYPE_CHECKING:
    import openvino as ov

    from ..progress import Progress

HELP = "show ports, operators and their cost"
EXAMPLE = "inspect model.onnx --shape bytes=[1,2048]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_shape(parser)
    parser.add_argument("--compiled", metavar="D", help="compile for this device and show what was fused")


def run(options: argparse.Namespace, progress: Progress) -> Output:
    device = present_device(options.compiled) if options.compiled else ""
    model = open_model(options.model, options.shape, progress, device)
    summary, quantized = summarize(model), is_quantized(model)
    lines = [summary.text(), f"Quantized: {quantized or 'no'}"]
    data = {**summary.as_json(), "quantized": quantized}
    if device:
        progress(f"Compiling for {devices.label(device)}")
        graph = _executed(model, device)
        lines.append(graph.text())
        data["execution"] = graph.as_json()
    return Output("\n".join(lines), data)


def _executed(model: ov.Model, device: str) -> ExecutionGraph:
    try:
        compiled = devices.core().compile_model(model, device, devices.compile_properties(device))
    except RuntimeError as error:
        raise CompileError(
            f"{devices.label(device)} could not compile the model: {devices.explain_device_error(error, device)}"
        ) from error
    return execution_graph(compiled)
