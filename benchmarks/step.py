"""Seconds per sampling step of Stable Diffusion 1.5's size on the CPU: stock KSampler (torch) against NPU KSampler.

    python benchmarks/step.py --comfyui PATH        (about 10 minutes on 2 cores; 24 GB of memory)

Every side has a process of its own, so that its peak memory is its own, and they take turns (A B C A B C ...), so that
a machine that becomes slower or faster meanwhile meets all alike. Exit code 0 if the goals hold, 1 if not, 2 if a side
failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PACK = Path(__file__).resolve().parent.parent
SEED = 7
CFG = 7.5
MAX_OVERHEAD = 0.02
"""Largest part of a step that the pack's own code may take."""
POLL_S = 0.05


@dataclass(frozen=True)
class Side:
    """One way to run the UNet.

    precision: of NPU KSampler on the CPU; "" is the stock KSampler. goal: how many times faster than that it must be.
    """

    name: str
    title: str
    precision: str = ""
    goal: float = 0.0


STOCK = Side("torch", "KSampler, torch fp32")
SIDES = (
    STOCK,
    Side("fp32", "NPU KSampler, CPU fp32", "fp32", 1.7),
    Side("bf16", "NPU KSampler, CPU bf16", "bf16", 3.0),
)


@dataclass(frozen=True)
class Options:
    """What every side is asked to do; size: of the image in pixels."""

    size: int
    steps: int
    attention: str


@dataclass(frozen=True)
class Run:
    """One sampling run.

    total_s: the whole node; step_s: each step, from the start of its UNet call to that of the next; unet_s: all UNet
    calls together as the sampler sees them; openvino_s: the part of these that OpenVINO computed.
    """

    total_s: float
    step_s: list[float]
    unet_s: float
    openvino_s: float
    calls: int
    latent: Any = field(repr=False)
    peak_bytes: int = 0


@dataclass(frozen=True)
class Ready:
    """A side has made its model and run once. report: NPU KSampler's own; with hardware, empty for the stock side."""

    warm_up_s: float
    report: dict[str, Any]
    hardware: dict[str, Any]


@dataclass
class Result:
    """All that was measured of one side."""

    side: Side
    ready: Ready
    runs: list[Run] = field(default_factory=list)
    peak_bytes: int = 0
    """Most memory that the process ever held, conversion and compilation included."""

    @property
    def step_s(self) -> float:
        return statistics.median(step for run in self.runs for step in run.step_s)

    @property
    def sampling_peak_bytes(self) -> int:
        return max(run.peak_bytes for run in self.runs)

    def speed_up(self, stock: Result) -> float:
        """How many times faster a step is than the stock one of the same round; the median of all rounds."""
        pairs = zip(stock.runs, self.runs, strict=True)
        return statistics.median(statistics.median(a.step_s) / statistics.median(b.step_s) for a, b in pairs)

    def overhead(self, stock: Result) -> float:
        """The part of a run that is neither OpenVINO's nor the sampler's own; the sampler's is measured on `stock`."""
        sampler_s = statistics.median(run.total_s - run.unet_s for run in stock.runs)
        return statistics.median((run.total_s - run.openvino_s - sampler_s) / run.total_s for run in self.runs)


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


class Bench:
    """The model and the sampler of one side, in that side's process."""

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

    def run(self) -> Run:
        import torch

        edge = self.options.size // 8
        sampling = {"seed": SEED, "steps": self.options.steps, "cfg": CFG, "sampler_name": "euler"} | self.prompts
        sampling |= {"scheduler": "normal", "denoise": 1.0, "latent_image": {"samples": torch.zeros(1, 4, edge, edge)}}
        calls_before, openvino_before = self._calls()
        # ComfyUI runs a whole prompt like this
        with torch.inference_mode():
            started = time.perf_counter()
            latent = self._sample(sampling)
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

    def ready(self) -> Ready:
        """Run once."""
        started = time.perf_counter()
        self.run()
        warm_up_s = time.perf_counter() - started
        if not self.side.precision:
            return Ready(warm_up_s, {}, {})
        return Ready(warm_up_s, self._report().as_json(), self._hardware())

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

    def _sample(self, sampling: dict) -> dict:
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


