"""Put one submodel on a device and get the same type back, for use with any stock node."""

from __future__ import annotations

from comfy_api.latest import io

from ..ov_backends.plan import DevicePlan
from .seams.clip import place_clip
from .seams.unet import place_unet
from .seams.vae import place_vae
from .types import CATEGORY, plan_input


class Model(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_Model",
            display_name="NPU Model",
            category=f"{CATEGORY}/apply",
            description="Runs the UNet of MODEL through OpenVINO, whatever sampler node follows.",
            inputs=[io.Model.Input("model"), plan_input()],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model, plan=None) -> io.NodeOutput:
        return io.NodeOutput(place_unet(model, plan or DevicePlan()))


class CLIP(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_CLIP",
            display_name="NPU CLIP",
            category=f"{CATEGORY}/apply",
            description="Runs the text encoder through OpenVINO; prompts, weights and clip skip work as before.",
            inputs=[io.Clip.Input("clip"), plan_input()],
            outputs=[io.Clip.Output()],
        )

    @classmethod
    def execute(cls, clip, plan=None) -> io.NodeOutput:
        return io.NodeOutput(place_clip(clip, plan or DevicePlan()))


class VAE(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_VAE",
            display_name="NPU VAE",
            category=f"{CATEGORY}/apply",
            description="Runs VAE decode and encode through OpenVINO; a spoiled FP16 image is decoded again in FP32.",
            inputs=[io.Vae.Input("vae"), plan_input()],
            outputs=[io.Vae.Output()],
        )

    @classmethod
    def execute(cls, vae, plan=None) -> io.NodeOutput:
        return io.NodeOutput(place_vae(vae, plan or DevicePlan()))
