"""A sampling run of Stable Diffusion 1.5's UNet, random weights, in the process of one side."""

from __future__ import annotations

import argparse
import copy
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from sides import Ready, Run, Side

PACK = Path(__file__).resolve().parent.parent
SEED = 7
CFG = 7.5


@dataclass(frozen=True)
class Options:
    """What every side is asked to do; size: of the image in pixels."""

    size: int
    steps: int
    attention: str


def parser(description: str, steps: int, rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark of sampling takes, with these defaults."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--comfyui", help="folder of ComfyUI that holds main.py; else COMFYUI_PATH")
    made.add_argument("--size", type=int, default=512, help="edge of the square image in pixels")
    made.add_argument("--steps", type=int, default=steps, help="sampling steps of one run")
    made.add_argument("--rounds", type=int, default=rounds, help="runs of each side")
    made.add_argument(
        "--attention",
        choices=("default", "pytorch"),
        default="default",
        help="of the stock side; default: as ComfyUI starts without options; pytorch: as with "
        "--use-pytorch-cross-attention, the faster one on a CPU",
    )
    made.add_argument("--cache", help="compile cache to use and keep; else a new one, removed at the end")
    made.add_argument("--json", help="file to write everything measured to")
    return made


@contextmanager
def prepared(given: argparse.Namespace) -> Iterator[Options]:
    """What `parser` was given, with ComfyUI and the cache put where this process and its children look for them."""
    if given.comfyui:
        os.environ["COMFYUI_PATH"] = given.comfyui
    with tempfile.TemporaryDirectory(prefix="ovnpu-benchmark-", ignore_cleanup_errors=True) as folder:
        os.environ["OVNPU_CACHE_DIR"] = given.cache or folder
        yield Options(given.size, given.steps, given.attention)


