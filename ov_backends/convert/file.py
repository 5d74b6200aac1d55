"""A model file of any framework, or a function that returns a torch module -> ov.Model with named inputs."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import devices
from ..errors import ConversionError, ShapeError, last_line
from ..tensors import Shapes, format_shapes

if TYPE_CHECKING:
    import openvino as ov
    import torch

FORMATS = {
    ".onnx": "ONNX",
    ".xml": "OpenVINO IR",
    ".tflite": "TensorFlow Lite",
    ".pdmodel": "PaddlePaddle",
    ".pb": "TensorFlow",
}
"""What OpenVINO reads by itself, by the ending of the file; a folder with saved_model.pb besides."""

_ADVICE = {
    ".bin": "It holds the weights of an IR; give the .xml beside it.",
    ".pdiparams": "It holds the weights of a PaddlePaddle model; give the .pdmodel beside it.",
    **dict.fromkeys(
        (".pt", ".pth", ".ckpt", ".safetensors"),
        "It holds weights without a graph. On the command line give 'module:function', a function that returns the "
        "torch module; or export the model to ONNX.",
    ),
    ".gguf": "OpenVINO GenAI reads GGUF language models, this pack does not.",
    ".keras": "Save it as a TensorFlow SavedModel folder (model.export) and give the folder.",
    ".h5": "Save it as a TensorFlow SavedModel folder (model.export) and give the folder.",
}
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def read_file(source: str, shapes: Shapes | None = None, may_import: bool = False) -> ov.Model:
    """The model in `source`; every input and output has a name.

    source: an ONNX, IR (.xml), TensorFlow Lite, PaddlePaddle (.pdmodel) or TensorFlow (.pb) file, or a SavedModel
    folder. shapes: what inputs are reshaped to, -1 for a dimension that stays free; inputs not named stay as they are.
    may_import: `source` may also be "module:function", Python code of the current folder or installed, that returns a
    torch module or (module, example inputs). It runs that code: only for what the user has typed on a command line.

    ConversionError: the source is missing, damaged or of a kind that is not known. ShapeError: a shape does not fit.
    """
    if may_import and _FUNCTION.fullmatch(source) and not Path(source).exists():
        return _read_function(source, shapes)
    model = _read_path(Path(source), may_import)
    model.set_friendly_name(Path(source).resolve().stem)
    _name_ports(model)
    reshape(model, shapes or {}, source)
    return model


def reshape(model: ov.Model, shapes: Shapes, title: str) -> None:
    """Give inputs of `model` these shapes, in place; ShapeError if there is no such input or a shape does not fit."""
    known = {port.get_any_name(): port for port in model.inputs}
    every_name = {name for port in model.inputs for name in port.get_names()}
    if unknown := sorted(set(shapes) - every_name):
        raise ShapeError(
            f"{title} has no input '{unknown[0]}'. Its inputs: "
            + ", ".join(f"{name} {port.get_partial_shape()}" for name, port in known.items())
        )
    if not shapes:
        return
    try:
        model.reshape({name: list(shape) for name, shape in shapes.items()})
    except RuntimeError as error:
        raise ShapeError(
            f"{title} cannot take {format_shapes(shapes)}: {last_line(error)}. It was made for "
            + ", ".join(f"{name} {port.get_partial_shape()}" for name, port in known.items())
        ) from error


def _read_path(path: Path, may_import: bool) -> ov.Model:
    kinds = ", ".join([*FORMATS, "a SavedModel folder", *(["module:function"] if may_import else [])])
    if not path.exists():
        raise ConversionError(f"There is no file {path} (from the folder {Path.cwd()}). Give one of: {kinds}.")
    if path.is_dir() and not (path / "saved_model.pb").is_file():
        raise ConversionError(f"The folder {path} has no saved_model.pb. Give one of: {kinds}.")
    ending = path.suffix.lower()
    if path.is_file() and ending not in FORMATS:
        advice = _ADVICE.get(ending, f"Give one of: {kinds}.")
        raise ConversionError(f"{path} is of a kind that cannot be read ({ending or 'no ending'}). {advice}")
    if path.is_file() and path.stat().st_size == 0:
        raise ConversionError(f"{path} is empty; download or export it again.")
    try:
        return devices.core().read_model(path)
    except RuntimeError as error:
        raise ConversionError(_explain(path, str(error))) from error


def _explain(path: Path, text: str) -> str:
    """What OpenVINO's reader means by `text`."""
    kind = "SavedModel" if path.is_dir() else FORMATS[path.suffix.lower()]
    if "wasn't fully converted" in text or "unconverted" in text:
        operators = ", ".join(dict.fromkeys(re.findall(r"^-- (\S+)", text, flags=re.MULTILINE))) or last_line(text)
        return f"{path} uses operators that OpenVINO cannot convert: {operators}. Export the model without them."
    if kind == "TensorFlow Lite" and (unknown := re.search(r"Unexpected type: (\w+)", text)):
        return (
            f"{path} has tensors of the type {unknown[1]}, which OpenVINO does not read. RESOURCE is what a streaming "
            "model keeps its state in: export it with the state as inputs and outputs."
        )
    weights = {".xml": ".bin", ".pdmodel": ".pdiparams"}.get(path.suffix.lower())
    if weights and ("weights" in text.lower() or "bin file" in text.lower() or weights in text):
        name = path.with_suffix(weights).name
        return f"{path} does not fit its weights: {name} beside it is missing, cut short or of another model."
    if path.suffix.lower() == ".onnx" and "external data" in text.lower():
        return f"{path} keeps weights in other files that are missing or cut short beside it: {last_line(text)}"
    return f"{path} is damaged, or it is not {kind}; download or export it again. (OpenVINO: {last_line(text)})"


