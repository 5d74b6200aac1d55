"""KSampler and KSamplerAdvanced whose UNet runs on the NPU, the iGPU or the CPU through OpenVINO."""

from __future__ import annotations

from comfy_api.latest import io

from ..ov_backends.plan import DevicePlan
from . import host
from .seams.unet import is_placed, place_unet
from .types import CATEGORY, advanced_sampler_inputs, plan_input, sampler_inputs


def _placed(model, plan: DevicePlan | None):
    if plan is None and is_placed(model):
        return model
    return place_unet(model, plan or DevicePlan())


def sampled(latent) -> io.NodeOutput:
    """A sampler's outputs: the latent and the report, which is also shown on the node."""
    report = host.current_report()
    return io.NodeOutput(latent, report.markdown(), ui=host.report_ui(report))


class KSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_KSampler",
            display_name="NPU KSampler",
            category=f"{CATEGORY}/sampling",
            description="KSampler with the UNet on the Intel NPU, iGPU or CPU through OpenVINO. Same inputs and noise.",
            inputs=[*sampler_inputs(), plan_input()],
            outputs=[io.Latent.Output(), io.String.Output(display_name="report")],
        )

    @classmethod
    def execute(cls, model, plan=None, **sampling) -> io.NodeOutput:
        from nodes import KSampler as Stock

        (latent,) = Stock().sample(_placed(model, plan), **sampling)
        return sampled(latent)


class KSamplerAdvanced(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_KSamplerAdvanced",
            display_name="NPU KSampler (Advanced)",
            category=f"{CATEGORY}/sampling",
            description="KSampler (Advanced) with the UNet on the Intel NPU, iGPU or CPU through OpenVINO.",
            inputs=[*advanced_sampler_inputs(), plan_input()],
            outputs=[io.Latent.Output(), io.String.Output(display_name="report")],
        )

    @classmethod
    def execute(cls, model, plan=None, **sampling) -> io.NodeOutput:
        from nodes import KSamplerAdvanced as Stock

        (latent,) = Stock().sample(_placed(model, plan), **sampling)
        return sampled(latent)
