"""The same image in floating point and quantized, side by side, with the numbers."""

from __future__ import annotations

from dataclasses import replace

from comfy_api.latest import io

from ..ov_backends.plan import QUANTIZED, DevicePlan, SubmodelPlan
from . import host
from .seams.precision import PrecisionComparison
from .types import CATEGORY, plan_input, sampler_inputs


class Compare(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_Compare",
            display_name="NPU Compare Precisions",
            category=f"{CATEGORY}/precision",
            description="Samples twice with the same noise, in floating point and quantized, and shows both images, "
            "how far they differ, and the layer of the UNet where they begin to.",
            inputs=[
                *sampler_inputs(),
                io.Vae.Input("vae", tooltip="Decodes both latents."),
                io.Combo.Input("precision", options=list(QUANTIZED), default="int8", tooltip="What to compare with."),
                plan_input(),
            ],
            outputs=[
                io.Image.Output(display_name="float | quantized"),
                io.String.Output(display_name="report"),
            ],
        )

    @classmethod
    def execute(cls, model, vae, precision, plan=None, **sampling) -> io.NodeOutput:
        from nodes import KSampler as Stock

        plan = plan or DevicePlan()
        quantized = replace(plan, unet=SubmodelPlan(plan.unet.device, precision))

        def sample(placed) -> dict:
            return Stock().sample(placed, **sampling)[0]

        compared = PrecisionComparison(model, quantized, sample, lambda latent: vae.decode(latent["samples"]))
        text = compared.text()
        host.show(text)
        return io.NodeOutput(compared.picture(), text, ui=host.report_ui(host.current_report()))
