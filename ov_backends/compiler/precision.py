"""The precision a device can compute in."""

from __future__ import annotations

from .. import devices
from ..plan import QUANTIZED

_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
_NAMES = {hint: name for name, hint in _HINTS.items()}
_DEFAULT = {"CPU": "fp32", "GPU": "fp16", "NPU": "fp16"}


def float_precision(device: str) -> str:
    """What `device` computes in where nothing else is asked for."""
    return _DEFAULT.get(devices.base_name(device), "fp32")


def resolve_precision(asked: str, device: str, submodel: str = "") -> tuple[str, str]:
    """The precision that `device` will compute in, and why it is not the one asked for ("" if it is).

    The NPU computes floating point in FP16 only. CPUs lack FP16 and BF16 unless they list them as capabilities.
    """
    family = devices.base_name(device)
    default = float_precision(device)
    if asked in QUANTIZED:
        return asked, ""
    if asked == "auto" and submodel == "unet" and family == "NPU":
        # the NPU's MAC arrays are twice as fast in INT8, and half the bytes cross its memory bus
        return "int8", ""
    if asked == "auto" or asked == default:
        return default, ""
    if family == "NPU":
        return default, f"{asked} was asked for; the NPU computes in fp16"
    if asked == "fp32":
        return asked, ""
    if asked.upper() in devices.capabilities(device).split():
        return asked, ""
    return default, f"{asked} was asked for; this {family} has no {asked.upper()} arithmetic and computes in {default}"


def precision_property(precision: str, device: str) -> dict[str, str]:
    """The compile property that asks for `precision`; the NPU has no choice and takes none.

    Of a quantized model it is the precision of what stayed in floating point.
    """
    if devices.is_npu(device):
        return {}
    if precision in QUANTIZED:
        has_bf16 = devices.base_name(device) == "CPU" and "BF16" in devices.capabilities(device).split()
        precision = "bf16" if has_bf16 else float_precision(device)
    return {"INFERENCE_PRECISION_HINT": _HINTS[precision]}


def actual_precision(compiled, planned: str) -> str:
    """The precision that a compiled model says it computes in; `planned` where the plugin does not tell."""
    if planned in QUANTIZED:  # the hint is that of the float rest
        return planned
    try:
        hint = compiled.get_property("INFERENCE_PRECISION_HINT")
    except RuntimeError:
        return planned
    return _NAMES.get(hint.to_string(), planned)
