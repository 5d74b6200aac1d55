"""What the commands share: options with one meaning everywhere, and their values."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .. import devices
from ..convert.file import read_file
from ..errors import CalibrationError, DeviceError, ShapeError, UseError
from ..plan import FLOAT_PRECISIONS
from ..runtime.model_file import describe_port, suggest_shapes
from ..tensors import parse_shapes

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

    from ..progress import Progress

DONE, FELL_SHORT, BAD_USE = 0, 1, 2
"""Exit codes."""


@dataclass(frozen=True)
class Output:
    """What a command has to say: text for people, data for --json, and its exit code."""

    text: str
    data: dict = field(default_factory=dict)
    code: int = DONE


def add_model(parser: argparse.ArgumentParser, name: str = "model", **more) -> None:
    parser.add_argument(
        name,
        metavar=name.upper(),
        help="ONNX, IR (.xml), .tflite, .pdmodel, .pb, SavedModel folder, or module:function, which runs that code",
        **more,
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("output", metavar="OUTPUT", type=Path, help="the .xml to write; the .bin goes beside it")


def add_pair(parser: argparse.ArgumentParser) -> None:
    """Two models, or one on two devices."""
    add_model(parser)
    add_model(parser, "other", nargs="?")
    add_shape(parser)
    parser.add_argument("--device", default="CPU", metavar="D[,D2]", help="one, or two, as CPU,NPU; default CPU")


def add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape",
        nargs="+",
        action="extend",
        default=[],
        metavar="SHAPE",
        help="size of an input, NAME=[N,...], such as images=[1,3,640,640]; ? leaves a dimension open",
    )


def add_device(parser: argparse.ArgumentParser, default: str = "CPU", many: bool = False) -> None:
    more = "; several after commas" if many else ""
    parser.add_argument(
        "--device",
        default=default,
        metavar="D",
        help=f"CPU, GPU, GPU.1, NPU or AUTO (the first of NPU, GPU, CPU that is there){more}; default {default}",
    )


def add_precision(parser: argparse.ArgumentParser) -> None:
    # a file is quantized by the command of that name; what it computes in besides is chosen here
    parser.add_argument("--precision", choices=FLOAT_PRECISIONS, default="auto", help="of floating point; default auto")


def open_model(source: str, shape: list[str], progress: Progress, device: str = "") -> ov.Model:
    """The model that the user named, at the sizes given; `device` may demand that all sizes are."""
    progress(f"Reading {source}")
    model = read_file(source, parse_shapes(" ".join(shape)), may_import=True)
    if device:
        require_shapes(model, source, device)
    return model


def present_device(asked: str) -> str:
    """The device that `asked` means on this machine; DeviceError, with the remedy, if it is not there."""
    device = asked.strip().upper()
    if device == devices.AUTO:
        return devices.resolve(device, "model", "error").device
    if why := devices.why_missing(device):
        raise DeviceError(f"{device} is not available. {why}")
    return device


def one_or_two(asked: str) -> list[str]:
    """The devices that `asked` names, with a comma between them; whether they are there is not looked at."""
    names = [name for name in asked.split(",") if name]
    if len(names) not in (1, 2):
        raise UseError(f"--device {asked}: give one device, or two with a comma between them.")
    return names


def require_shapes(model: ov.Model, title: str, device: str) -> None:
    """Raise ShapeError, with the option to type, if `model` has open dimensions and `device` takes none."""
    dynamic = [port for port in model.inputs if port.get_partial_shape().is_dynamic]
    if devices.is_npu(device) and dynamic:
        raise ShapeError(
            f"{title} leaves dimensions open ({', '.join(map(describe_port, dynamic))}); the NPU needs every dimension "
            f"fixed. Give the size that you use, for example: --shape {suggest_shapes(model)}"
        )


def check_inputs(model: ov.Model, inputs: Mapping[str, np.ndarray], origin: str) -> dict[str, np.ndarray]:
    """`inputs` in the model's dtypes; CalibrationError, naming `origin`, unless names and shapes are the model's."""
    import numpy as np

    checked = {}
    for port in model.inputs:
        found = [name for name in port.get_names() if name in inputs]
        if not found:
            names = ", ".join(p.get_any_name() for p in model.inputs)
            raise CalibrationError(f"{origin} has no input '{port.get_any_name()}'; the model takes {names}.")
        array = np.asarray(inputs[found[0]])
        if not port.get_partial_shape().compatible(_partial_shape(array.shape)):
            raise CalibrationError(
                f"{origin}: '{found[0]}' has the shape {list(array.shape)}, and the model takes "
                f"{port.get_partial_shape()}. Bring it into that size, or give --shape."
            )
        kind = port.get_element_type().to_dtype()
        checked[port.get_any_name()] = np.ascontiguousarray(array, dtype=kind)
    return checked


def _partial_shape(shape: tuple[int, ...]) -> ov.PartialShape:
    import openvino as ov

    return ov.PartialShape(list(shape))


def megabytes(count: float) -> str:
    """A number of bytes in MB of 10^6."""
    return f"{count / 1e6:.2f} MB"
