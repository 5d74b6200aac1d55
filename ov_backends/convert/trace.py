"""torch module -> OpenVINO IR with named, dynamic inputs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConversionError

if TYPE_CHECKING:
    import openvino as ov
    import torch

CONVERSION_VERSION = "1"
"""Part of every IR's key: raise it when a change here or in the submodels' files changes the graph."""


@dataclass(frozen=True)
class TraceInput:
    """One input of a module: its name in the IR, an example and its shape with -1 for free dimensions.

    The example's free dimensions should be small: tracing runs the module once.
    """

    name: str
    example: torch.Tensor
    shape: tuple[int, ...]


def trace(module: torch.nn.Module, inputs: Sequence[TraceInput], outputs: Sequence[str], title: str) -> ov.Model:
    """Trace `module(*inputs)` on the CPU in FP32.

    outputs: names for the results, in order. title: what to call the module in an error.
    The model shares its constants with the module's weights until it is saved or compiled.
    """
    import openvino as ov
    import torch

    try:
        # inference tensors and autograd both break tracing; ComfyUI runs prompts in inference mode
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            # torch announces the end of tracing, and tracing the constants it found: neither is the user's business
            warnings.simplefilter("ignore")
            model = ov.convert_model(
                module,
                example_input=tuple(i.example.clone() for i in inputs),
                input=[ov.PartialShape(list(i.shape)) for i in inputs],
            )
    except Exception as error:  # any operator's converter may raise anything
        raise ConversionError(f"The {title} could not be converted to OpenVINO IR: {_first_line(error)}") from error
    # an output's tensor would get names from inside as well, where a pass drops the operator between the two
    for output in (output for node in model.get_ops() for output in node.outputs()):
        output.get_tensor().set_names(set())
    for ports, names in ((model.inputs, [i.name for i in inputs]), (model.outputs, list(outputs))):
        if len(ports) != len(names):
            raise ConversionError(f"The traced {title} has {len(ports)} ports where {names} were expected.")
        for port, name in zip(ports, names, strict=True):
            port.get_tensor().set_names({name})
    for node, name in zip(model.get_parameters(), (i.name for i in inputs), strict=True):
        node.set_friendly_name(name)
    return model


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
