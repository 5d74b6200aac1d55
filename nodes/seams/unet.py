"""MODEL: the compiled UNet takes the place of torch's for every call that it can express."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import comfy.model_management
import torch
from comfy.ldm.modules.attention import attention_pytorch
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
from comfy.patcher_extension import WrappersMP

from ...ov_backends import devices
from ...ov_backends.compiler.ir import Source, short_hash
from ...ov_backends.convert.unet import convert_unet, timestep_embedding
from ...ov_backends.errors import CalibrationError, FallbackError, OVNPUError
from ...ov_backends.plan import DevicePlan
from ...ov_backends.quantize.calibration import Recorder
from ...ov_backends.report import SubmodelReport
from ...ov_backends.runtime.quantization import float_plan, keep_recorded
from ...ov_backends.runtime.store import store
from ...ov_backends.runtime.submodel import Submodel
from .. import host
from .weights import KEY, float32_on_cpu, release_when_unloaded, weights_identity, while_alive

if TYPE_CHECKING:
    from comfy.model_base import BaseModel
    from comfy.model_patcher import ModelPatcher

log = logging.getLogger("ovnpu")

HONOURED_OPTIONS = frozenset(
    {
        "cond_or_uncond", "uuids", "sigmas", "sample_sigmas", "wrappers", "callbacks", "original_shape",
        "transformer_index", "block", "block_index", "activations_shape", "sigmas_index", "patches", "patches_replace",
        "total_blocks", "block_type", "prefetch_dynamic_vbars", "multigpu_thread_device",
    }
)  # fmt: skip
"""Keys of `transformer_options` that leave the UNet's graph as it is; the last two patch it where they hold entries."""


def place_unet(model: ModelPatcher, plan: DevicePlan, recorder: Recorder | None = None) -> ModelPatcher:
    """A clone of `model` whose UNet runs as `plan` says; `model` itself stays as it is.

    recorder: takes the inputs of every call, and the UNet then runs in floating point.
    """
    placed = model.clone()
    for kind in (WrappersMP.OUTER_SAMPLE, WrappersMP.DIFFUSION_MODEL):
        placed.remove_wrappers_with_key(kind, KEY)
    seat = _Seat(plan, release_when_unloaded(placed), recorder)

    # closures, not bound methods: clones deep-copy what is in model_options
    def outer_sample(executor, *args, **kwargs):
        return seat.outer_sample(executor, *args, **kwargs)

    def diffusion_model(executor, *args, **kwargs):
        return seat.diffusion_model(executor, *args, **kwargs)

    placed.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, KEY, outer_sample)
    placed.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, KEY, diffusion_model)
    return placed


def is_placed(model: ModelPatcher) -> bool:
    """True if `place_unet` made it."""
    return bool(model.get_wrappers(WrappersMP.DIFFUSION_MODEL, KEY))


