"""Upscale an image with an upscale model on the NPU, the iGPU or the CPU through OpenVINO."""

from __future__ import annotations

from comfy_api.latest import io

from . import host
from .seams.upscale import upscale_image
from .types import CATEGORY, device_input, policy_input


class Upscale(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_Upscale",
            display_name="NPU Upscale Image (using Model)",
            category=f"{CATEGORY}/upscaling",
            description="Upscale Image (using Model) through OpenVINO: any image size in tiles of one size, without a "
            "seam.",
            inputs=[
                io.UpscaleModel.Input("upscale_model", tooltip="From Load Upscale Model."),
                io.Image.Input("image", tooltip="One image or a batch."),
                device_input("device", "the upscaler"),
                io.Int.Input(
                    "tile", default=256, min=32, max=2048, step=8,
                    tooltip="Width and height, in pixels of the image, that the model sees at once. Each tile size is "
                    "compiled once; a smaller image is padded to it. Larger needs more memory.",
                ),
                io.Int.Input(
                    "overlap", default=32, min=0, max=512, step=4,
                    tooltip="Pixels that neighbouring tiles share at least. They fade into each other there; more "
                    "hides seams better and costs time.",
                ),
                policy_input(),
            ],
            outputs=[io.Image.Output(), io.String.Output(display_name="report")],
        )  # fmt: skip

    @classmethod
    def execute(cls, upscale_model, image, device, tile, overlap, policy) -> io.NodeOutput:
        upscaled = upscale_image(upscale_model, image, device, policy, tile, overlap)
        report = host.current_report()
        return io.NodeOutput(upscaled, report.markdown(), ui=host.report_ui(report))