def _read_function(source: str, shapes: Shapes | None) -> ov.Model:
    module_name, _, name = source.partition(":")
    try:
        import openvino as ov
        import torch
    except ImportError as error:
        raise ConversionError(f"'{source}' needs PyTorch, which cannot be imported here: {error}") from error
    with _current_folder_first():
        made = _call(_import(module_name), name, source)
    module, examples = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise ConversionError(f"'{source}' returned {type(module).__name__}, where a torch.nn.Module was expected.")
    inputs = _example_inputs(module, examples, shapes or {}, source)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer announces every constant that it finds
            model = ov.convert_model(module.eval(), example_input=inputs)
    except Exception as error:  # the module's own code and any operator's converter may raise anything
        raise ConversionError(f"The module of '{source}' could not be converted: {_first_line(error)}") from error
    model.set_friendly_name(name)
    for port, given in zip(model.inputs, inputs, strict=False):
        port.get_tensor().set_names({given})
    _name_ports(model)
    reshape(model, {**{n: tuple(t.shape) for n, t in inputs.items()}, **(shapes or {})}, source)
    return model


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # it is the user's code, which may raise anything
        raise ConversionError(
            f"The module '{name}' could not be imported from {Path.cwd()}: {_first_line(error)}"
        ) from error


def _call(module: Any, name: str, source: str) -> Any:
    function = getattr(module, name, None)
    if not callable(function):
        raise ConversionError(f"'{source}': the module {module.__name__} has no function '{name}'.")
    try:
        return function()
    except Exception as error:  # as above
        raise ConversionError(f"'{source}' failed: {type(error).__name__}: {_first_line(error)}") from error


@contextmanager
def _current_folder_first() -> Iterator[None]:
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _example_inputs(module: torch.nn.Module, examples: Any, shapes: Shapes, source: str) -> dict[str, torch.Tensor]:
    """Argument name of forward -> example; random numbers of the shapes given where the function brought none."""
    import torch

    if isinstance(examples, Mapping):
        return dict(examples)
    names = [p.name for p in inspect.signature(module.forward).parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD]
    if examples is not None:
        tensors = list(examples) if isinstance(examples, tuple | list) else [examples]
        return dict(zip(names, tensors, strict=False))
    if not shapes or any(length < 1 for shape in shapes.values() for length in shape):
        wanted = " ".join(f"{name}=[...]" for name in names[:1])
        raise ConversionError(
            f"'{source}' returned a module without example inputs, and tracing needs them. Return (module, inputs), or "
            f"give the size of its inputs: --shape {wanted} (its forward takes {', '.join(names)})"
        )
    if unknown := sorted(set(shapes) - set(names)):
        raise ShapeError(f"'{source}' has no input '{unknown[0]}'; its forward takes {', '.join(names)}.")
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shapes[name], generator=generator) for name in names if name in shapes}


def _name_ports(model: ov.Model) -> None:
    """Names for the ports that have none: formats other than ONNX leave them out at times."""
    for index, port in enumerate(model.inputs):
        if not port.get_names():
            port.get_tensor().set_names({port.get_node().get_friendly_name() or f"input{index}"})
    for index, port in enumerate(model.outputs):
        if not port.get_names():
            port.get_tensor().set_names({f"output{index}"})


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
