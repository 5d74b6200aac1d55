"""Records what goes into the UNet while it samples, for quantizing it."""

from __future__ import annotations

from comfy_api.latest import io

from ..ov_backends.plan import DevicePlan
from ..ov_backends.quantize.calibration import Recorder
from .samplers import sampled
from .seams.unet import place_unet
from .types import CATEGORY, plan_input, sampler_inputs


class Calibrate(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_Calibrate",
            display_name="NPU Calibrate",
            category=f"{CATEGORY}/precision",
            description="Samples like NPU KSampler, in floating point, and records the UNet's inputs. INT8 is then "
            "quantized with all that was recorded for this model and its LoRAs.",
            inputs=[
                *sampler_inputs(),
                io.Int.Input(
                    "calls", default=40, min=4, max=400,
                    tooltip="How many of this run's UNet calls to keep, spread over all steps.",
                ),
                plan_input(),
            ],
            outputs=[io.Latent.Output(), io.String.Output(display_name="report")],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, calls, plan=None, **sampling) -> io.NodeOutput:
        from nodes import KSampler as Stock

        placed = place_unet(model, plan or DevicePlan(), Recorder(calls))
        (latent,) = Stock().sample(placed, **sampling)
        return sampled(latent)
