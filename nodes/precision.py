"""Device and precision of each submodel as one value to wire into the other nodes."""

from __future__ import annotations

from comfy_api.latest import io

from ..ov_backends.plan import PRESETS, DevicePlan, SubmodelPlan
from .types import CATEGORY, Plan, device_input, policy_input, precision_input


class Plans(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_DevicePlan",
            display_name="Device Plan",
            category=f"{CATEGORY}/plan",
            description="Where the text encoder, the UNet and the VAE run, and in which precision.",
            inputs=[
                io.Combo.Input(
                    "preset",
                    options=[*PRESETS, "custom"],
                    default="balanced",
                    tooltip="battery: text encoder and UNet on the NPU. balanced: UNet on the NPU. performance: UNet "
                    "on the GPU. The rest where it runs best. custom: the six widgets below.",
                ),
                device_input("text_encoder_device", "the text encoder"),
                precision_input("text_encoder_precision", "the text encoder"),
                device_input("unet_device", "the UNet", "NPU"),
                precision_input("unet_precision", "the UNet"),
                device_input("vae_device", "the VAE"),
                precision_input("vae_precision", "the VAE"),
                policy_input(),
            ],
            outputs=[Plan.Output(display_name="plan")],
        )

    @classmethod
    def execute(cls, preset, policy, **chosen) -> io.NodeOutput:
        if preset != "custom":
            return io.NodeOutput(DevicePlan.preset(preset, policy))
        submodels = {
            name: SubmodelPlan(chosen[f"{name}_device"], chosen[f"{name}_precision"])
            for name in ("text_encoder", "unet", "vae")
        }
        return io.NodeOutput(DevicePlan(**submodels, policy=policy))
