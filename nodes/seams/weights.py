"""The identity of a submodel's weights as ComfyUI has them loaded now."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ...ov_backends.compiler.ir import hash_tensors
from ...ov_backends.errors import ConversionError
from ...ov_backends.progress import Progress, with_heartbeat

if TYPE_CHECKING:
    import torch

_known: WeakKeyDictionary[torch.nn.Module, dict[tuple[str, str], str]] = WeakKeyDictionary()


def weights_identity(host: torch.nn.Module, part: torch.nn.Module, name: str, progress: Progress) -> str:
    """A hash of the tensors of `part`, patches (LoRA) included, which must be loaded.

    host: what ComfyUI patches, a BaseModel or a text encoder: it carries the id of the patches that are baked in, and
    as long as that id stays the hash is remembered.
    """
    key = (name, str(getattr(host, "current_weight_patches_uuid", None)))
    known = _known.setdefault(host, {})
    if key not in known:
        # on a GPU with little memory ComfyUI leaves a LoRA beside the weights and adds it in each call
        if any(getattr(module, "weight_function", None) for module in part.modules()):
            raise ConversionError(
                "Low-VRAM mode keeps a LoRA outside the weights; start ComfyUI with --cpu or more VRAM."
            )
        known[key] = with_heartbeat(lambda: hash_tensors(part.state_dict()), "Reading the weights", progress)
    return known[key]


def float32_on_cpu(module: torch.nn.Module) -> torch.nn.Module:
    """`module` itself if it can be traced as it is, else a copy in FP32 on the CPU."""
    import copy

    import torch

    if all(t.device.type == "cpu" and t.dtype == torch.float32 for t in module.parameters()):
        return module
    with torch.inference_mode(False), torch.no_grad():
        return copy.deepcopy(module).to("cpu", torch.float32)
