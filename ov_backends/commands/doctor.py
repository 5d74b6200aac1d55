"""Find out what is wrong: device idle, slow, slow first run, wrong output, growing memory, missing NPU, versions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .. import devices
from ..compiler.cache import CompileCache, default_limit_bytes, default_root
from ..compiler.precision import resolve_precision
from ..doctor import Finding, Patient, examine, open_inputs
from ..inputs import random_inputs
from .compile import model_order
from .options import (
    DONE,
    FELL_SHORT,
    Output,
    add_device,
    add_model,
    add_shape,
    open_model,
    present_device,
)

if TYPE_CHECKING:
    from ..progress import Progress

HELP = "find out what is wrong"
EXAMPLE = "doctor model.onnx --device CPU --shape bytes=[1,2048]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, nargs="?")
    add_shape(parser)
    add_device(parser, "AUTO")


def run(options: argparse.Namespace, progress: Progress) -> Output:
    findings = examine(_patient(options, progress))
    problems = [finding for finding in findings if finding.severity == "problem"]
    return Output(_text(findings), _data(findings), FELL_SHORT if problems else DONE)


def _patient(options: argparse.Namespace, progress: Progress) -> Patient:
    cache = CompileCache(default_root(), default_limit_bytes())
    # a device that is missing is what is to be found out, so it is no error here
    asked = options.device.strip().upper()
    device = present_device(asked) if asked == devices.AUTO else asked
    if options.model is None:
        return Patient(device, cache, progress=progress)
    model = open_model(options.model, options.shape, progress)
    order = None
    if not devices.why_missing(device):
        order = model_order(model, options.model, device, resolve_precision("auto", device)[0])
    inputs = {} if open_inputs(model) else random_inputs(model)
    return Patient(device, cache, model, inputs, order, progress)


def _text(findings: list[Finding]) -> str:
    problems = sum(finding.severity == "problem" for finding in findings)
    closing = f"{problems} problem{'s' if problems > 1 else ''} found" if problems else "No problem found"
    return "\n".join([*map(str, findings), closing])


def _data(findings: list[Finding]) -> dict:
    return {
        "findings": [finding.as_json() for finding in findings],
        "problems": sum(finding.severity == "problem" for finding in findings),
        "versions": devices.versions(),
    }
