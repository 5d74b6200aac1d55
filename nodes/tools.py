"""Measure a model file on a device."""

from __future__ import annotations

import io as files

import numpy as np
import torch
from comfy_api.latest import io
from comfy_execution.graph_utils import ExecutionBlocker
from PIL import Image

from ..ov_backends.errors import FigureError
from ..ov_backends.examination import Examination, examine
from ..ov_backends.figure import layer_times_png, roofline_png
from ..ov_backends.plan import FLOAT_PRECISIONS
from . import host
from .types import CATEGORY, LoadedModel, device_input, precision_input


class Benchmark(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_Benchmark",
            display_name="Benchmark Model (OpenVINO NPU)",
            category=f"{CATEGORY}/tools",
            description="Measures a model: first and steady time, several requests at a time, theory beside practice, "
            "time of each layer, and what keeps it from being faster.",
            inputs=[
                LoadedModel.Input("model", tooltip="From Load Model (OpenVINO NPU), with every size fixed."),
                device_input("device", "the model"),
                precision_input("precision", "the model", FLOAT_PRECISIONS),
                io.Float.Input(
                    "seconds", default=10.0, min=0.5, max=600.0, step=0.5,
                    tooltip="Limit of the measurement, which ends earlier when the median is known. Compiling the "
                    "model three times comes on top.",
                ),
            ],
            outputs=[io.Image.Output(display_name="picture"), io.String.Output(display_name="report")],
            is_output_node=True,
        )  # fmt: skip

    @classmethod
    def execute(cls, model, device, precision, seconds) -> io.NodeOutput:
        found = examine(model.model, device, precision, seconds, host.progress)
        report = found.text()
        host.show(report)
        return io.NodeOutput(_pictures(found), report, ui={"text": [report]})

    @classmethod
    def fingerprint_inputs(cls, **_) -> float:
        return float("nan")  # another run is another measurement


def _pictures(found: Examination) -> torch.Tensor | ExecutionBlocker:
    """IMAGE [2, height, width, 3]: the roofline, then the layers' times; the layers alone where theory is unknown."""
    measured = found.measured
    title = f"{measured.name} on {measured.device} in {measured.precision}"
    try:
        pictures = [roofline_png(found.times, measured.theory, title)] if measured.theory else []
        pictures.append(layer_times_png(found.times, title))
    except FigureError as error:
        return ExecutionBlocker(str(error))
    arrays = [np.asarray(Image.open(files.BytesIO(png)).convert("RGB"), np.float32) / 255 for png in pictures]
    return torch.from_numpy(np.stack(arrays))
