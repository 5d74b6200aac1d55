"""Compile a model for a device and keep the result in the cache, where the next start finds it."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from .. import devices
from ..compiler.cache import CompileCache, default_limit_bytes, default_root
from ..compiler.compile import Compiled, Order, compile_cached
from ..compiler.precision import actual_precision, resolve_precision
from ..convert.save import save_ir
from ..convert.trace import CONVERSION_VERSION
from ..runtime.model_file import ModelFile
from .options import Output, add_device, add_model, add_precision, add_shape, megabytes, open_model, present_device

if TYPE_CHECKING:
    import openvino as ov

    from ..progress import Progress

HELP = "compile for a device, by way of the cache"
EXAMPLE = "compile model.onnx --device CPU --shape bytes=[1,2048]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_shape(parser)
    add_device(parser)
    add_precision(parser)


def run(options: argparse.Namespace, progress: Progress) -> Output:
    device = present_device(options.device)
    model = open_model(options.model, options.shape, progress, device)
    precision, reason = resolve_precision(options.precision, device)
    shapes = {port.get_any_name(): str(port.get_partial_shape()) for port in model.inputs}
    order = model_order(model, options.model, device, precision)
    cache = CompileCache(default_root(), default_limit_bytes())
    compiled = compile_cached(order, cache, progress)
    compile_s, state, why = compiled.compile_s, compiled.state, compiled.reason
    if compiled.entry is not None and state == "miss":
        del compiled  # one copy in memory at a time
        compiled = compile_cached(order, cache, progress)
    data = {
        "device": devices.label(device),
        "precision": actual_precision(compiled.model, precision),
        "precision_reason": reason,
        "inputs": shapes,
        "cache": {"state": state, "reason": why, "key": compiled.entry.path.name if compiled.entry else ""},
        "compile_s": round(compile_s, 3),
        "import_s": round(compiled.import_s, 3),
        "blob_bytes": compiled.entry.manifest["bytes"] if compiled.entry else 0,
        "placement": compiled.placement.as_json(),
    }
    return Output(_text(data, compiled), data)


def model_order(model: ov.Model, source: str, device: str, precision: str) -> Order:
    """What the cache knows a model of the command line by: the contents of its files, its sizes, device, precision."""
    # where every size is fixed they are part of the blob's identity; `model` has them already
    static = not any(port.get_partial_shape().is_dynamic for port in model.inputs)
    shapes = {port.get_any_name(): tuple(port.get_shape()) for port in model.inputs} if static else None
    identity = {
        "submodel": "model",
        "model": model.get_friendly_name(),
        "weights": contents_hash(model, source),
        "conversion": CONVERSION_VERSION,
    }
    return Order("model", identity, model.clone, shapes, device, precision, "warn")


def contents_hash(model: ov.Model, source: str) -> str:
    """Of the files of `source`; of the model itself where it came from a function."""
    path = Path(source)
    if path.exists():
        return ModelFile(path.stem, path).identity
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.xml"
        save_ir(model, file)
        return ModelFile("model", file).identity


def _text(data: dict, compiled: Compiled) -> str:
    inputs = " ".join(f"{name}={shape}" for name, shape in data["inputs"].items())
    lines = [f"{data['device']} {data['precision']}, {inputs}"]
    if data["precision_reason"]:
        lines.append(data["precision_reason"])
    if data["cache"]["state"] == "hit":
        lines.append(f"Found in the cache ({data['cache']['key'][:12]})")
    else:
        lines.append(f"Compiled in {data['compile_s']:.2f} s, because: {data['cache']['reason']}")
    if compiled.entry:
        lines.append(f"Loads in {data['import_s']:.2f} s, {megabytes(data['blob_bytes'])} on disk")
    counts = ", ".join(f"{count} on {devices.label(d)}" for d, count in compiled.placement.devices.items())
    lines.append(f"Operators: {counts}; {compiled.placement.switches} changes of device")
    fallen = Counter(operator.type for operator in compiled.placement.fallback)
    if fallen:
        kinds = ", ".join(f"{count} {kind}" for kind, count in fallen.most_common())
        lines.append(f"{data['device']} does not take: {kinds}")
    return "\n".join(lines)