class _Seat:
    """Where a MODEL's calls arrive: decides, for each, between the compiled UNet and torch."""

    def __init__(self, plan: DevicePlan, used_weights: set[str], recorder: Recorder | None):
        self.plan = plan
        self._recorder = recorder
        self._used_weights = used_weights
        self._patcher: ModelPatcher | None = None
        self._submodel: Submodel | None = None
        self._source: Source | None = None
        self._given_up = ""
        self._text = host.StepText()

    def outer_sample(self, executor, *args, **kwargs):
        """Around one sampling run, whatever sampler node started it."""
        self._patcher = executor.class_obj.model_patcher
        self._submodel, self._given_up = None, ""
        report = self._report()
        # a device that is missing under the policy 'error' must stop the run before anything is loaded
        devices.resolve(self.plan.unet.device, "unet", self.plan.policy)
        try:
            result = executor(*args, **kwargs)
            self._finish(_about(*args), report)
            return result
        finally:
            # the store alone decides how long it stays in memory, and ComfyUI how long the model does
            self._submodel = self._source = self._patcher = None
            host.show(host.current_report().line())
            log.info(report.line())

    def diffusion_model(self, executor, *args, **kwargs):
        """Around one UNet call: puts the compiled UNet innermost, so that wrappers of other packs still run."""
        torch_forward, unet = executor.original, executor.class_obj

        def forward(x, timesteps=None, context=None, y=None, control=None, transformer_options=None, **kwargs):
            options = {} if transformer_options is None else transformer_options
            why = self._given_up or self._why_torch(unet, x, context, y, control, options, kwargs)
            if not why:
                try:
                    return self._run(unet, x, timesteps, context, y)
                except OVNPUError as error:
                    if self.plan.policy == "error":
                        raise
                    why = self._given_up = str(error)
                    self._report().notice(f"The rest of this run is on torch. {error}", self.plan.policy)
            elif self.plan.policy == "error":
                raise FallbackError(
                    f"The UNet cannot run this call on {self.plan.unet.device}: {why}; and the fallback policy is "
                    "'error'. Set it to warn or allow to run such calls on torch."
                )
            self._report().torch_reasons[why] += 1
            return torch_forward(x, timesteps, context, y, control, options, **kwargs)

        executor.original = forward
        return executor(*args, **kwargs)

    def _finish(self, about: str, report: SubmodelReport) -> None:
        """After a run that was not cancelled; without a submodel every call went to torch."""
        if self._recorder:
            if self._source is None:
                raise CalibrationError(
                    "Nothing was recorded: every call of the UNet ran on torch, because of "
                    f"{' and '.join(report.torch_reasons)}. Remove that for calibrating."
                )
            report.notice(keep_recorded(self._source, self._recorder, about, store().cache), self.plan.policy)
        elif self._submodel:
            self._submodel.finish_run(about, report, host.progress)

    def _report(self) -> SubmodelReport:
        return host.current_report().submodel("unet", self.plan.unet.device)

    def _run(self, unet: UNetModel, x: torch.Tensor, timesteps, context, y) -> torch.Tensor:
        if self._submodel is None:
            source = _source(self._base_model(), unet)
            self._used_weights.add(source.weights)
            plan = float_plan(self.plan.unet, "unet", self.plan.policy) if self._recorder else self.plan.unet
            self._source, self._submodel = source, store().get(source, plan, self.plan.policy)
        inputs = {
            "sample": x,
            "timestep_embedding": timestep_embedding(timesteps.cpu(), unet.model_channels),
            "context": context,
        }
        if y is not None:
            inputs["vector"] = y
        if self._recorder:
            self._recorder(inputs)
        report = self._report()
        noise = self._submodel.run(inputs, report, host.progress)["noise"]
        if not torch.isfinite(noise).all():
            raise OVNPUError(f"The UNet returned NaN or infinity on {report.actual_device} in {report.precision}.")
        steady = f", {report.steady_ms:.0f} ms each" if report.steady_ms else ""
        activity = self._recorder.progress if self._recorder else self._submodel.activity
        activity = f"; {activity}" if activity else ""
        calls = f"{report.openvino_calls} calls{steady}{activity}"
        self._text(f"UNet on {report.actual_device} {report.precision}: {calls}")
        return noise.to(x.device, x.dtype)

    def _base_model(self) -> BaseModel:
        assert self._patcher is not None, "UNet called outside a sampling run"
        return self._patcher.model

    def _why_torch(self, unet, x, context, y, control, options: dict[str, Any], extra: dict[str, Any]) -> str:
        """Why this call must run on torch; "" if the compiled UNet gives the same result."""
        if type(unet) is not UNetModel or getattr(unet, "dims", 2) != 2 or getattr(unet, "num_video_frames", None):
            return f"{type(unet).__name__} is not a Stable Diffusion UNet"
        if x.ndim != 4 or context is None or context.shape[0] != x.shape[0]:
            return f"input of shape {tuple(x.shape)}"
        if control is not None:
            return "ControlNet or T2I-Adapter"
        for place in ("patches", "patches_replace"):
            if named := [name for name, entries in options.get(place, {}).items() if entries]:
                return f"attention or block patch ({', '.join(sorted(named))})"
        if foreign := sorted(str(key) for key in options if key not in HONOURED_OPTIONS):
            return f"option {', '.join(foreign)}"
        if given := sorted(name for name, value in extra.items() if value is not None):
            return f"argument {', '.join(given)}"
        return self._why_patcher_needs_torch()

    def _why_patcher_needs_torch(self) -> str:
        patcher = self._patcher
        if patcher is None:
            return "a call outside a sampling run"
        if getattr(patcher, "hook_patches", None):
            return "weights that change while sampling (hooks)"
        if hasattr(patcher, "is_dynamic") and patcher.is_dynamic():
            return "weights that ComfyUI streams to the GPU"
        if getattr(patcher, "injections", None):
            return "injected code"
        if named := sorted(k for k in patcher.object_patches if k.startswith("diffusion_model")):
            return f"replaced module {', '.join(named)}"
        return ""


def _about(noise: torch.Tensor, _latent, _sampler, sigmas: torch.Tensor, *_) -> str:
    """A sampling run in a few words, from the arguments of ComfyUI's outer_sample."""
    return f"{len(sigmas) - 1} steps, latent {'x'.join(map(str, noise.shape))}"


def source_of(model: ModelPatcher) -> Source:
    """The UNet of `model` with its LoRAs, which ComfyUI loads if need be."""
    comfy.model_management.load_models_gpu([model])
    return _source(model.model, model.model.diffusion_model)


class _ForTracing(torch.nn.Module):
    """ComfyUI's UNet with positional inputs and the attention that traces to one operator."""

    def __init__(self, unet: UNetModel):
        super().__init__()
        self.unet = unet

    def forward(self, sample, timestep, context, vector=None):
        options = {"optimized_attention_override": _plain_attention}
        return self.unet(sample, timesteps=timestep, context=context, y=vector, transformer_options=options)


def _plain_attention(_chosen, *args, **kwargs):
    return attention_pytorch(*args, **kwargs)


def _source(base_model: BaseModel, unet: UNetModel) -> Source:
    config = {k: v for k, v in base_model.model_config.unet_config.items() if k not in ("dtype", "device")}
    shape = short_hash(repr(sorted((k, str(v)) for k, v in config.items())))
    context_width = config.get("context_dim") or unet.input_blocks[1][1].proj_in.weight.shape[0]
    vector_width = config.get("adm_in_channels") if unet.num_classes is not None else None

    def convert(alive: UNetModel):
        return convert_unet(_ForTracing(float32_on_cpu(alive)).eval(), alive.in_channels, context_width, vector_width)

    weights = weights_identity(base_model, unet, "unet", host.progress)
    return Source("unet", weights, f"UNetModel {shape}", while_alive(unet, convert))
