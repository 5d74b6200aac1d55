"""Model files of any kind: load one, and run one that takes images."""

from __future__ import annotations

import json

import comfy.model_management
import comfy.utils
import torch
from comfy_api.latest import io
from comfy_execution.graph_utils import ExecutionBlocker

from ..ov_backends.answer import RANGES, answer, answer_text, to_image
from ..ov_backends.plan import SubmodelPlan
from ..ov_backends.progress import with_heartbeat
from ..ov_backends.runtime.image_model import SIZES, ImageModel
from ..ov_backends.runtime.model_file import ModelFile, find_labels, fingerprint
from ..ov_backends.runtime.pixels import IMAGENET_MEAN, IMAGENET_STD, LAYOUT_CHOICES, ORDERS, Pixels
from ..ov_backends.runtime.store import store
from ..ov_backends.tensors import parse_shapes
from . import host
from .model_folder import find_model, list_models
from .types import CATEGORY, LoadedModel, device_input, policy_input, precision_input


class LoadModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_LoadModel",
            display_name="Load Model (OpenVINO NPU)",
            category=f"{CATEGORY}/models",
            description="Loads a model of any kind that OpenVINO reads, and says what it takes and gives.",
            inputs=[
                io.Combo.Input(
                    "model",
                    options=list_models(),
                    tooltip="Files below models/openvino and models/onnx: .onnx, .xml (IR), .tflite, .pdmodel, .pb, "
                    "SavedModel folders.",
                ),
                io.String.Input(
                    "shapes",
                    default="",
                    tooltip="Sizes of inputs that the file leaves open: images=[1,3,640,640]. Several apart by blanks. "
                    "Empty: as in the file. The NPU needs every size fixed.",
                ),
                io.String.Input(
                    "labels",
                    default="",
                    multiline=True,
                    tooltip="Names of the classes, one a line. Empty: from a text file beside the model with its name, "
                    "or labels.txt.",
                ),
            ],
            outputs=[LoadedModel.Output(display_name="model"), io.String.Output(display_name="info")],
        )

    @classmethod
    def fingerprint_inputs(cls, model: str, **_) -> str:
        return fingerprint(find_model(model))

    @classmethod
    def execute(cls, model: str, shapes: str = "", labels: str = "") -> io.NodeOutput:
        path = find_model(model)
        file = ModelFile(model, path, parse_shapes(shapes), find_labels(path, labels))
        info = with_heartbeat(lambda: str(file), f"Reading {model}", host.progress)
        host.show(info)
        return io.NodeOutput(file, info, ui={"text": [info]})


class RunModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_RunModel",
            display_name="Run Model (OpenVINO NPU)",
            category=f"{CATEGORY}/models",
            description="Runs a model that takes one image, on NPU, GPU or CPU: classifiers, detectors, filters.",
            inputs=[
                LoadedModel.Input("model", tooltip="From Load Model (OpenVINO NPU)."),
                io.Image.Input("image", tooltip="The images of a batch run one after the other."),
                device_input("device", "the model"),
                precision_input("precision", "the model"),
                policy_input(),
                *_pixel_inputs(),
                io.Int.Input("top_k", default=5, min=1, max=100, tooltip="How many classes are listed."),
            ],
            outputs=[
                io.Image.Output(),
                io.String.Output(display_name="result"),
                io.String.Output(display_name="report"),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(
        cls, model, image, device, precision, policy, size, layout, order, mean, std, scale, picture_range, top_k
    ) -> io.NodeOutput:
        report = host.current_report()
        part = report.submodel("model", device, model.name)
        pixels = Pixels.parse(mean, std, scale=scale, order=order, layout=layout)
        runner = ImageModel(model, pixels, size, SubmodelPlan(device, precision), policy, store())
        text, bar = host.StepText(), comfy.utils.ProgressBar(len(image))
        answers, pictures = [], []
        for row in image.split(1):
            comfy.model_management.throw_exception_if_processing_interrupted()
            result = runner.run(row, part, host.progress)
            found = {"scale": result.scale, **answer(result.outputs, model.labels, top_k)}
            if result.picture is not None:
                picture, found["picture_cut_off"] = to_image(result.picture, picture_range, order)
                pictures.append(picture)
            answers.append(found)
            text(f"{len(answers)} of {len(image)}: {answer_text(found)}")
            bar.update(1)
        runner.finish(f"{len(image)} images", part, host.progress)
        lines = [answer_text(found) for found in answers]
        host.show("\n".join([*lines, part.line()]))
        told = json.dumps({"model": model.name, "images": answers}, ensure_ascii=False)
        ui = host.report_ui(report)
        return io.NodeOutput(
            _batch(pictures, model.name), told, report.markdown(), ui={**ui, "text": [*lines, *ui["text"]]}
        )


def _pixel_inputs() -> list[io.Input]:
    """How an image becomes what the model takes, and what the model gives an image."""
    return [
        io.Combo.Input(
            "size",
            options=list(SIZES),
            default="resize",
            tooltip="resize: stretched to the model's size. pad: fitted into it, the rest black. tile: cut into tiles "
            "of that size, for models that give an image. none: must have that size already. A model that takes any "
            "size gets the image as it is.",
        ),
        io.Combo.Input(
            "layout",
            options=list(LAYOUT_CHOICES),
            default="auto",
            tooltip="Order of the model's input: channels first or last. auto: told by its shape.",
        ),
        io.Combo.Input("order", options=list(ORDERS), default="RGB", tooltip="Channel order that the model wants."),
        io.String.Input(
            "mean",
            default=", ".join(map(str, IMAGENET_MEAN)),
            tooltip="The model gets (pixel * scale - mean) / std; a pixel is 0 to 1. One number, or one a channel.",
        ),
        io.String.Input("std", default=", ".join(map(str, IMAGENET_STD)), tooltip="See mean."),
        io.Float.Input(
            "scale",
            default=1.0,
            min=0.0001,
            max=65535.0,
            step=0.0001,
            tooltip="See mean. 255 for models that take 0 to 255.",
        ),
        io.Combo.Input(
            "picture_range",
            options=list(RANGES),
            default="0 to 1",
            tooltip="For models that give an image: their numbers for black and white.",
        ),
    ]


def _batch(pictures: list[torch.Tensor], name: str) -> torch.Tensor | ExecutionBlocker:
    """One IMAGE batch, or what stops a node that wants one."""
    if pictures:
        return torch.cat(pictures)
    return ExecutionBlocker(f"{name} gives no image. Take its result, as text, from 'result'.")
