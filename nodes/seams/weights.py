"""The identity of a submodel's weights as ComfyUI has them loaded now."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from comfy.patcher_extension import CallbacksMP

from ...ov_backends.compiler.ir import hash_tensors
from ...ov_backends.errors import ConversionError
from ...ov_backends.progress import Progress, with_heartbeat
from ...ov_backends.runtime.store import store
from .. import host

if TYPE_CHECKING:
    import openvino as ov
    import torch
    from comfy.model_patcher import ModelPatcher

M = TypeVar("M")

KEY = "ovnpu"
"""Of this pack's wrappers and callbacks on a ModelPatcher."""

_known: weakref.WeakKeyDictionary[torch.nn.Module, dict[tuple[str, str], str]] = weakref.WeakKeyDictionary()


def weights_identity(patched: torch.nn.Module, part: torch.nn.Module, name: str, progress: Progress) -> str:
    """A hash of the tensors of `part`, patches (LoRA) included, which must be loaded.

    patched: what ComfyUI patches, a BaseModel or a text encoder: it carries the id of the patches that are baked in,
    and as long as that id stays the hash is remembered.
    """
    # on a GPU with little memory ComfyUI leaves a LoRA beside the weights and adds it in each call
    if any(getattr(module, "weight_function", None) for module in part.modules()):
        raise ConversionError("Low-VRAM mode keeps a LoRA outside the weights; start ComfyUI with --cpu.")
    key = (name, str(getattr(patched, "current_weight_patches_uuid", None)))
    known = _known.setdefault(patched, {})
    if key not in known:
        known[key] = with_heartbeat(lambda: hash_tensors(part.state_dict()), "Reading the weights", progress)
    return known[key]


def while_alive(module: M, convert: Callable[[M], ov.Model]) -> Callable[[], ov.Model]:
    """`convert` of `module` as a Source needs it, without keeping `module` in memory.

    What is compiled outlives ComfyUI's models; a model that is still referred to when ComfyUI has let go of it takes
    memory, and ComfyUI then collects garbage several times in every prompt.
    """
    reference = weakref.ref(module)

    @host.interruptible
    def run() -> ov.Model:
        alive = reference()
        if alive is None:
            raise ConversionError("ComfyUI has unloaded the model meanwhile. Run the workflow again.")
        return convert(alive)

    return run


def release_when_unloaded(patcher: ModelPatcher) -> set[str]:
    """A set to put weights' identities into: what is compiled from them is dropped when ComfyUI unloads the model."""
    used: set[str] = set()

    def release(_patcher, unpatch_all) -> None:
        # without unpatch_all another clone of the same model takes over
        while unpatch_all and used:
            store().release(used.pop())

    patcher.remove_callbacks_with_key(CallbacksMP.ON_DETACH, KEY)
    patcher.add_callback_with_key(CallbacksMP.ON_DETACH, KEY, release)
    return used


def float32_on_cpu(module: torch.nn.Module) -> torch.nn.Module:
    """`module` itself if it can be traced as it is, else a copy in FP32 on the CPU, quantized weights dequantized.

    Raises ConversionError for weights that are kept in a form of their own.
    """
    import copy

    import torch

    # a subclass of Parameter holds a quantized weight, whatever dtype it claims
    if all(type(t) is torch.nn.Parameter and _is_plain(t) for t in module.parameters()):
        return module
    with torch.inference_mode(False), torch.no_grad():
        try:
            return copy.deepcopy(module, _dequantized(module)).to("cpu", torch.float32)
        except (RuntimeError, NotImplementedError) as error:
            raise ConversionError(
                f"The weights are kept in a form that cannot be converted ({str(error).splitlines()[0]}). Use a "
                "checkpoint in fp16, fp32 or fp8."
            ) from error


def _is_plain(tensor: torch.Tensor) -> bool:
    import torch

    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


def _dequantized(module: torch.nn.Module) -> dict[int, torch.nn.Parameter]:
    """What a deep copy shall hold instead of quantized weights and their scales, by the id of these.

    ComfyUI's layers for FP8 checkpoints have `convert_weight`, which gives the weight with its scale applied.
    """
    import torch

    instead: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        dequantize, stored = getattr(part, "convert_weight", None), getattr(part, "weight", None)
        if callable(dequantize) and isinstance(stored, torch.Tensor):
            instead[id(stored)] = torch.nn.Parameter(dequantize(stored).float().contiguous(), requires_grad=False)
            if isinstance(scale := getattr(part, "scale_weight", None), torch.Tensor):
                instead[id(scale)] = torch.nn.Parameter(torch.ones_like(scale), requires_grad=False)
    return instead