def serve(connection: Connection, side: Side, options: Options) -> None:
    """A side's process: a model, then a sampling run for every "run" that arrives; a traceback as text if it fails."""
    try:
        bench = Bench(side, options)
        connection.send(bench.ready())
        while connection.recv() == "run":
            connection.send(bench.run())
        connection.send(_peak_bytes())
    except Exception:  # whatever it is, the parent shows it
        connection.send(traceback.format_exc())


class Worker:
    """The parent's end of a side's process."""

    def __init__(self, side: Side, options: Options):
        context = multiprocessing.get_context("spawn")
        self.side = side
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, side, options), daemon=True)
        self._process.start()
        theirs.close()

    def receive(self) -> tuple[Any, int]:
        """The next answer, and the most memory in bytes that the process held while it was waited for."""
        import psutil

        watched, peak_bytes = psutil.Process(self._process.pid), 0
        try:
            while not self._connection.poll(POLL_S):
                peak_bytes = max(peak_bytes, watched.memory_info().rss)
            answer = self._connection.recv()
        except (EOFError, psutil.NoSuchProcess) as error:
            self._process.join()
            raise SideFailed(f"{self.side.title}: its process ended, code {self._process.exitcode}.") from error
        if isinstance(answer, str):
            raise SideFailed(f"{self.side.title}:\n{answer}")
        return answer, peak_bytes

    def ask(self, what: str) -> tuple[Any, int]:
        self._connection.send(what)
        return self.receive()

    def end(self) -> None:
        self._process.kill()
        self._process.join()


class SideFailed(RuntimeError):
    """A side's process failed; the text has its traceback."""


def measure(options: Options, rounds: int) -> list[Result]:
    """Warm every side up, one after the other; then `rounds` times a run of each in turn."""
    workers: list[Worker] = []
    try:
        results: list[Result] = []
        for side in SIDES:
            if side.precision == "bf16" and not _has_bf16(_hardware(results)):
                _say(f"{side.title}: not measured, this CPU has no BF16 arithmetic")
                continue
            _say(f"{side.title}: making the model, then one run to warm up")
            workers.append(Worker(side, options))
            ready, _ = workers[-1].receive()
            results.append(Result(side, ready))
        for number in range(rounds):
            for worker, result in zip(workers, results, strict=True):
                run, peak_bytes = worker.ask("run")
                result.runs.append(Run(**{**vars(run), "peak_bytes": peak_bytes}))
                steps = " ".join(f"{step:.3f}" for step in run.step_s)
                _say(f"round {number + 1} of {rounds}: {result.side.title}: {steps} s")
        for worker, result in zip(workers, results, strict=True):
            result.peak_bytes, _ = worker.ask("end")
        return results
    finally:
        for worker in workers:
            worker.end()


def cosine(a, b) -> float:
    import numpy as np

    a, b = (x.astype(np.float64).ravel() for x in (a, b))
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def shortfalls(results: Sequence[Result]) -> list[str]:
    """Which goals are missed, and by how much; a side that this CPU cannot run counts neither way."""
    stock, missed = results[0], []
    for result in results[1:]:
        ratio, overhead = result.speed_up(stock), result.overhead(stock)
        if ratio < result.side.goal:
            missed.append(f"{result.side.name}: {ratio:.2f} times as fast as torch, the goal is {result.side.goal}")
        if overhead > MAX_OVERHEAD:
            missed.append(
                f"{result.side.name}: {overhead:.1%} of a step outside OpenVINO, the goal is {MAX_OVERHEAD:.0%}"
            )
    return missed


def table(results: Sequence[Result]) -> str:
    stock = results[0]
    lines = [
        f"{'':24}{'s per step':>11}{'min..max':>16}{'speed-up':>9}{'our code':>10}{'peak GB':>9}{'first GB':>9}  cosine"
    ]
    for result in results:
        steps = [step for run in result.runs for step in run.step_s]
        overhead = f"{result.overhead(stock):.2%}" if result.side.precision else "-"
        lines.append(
            f"{result.side.title:24}{result.step_s:11.3f}{f'{min(steps):.3f}..{max(steps):.3f}':>16}"
            f"{result.speed_up(stock):9.2f}{overhead:>10}{result.sampling_peak_bytes / 1e9:9.2f}"
            f"{result.peak_bytes / 1e9:9.2f}  {cosine(stock.runs[0].latent, result.runs[0].latent):.9f}"
        )
    return "\n".join(lines)