class Clock:
    """Start and end of every UNet call, seen from outside of whatever runs the UNet."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.sampled = 0.0

    def on(self, model):
        """A clone of `model` that this clock watches; what is put on that clone later is inside the measured time."""
        from comfy.patcher_extension import WrappersMP

        def unet(executor, *args, **kwargs):
            self.starts.append(time.perf_counter())
            try:
                return executor(*args, **kwargs)
            finally:
                self.ends.append(time.perf_counter())

        def sampler(executor, *args, **kwargs):
            self.starts, self.ends = [], []
            try:
                return executor(*args, **kwargs)
            finally:
                self.sampled = time.perf_counter()

        watched = model.clone()
        watched.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "clock", unet)
        watched.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, "clock", sampler)
        return watched

    def steps(self, count: int) -> list[float]:
        """Seconds of each of `count` steps; ComfyUI may call the UNet once or, short of memory, twice a step."""
        bounds = [*self.starts[:: len(self.starts) // count], self.sampled]
        return [end - start for start, end in pairwise(bounds)]

    @property
    def unet_s(self) -> float:
        return sum(end - start for start, end in zip(self.starts, self.ends, strict=True))


class Sampling:
    """The model and the sampler of one side, in the process that it runs in."""

    def __init__(self, side: Side, options: Options):
        sys.path[:0] = [str(PACK / "tools"), str(PACK / "tests")]
        _name_pack()
        from comfy_in_process import import_comfy

        import_comfy(use_pytorch_cross_attention=options.attention == "pytorch")
        import comfy.utils
        from random_models import random_conditioning, sd15_model

        comfy.utils.PROGRESS_BAR_ENABLED = False
        self.side, self.options = side, options
        self.clock = Clock()
        self.model = self.clock.on(sd15_model(SEED))
        self.prompts = {"positive": random_conditioning(1), "negative": random_conditioning(2)}

    def of(self, side: Side, **options: int) -> Sampling:
        """Another side on the same model, in the same process; options: those that differ."""
        other = copy.copy(self)
        other.side, other.options = side, replace(self.options, **options)
        return other

    def run(self) -> Run:
        """One sampling run; in a report of this side's own, as a prompt would have."""
        from comfy_execution.utils import CurrentNodeContext

        with CurrentNodeContext(self.side.name, "1", 0):
            return self._run()

    def ready(self) -> Ready:
        """Run once."""
        from comfy_execution.utils import CurrentNodeContext

        started = time.perf_counter()
        self.run()
        warm_up_s = time.perf_counter() - started
        if not self.side.precision:
            return Ready(warm_up_s, {}, {})
        with CurrentNodeContext(self.side.name, "1", 0):
            return Ready(warm_up_s, self._report().as_json(), self._hardware())

    def record(self, recorder) -> None:
        """One sampling run in floating point; `recorder`, a Recorder of the pack, takes the inputs of its calls."""
        import torch
        from ovpack.nodes.seams.unet import place_unet
        from ovpack.ov_backends.plan import DevicePlan

        from nodes import KSampler as Stock

        with torch.inference_mode():
            Stock().sample(place_unet(self.model, DevicePlan(), recorder), **self._sampling())

    def _sampling(self) -> dict[str, Any]:
        """The inputs of a sampler node."""
        import torch

        edge = self.options.size // 8
        sampling = {"seed": SEED, "steps": self.options.steps, "cfg": CFG, "sampler_name": "euler"} | self.prompts
        latent = {"samples": torch.zeros(1, 4, edge, edge)}
        return sampling | {"scheduler": "normal", "denoise": 1.0, "latent_image": latent}

    def _run(self) -> Run:
        import torch

        calls_before, openvino_before = self._calls()
        # ComfyUI runs a whole prompt like this
        with torch.inference_mode():
            started = time.perf_counter()
            latent = self._sample()
            total_s = time.perf_counter() - started
        calls, openvino_s = self._calls()
        if self.side.precision and calls - calls_before != len(self.clock.starts):
            raise RuntimeError(f"Some UNet calls ran on torch: {self._report().line()}")
        return Run(
            total_s,
            self.clock.steps(self.options.steps),
            self.clock.unet_s,
            openvino_s - openvino_before,
            len(self.clock.starts),
            latent["samples"].numpy(),
        )

    def _hardware(self) -> dict[str, Any]:
        import psutil
        import torch
        from comfyui_version import __version__ as comfyui
        from ovpack.ov_backends import devices

        cores = f"{psutil.cpu_count(logical=False)} cores, {psutil.cpu_count()} threads"
        return {
            "cpu": next(info.full_name for info in devices.list_devices() if info.name == "CPU"),
            "cores": f"{cores}, {torch.get_num_threads()} used by torch",
            "memory_bytes": psutil.virtual_memory().total,
            "capabilities": devices.capabilities("CPU"),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "versions": devices.versions() | {"comfyui": comfyui},
        }

    def _sample(self) -> dict:
        sampling = self._sampling()
        if not self.side.precision:
            from nodes import KSampler as Stock

            return Stock().sample(self.model, **sampling)[0]
        from ovpack.nodes.samplers import KSampler
        from ovpack.ov_backends.plan import DevicePlan, SubmodelPlan

        plan = DevicePlan(unet=SubmodelPlan("CPU", self.side.precision))
        return KSampler.execute(self.model, plan, **sampling).result[0]

    def _report(self):
        from ovpack.nodes import host

        return host.current_report().submodel("unet", "CPU")

    def _calls(self) -> tuple[int, float]:
        """Calls on OpenVINO so far, and seconds spent in it by all but the first."""
        if not self.side.precision:
            return 0, 0.0
        report = self._report()
        return report.openvino_calls, (sum(report.call_ms) - sum(report.outside_ms)) / 1000


def _name_pack() -> None:
    """Make the pack importable as `ovpack` without shadowing ComfyUI's `nodes`."""
    spec = ModuleSpec("ovpack", None, is_package=True)
    spec.submodule_search_locations = [str(PACK)]
    sys.modules["ovpack"] = module_from_spec(spec)
