"""Measure a model: first inference, steady state, many requests at a time, against what the device can do at most.

With two models or two devices they take turns, so that what disturbs one disturbs both, and their ratio is given.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .. import devices
from ..bench import Ready, benchmark_model, compile_for
from ..compiler.precision import resolve_precision
from ..diagnosis import diagnose
from ..errors import UseError
from ..figure import layer_times_png
from ..layer_times import LayerTimes, measure_layers
from ..race import Limits, interleaved
from .options import Output, add_pair, add_precision, one_or_two, open_model, present_device
from .samples import add_input, read_input

if TYPE_CHECKING:
    from ..progress import Progress

HELP = "time a model, or two against each other"
EXAMPLE = "bench model.onnx --device CPU --shape bytes=[1,2048] --seconds 2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair(parser)
    add_precision(parser)
    parser.add_argument(
        "--seconds", type=float, default=Limits.seconds, help="for all measurements; default %(default)s"
    )
    add_input(parser)
    parser.add_argument(
        "--diagnose", action="store_true", help="also the time of each layer, and why it is not faster: four questions"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="a PNG of the time of each layer")


def run(options: argparse.Namespace, progress: Progress) -> Output:
    names = one_or_two(options.device)
    if options.other and len(names) == 2:
        raise UseError("Give one model on one device, two models on one device, or one model on two devices.")
    if options.seconds <= 0:
        raise UseError(f"--seconds {options.seconds}: a measurement takes time.")
    if options.picture and (options.other or len(names) == 2):
        raise UseError("--picture shows one model on one device; leave out the second.")
    found = [present_device(name) for name in names]
    return _two(options, found, progress) if options.other or len(found) == 2 else _one(options, found[0], progress)


def _one(options: argparse.Namespace, device: str, progress: Progress) -> Output:
    model = open_model(options.model, options.shape, progress, device)
    inputs = read_input(options.input, model)
    measured = benchmark_model(model, device, inputs, options.precision, Limits(options.seconds), progress)
    lines, data = [measured.text()], measured.as_json()
    if not options.diagnose and not options.picture:
        return Output("\n".join(lines), data)
    times = measure_layers(model, device, inputs, progress=progress)
    lines.append(times.text())
    data["layers"] = times.as_json()
    if options.diagnose:
        precision, _ = resolve_precision(options.precision, device)
        compiled, _ = compile_for(model, device, precision, "LATENCY", progress)
        found = diagnose(model, compiled, device, inputs, measured, times)
        lines.append(found.text())
        data["diagnosis"] = found.as_json()
    if options.picture:
        _draw(options.picture, times, f"{measured.name} on {measured.device}")
        lines.append(f"Wrote {options.picture}")
    return Output("\n".join(lines), data)


def _two(options: argparse.Namespace, found: list[str], progress: Progress) -> Output:
    candidates = {}
    sources = [options.model, options.other] if options.other else [options.model]
    for source, device in [(source, device) for source in sources for device in found]:
        model = open_model(source, options.shape, progress, device)
        precision, _ = resolve_precision(options.precision, device)
        compiled, _ = compile_for(model, device, precision, "LATENCY", progress)
        candidates[f"{source} on {devices.label(device)}"] = Ready(compiled, read_input(options.input, model))
    if len(candidates) < 2:
        raise UseError("Both are the same model on the same device: there is nothing to set against each other.")
    race = interleaved(candidates, Limits(options.seconds), progress)
    return Output(race.text(), race.as_json())


def _draw(path: Path, times: LayerTimes, title: str) -> None:
    content = layer_times_png(times, title)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UseError(f"The picture {path} could not be written: {error.strerror}.") from error