def hardware_line(hardware: dict[str, Any]) -> str:
    versions = hardware["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("openvino", "torch", "comfyui"))
    bf16 = "BF16 arithmetic" if _has_bf16(hardware) else "no BF16 arithmetic"
    memory = f"{hardware['memory_bytes'] / 2**30:.0f} GiB"
    arithmetic = f"{hardware['instructions']}, {bf16} ({hardware['capabilities']})"
    return f"{hardware['cpu']}, {hardware['cores']}, {memory}, {arithmetic}\n{named}"


def preparation_line(result: Result) -> str:
    seconds = result.ready.report["seconds"]
    cache = result.ready.report["cache"]
    return (
        f"{result.side.title}: first run {result.ready.warm_up_s:.1f} s, of it converting {seconds['convert']:.1f}, "
        f"compiling {seconds['compile']:.1f}, importing {seconds['import']:.1f}; cache {cache['state']}"
    )


def as_json(results: Sequence[Result], options: Options, missed: Sequence[str]) -> dict[str, Any]:
    stock = results[0]
    sides = {}
    for result in results:
        runs = [{k: v for k, v in asdict(run).items() if k != "latent"} for run in result.runs]
        sides[result.side.name] = {
            "step_s": result.step_s,
            "speed_up": result.speed_up(stock),
            "overhead": result.overhead(stock) if result.side.precision else None,
            "sampling_peak_bytes": result.sampling_peak_bytes,
            "peak_bytes": result.peak_bytes,
            "cosine": cosine(stock.runs[0].latent, result.runs[0].latent),
            "report": result.ready.report,
            "runs": runs,
        }
    not_measured = [side.name for side in SIDES if side.name not in sides]
    return {
        "schema": 1,
        "options": asdict(options),
        "hardware": _hardware(results),
        "sides": sides,
        "not_measured": not_measured,
        "missed": list(missed),
    }


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    if given.comfyui:
        os.environ["COMFYUI_PATH"] = given.comfyui
    options = Options(given.size, given.steps, given.attention)
    with tempfile.TemporaryDirectory(prefix="ovnpu-benchmark-", ignore_cleanup_errors=True) as folder:
        os.environ["OVNPU_CACHE_DIR"] = given.cache or folder
        try:
            results = measure(options, given.rounds)
        except SideFailed as error:
            _say(str(error))
            return 2
    missed = shortfalls(results)
    _say()
    _say(hardware_line(_hardware(results)))
    _say(
        f"Stable Diffusion 1.5's UNet, random weights, {options.size}x{options.size}, CFG, {options.steps} euler steps "
        f"({results[0].runs[0].calls} UNet calls), {given.rounds} rounds, torch attention: {options.attention}"
    )
    _say(table(results))
    for result in results[1:]:
        _say(preparation_line(result))
    _say("Goals missed: " + "; ".join(missed) if missed else "All goals hold.")
    if given.json:
        text = json.dumps(as_json(results, options, missed), indent=1)
        Path(given.json).write_text(text, encoding="utf-8")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Seconds per sampling step: stock KSampler against NPU KSampler.")
    parser.add_argument("--comfyui", help="folder of ComfyUI that holds main.py; else COMFYUI_PATH")
    parser.add_argument("--size", type=int, default=512, help="edge of the square image in pixels")
    parser.add_argument("--steps", type=int, default=3, help="sampling steps of one run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument(
        "--attention",
        choices=("pytorch", "default"),
        default="pytorch",
        help="of the stock side; pytorch: as with --use-pytorch-cross-attention, the faster one on a CPU",
    )
    parser.add_argument("--cache", help="compile cache to use and keep; else a new one, removed at the end")
    parser.add_argument("--json", help="file to write everything measured to")
    return parser


def _hardware(results: Sequence[Result]) -> dict[str, Any]:
    return next(result.ready.hardware for result in results if result.ready.hardware)


def _has_bf16(hardware: dict[str, Any]) -> bool:
    return "BF16" in hardware["capabilities"].split()


def _name_pack() -> None:
    """Make the pack importable as `ovpack` without shadowing ComfyUI's `nodes`."""
    spec = ModuleSpec("ovpack", None, is_package=True)
    spec.submodule_search_locations = [str(PACK)]
    sys.modules["ovpack"] = module_from_spec(spec)


def _peak_bytes() -> int:
    """Most memory that this process ever held, as the operating system counts it."""
    if platform.system() == "Windows":
        import psutil

        return psutil.Process().memory_info().peak_wset
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def _say(text: str = "") -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
