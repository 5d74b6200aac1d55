"""Socket types and inputs that several nodes share."""

from __future__ import annotations

from collections.abc import Sequence

import comfy.samplers
from comfy_api.latest import io

from ..ov_backends.devices import device_choices
from ..ov_backends.plan import POLICIES, PRECISIONS

Plan = io.Custom("OVNPU_PLAN")
LoadedModel = io.Custom("OVNPU_MODEL")
"""An ov_backends.runtime.model_file.ModelFile."""

CATEGORY = "OpenVINO NPU"


def plan_input() -> io.Input:
    return Plan.Input(
        "plan",
        optional=True,
        tooltip="Device and precision of each submodel, from Device Plan. Empty: the best device there is, or as the "
        "model was placed before.",
    )


def device_input(name: str, what: str, default: str = "AUTO") -> io.Input:
    return io.Combo.Input(
        name,
        options=device_choices(),
        default=default,
        tooltip=f"Where {what} runs. AUTO: the best device there is. GPU is GPU.0, the integrated one on most laptops.",
    )


def precision_input(name: str, what: str, choices: Sequence[str] = PRECISIONS) -> io.Input:
    return io.Combo.Input(
        name,
        options=list(choices),
        default="auto",
        tooltip=f"Arithmetic of {what}. auto: int8 for the UNet on the NPU, else fp16 on NPU and GPU; on the CPU "
        "fp32, and for the UNet the fastest that is exact enough, tried out once at the end of the first run. "
        "int8: the first run records in floating point, then quantizes. int8-weights, int4-weights: only stored so.",
    )


def policy_input() -> io.Input:
    return io.Combo.Input(
        "policy",
        options=list(POLICIES),
        default="warn",
        tooltip="When something cannot run where you asked: warn and go on, stop with an error, or allow it and only "
        "write it in the report.",
    )


def sampler_inputs() -> list[io.Input]:
    """Inputs of the stock KSampler, same names, order and defaults."""
    return [
        io.Model.Input("model", tooltip="The model used for denoising the input latent."),
        io.Int.Input(
            "seed", default=0, min=0, max=0xFFFFFFFFFFFFFFFF, control_after_generate=True,
            tooltip="The random seed used for creating the noise.",
        ),
        io.Int.Input("steps", default=20, min=1, max=10000, tooltip="Number of denoising steps."),
        cfg_input(),
        *method_inputs(),
        io.Conditioning.Input("positive", tooltip="What the image should show."),
        io.Conditioning.Input("negative", tooltip="What the image should not show."),
        io.Latent.Input("latent_image", tooltip="The latent image to denoise."),
        io.Float.Input(
            "denoise", default=1.0, min=0.0, max=1.0, step=0.01,
            tooltip="How much of the latent is replaced; below 1 keeps its structure (image to image).",
        ),
    ]  # fmt: skip


def advanced_sampler_inputs() -> list[io.Input]:
    """Inputs of the stock KSamplerAdvanced, same names, order and defaults."""
    switch = ["enable", "disable"]
    return [
        io.Model.Input("model", tooltip="The model used for denoising the input latent."),
        io.Combo.Input("add_noise", options=switch, default="enable", tooltip="Add noise before the first step."),
        io.Int.Input("noise_seed", default=0, min=0, max=0xFFFFFFFFFFFFFFFF, control_after_generate=True),
        io.Int.Input("steps", default=20, min=1, max=10000, tooltip="Number of steps of the whole schedule."),
        cfg_input(),
        *method_inputs(),
        io.Conditioning.Input("positive", tooltip="What the image should show."),
        io.Conditioning.Input("negative", tooltip="What the image should not show."),
        io.Latent.Input("latent_image", tooltip="The latent image to denoise."),
        io.Int.Input("start_at_step", default=0, min=0, max=10000),
        io.Int.Input("end_at_step", default=10000, min=0, max=10000),
        io.Combo.Input("return_with_leftover_noise", options=switch[::-1], default="disable"),
    ]


def cfg_input() -> io.Input:
    return io.Float.Input(
        "cfg", default=8.0, min=0.0, max=100.0, step=0.1, round=0.01,
        tooltip="Classifier-free guidance: higher follows the prompt more closely; 1 needs half the work.",
    )  # fmt: skip


def method_inputs() -> list[io.Input]:
    return [
        io.Combo.Input("sampler_name", options=comfy.samplers.KSampler.SAMPLERS, tooltip="The sampling algorithm."),
        io.Combo.Input(
            "scheduler", options=comfy.samplers.KSampler.SCHEDULERS, tooltip="How noise falls over the steps."
        ),
    ]
