"""Which device and which precision each submodel gets, and what may happen when that cannot be had."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from .errors import PlanError

SUBMODELS = ("text_encoder", "unet", "vae_decoder", "vae_encoder", "model", "upscaler")
"""Names in reports, cache entries and messages. model: a model file of any kind; it and the upscaler have own plans."""

QUANTIZED = ("int8", "int8-weights", "int4-weights")
"""int8: weights and activations, calibrated on recorded calls. The other two: only the weights are stored so."""

FLOAT_PRECISIONS = ("auto", "fp32", "fp16", "bf16")
PRECISIONS = (*FLOAT_PRECISIONS, *QUANTIZED)
"""Precision of the arithmetic. auto: int8 for the UNet on the NPU, else fp16 on NPU and GPU; on the CPU fp32, for the
UNet what runtime/trial.py measures."""

POLICIES = ("warn", "error", "allow")
"""When something cannot run where it was asked to: warn and go on, stop with an error, or go on and only report it."""

TITLES = {
    "text_encoder": "text encoder",
    "unet": "UNet",
    "vae_decoder": "VAE decoder",
    "vae_encoder": "VAE encoder",
    "model": "model",
    "upscaler": "upscaler",
}


@dataclass(frozen=True)
class SubmodelPlan:
    """Device ("AUTO", "CPU", "GPU", "GPU.1", "NPU") and precision (one of PRECISIONS) of one submodel."""

    device: str = "AUTO"
    precision: str = "auto"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise PlanError(f"Unknown precision {self.precision!r}; choose one of {', '.join(PRECISIONS)}.")


@dataclass(frozen=True)
class DevicePlan:
    """Plans of the three submodels; `vae` serves decoder and encoder."""

    text_encoder: SubmodelPlan = SubmodelPlan()
    unet: SubmodelPlan = SubmodelPlan()
    vae: SubmodelPlan = SubmodelPlan()
    policy: str = "warn"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise PlanError(f"Unknown fallback policy {self.policy!r}; choose one of {', '.join(POLICIES)}.")

    def submodel(self, name: str) -> SubmodelPlan:
        """The plan of the text encoder, the UNet or a half of the VAE."""
        return self.vae if name.startswith("vae") else getattr(self, name)

    @classmethod
    def preset(cls, name: str, policy: str = "warn") -> DevicePlan:
        """One of PRESETS, with the given fallback policy."""
        if name not in PRESETS:
            raise PlanError(f"Unknown preset {name!r}; choose one of {', '.join(PRESETS)}.")
        return replace(PRESETS[name], policy=policy)

    def __str__(self) -> str:
        parts = (f.name for f in fields(self) if f.name != "policy")
        named = (f"{name} {getattr(self, name).device} {getattr(self, name).precision}" for name in parts)
        return f"{', '.join(named)}; policy {self.policy}"


_NPU, _GPU = SubmodelPlan("NPU"), SubmodelPlan("GPU")

PRESETS: dict[str, DevicePlan] = {
    # battery: everything the NPU is good at goes there; an FP16 VAE on the NPU gains nothing, so AUTO (GPU, else CPU)
    "battery": DevicePlan(text_encoder=_NPU, unet=_NPU),
    # balanced: the loop on the NPU, the short stages where they start fastest
    "balanced": DevicePlan(unet=_NPU),
    # performance: the iGPU has more memory bandwidth to itself than the NPU, at the price of heat
    "performance": DevicePlan(unet=_GPU),
}
