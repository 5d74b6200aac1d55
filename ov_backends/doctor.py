"""The troubleshooting table, made executable: every symptom is a function that looks for its causes."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from importlib import metadata
from typing import TYPE_CHECKING, Literal

from . import devices
from .compiler.cache import CompileCache, Entry
from .compiler.compile import Order
from .errors import CompileError, InferenceError
from .graph.placement import FALLBACK_DEVICE, Placement, everything_on, place
from .layout import guess_layout
from .progress import Progress, log_progress
from .quantize.gate import LIMIT, worst_cosine
from .quantize.scope import is_quantized

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

Severity = Literal["fine", "note", "problem"]

RUNS = 30
"""Inferences of the examination."""
GROWTH_BYTES = 16 * 10**6
"""More memory than this after RUNS equal inferences is a leak, not the allocator's play."""
BUSY_CPU = 0.5
"""Cores that an inference on another device may keep busy; waiting for a device needs next to none."""
FREE_BYTES = 2 * 10**9
"""Less free disk than this, and compiled models may not be kept."""
OTHER_OPENVINO = ("openvino-dev", "openvino-nightly", "onnxruntime-openvino")
"""Packages that bring another build of OpenVINO's libraries beside the one in use."""
FAMILY = ("openvino-genai", "openvino-tokenizers")
"""Packages built against one release of OpenVINO."""


@dataclass(frozen=True)
class Finding:
    """What was found for a symptom and what to do about it; problem: this is or will be in the way."""

    symptom: str
    found: str
    advice: str = ""
    severity: Severity = "fine"

    def __str__(self) -> str:
        mark = {"fine": "[ok]     ", "note": "[note]   ", "problem": "[problem]"}[self.severity]
        return f"{mark} {self.symptom}: {self.found}{f' -> {self.advice}' if self.advice else ''}"

    def as_json(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Runs:
    """RUNS inferences on the device. grown_bytes: memory of the process after the first third to after the last."""

    compile_s: float
    first_ms: float
    steady_ms: float
    cpu_cores: float
    grown_bytes: int
    outputs: Sequence[np.ndarray]


@dataclass(frozen=True)
class Patient:
    """What is examined: this machine with `device` (as asked for), and a model with inputs if there is one."""

    device: str
    cache: CompileCache
    model: ov.Model | None = None
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    order: Order | None = None
    progress: Progress = log_progress

    @cached_property
    def missing(self) -> str:
        """Why the device is not there; "" if it is."""
        return "" if self.device == devices.AUTO else devices.why_missing(self.device)

    @property
    def static_model(self) -> ov.Model | None:
        """The model if it can be run here: the device is there, and every size is known."""
        return None if self.model is None or self.missing or open_inputs(self.model) else self.model

    @cached_property
    def placement(self) -> Placement | str:
        """Where the operators of the model run, or what the device said instead of an answer."""
        model = self.static_model
        if model is None:
            return ""
        if _runs_on_cpu(self.device):
            return everything_on(model, self.device)
        try:
            return place(model, self.device, devices.core().query_model)
        except RuntimeError as error:
            return devices.explain_device_error(error, self.device)

    @property
    def target(self) -> str:
        """What the model is compiled for: the device, with the CPU beside it where some operators need it."""
        placement = self.placement
        if isinstance(placement, str) or not placement.fallback or self.device not in placement.devices:
            return self.device
        return f"HETERO:{self.device},{FALLBACK_DEVICE}"

    @cached_property
    def _tried(self) -> Runs | str:
        if self.static_model is None:
            return ""
        try:
            return _run(self.static_model, self.device, self.target, self.inputs, self.progress)
        except (CompileError, InferenceError) as error:
            return str(error)

    @property
    def runs(self) -> Runs | None:
        """Made once, for all symptoms; None if the model cannot run."""
        return None if isinstance(self._tried, str) else self._tried

    @property
    def failure(self) -> str:
        """What the device said when it was to compile or run the model; "" if nothing."""
        return self._tried if isinstance(self._tried, str) else ""


Symptom = Callable[[Patient], Iterator[Finding]]


def examine(patient: Patient) -> list[Finding]:
    """Look for the causes of every symptom in SYMPTOMS."""
    findings: list[Finding] = []
    for symptom in SYMPTOMS:
        patient.progress(f"Looking into: {symptom.__name__.replace('_', ' ')}")
        findings += symptom(patient)
    return findings


def open_inputs(model: ov.Model) -> list[str]:
    """Names of the inputs that leave sizes open: without all sizes a model is not run here."""
    return [port.get_any_name() for port in model.inputs if port.get_partial_shape().is_dynamic]


def device_missing(patient: Patient) -> Iterator[Finding]:
    about = partial(Finding, "device missing")
    if patient.missing:
        yield about(f"there is no {patient.device}", patient.missing, "problem")
    there = ", ".join(f"{i.label} ({i.full_name or 'no name'})" for i in devices.list_devices())
    yield about(f"OpenVINO sees {there}")
    if why := devices.why_missing("NPU"):
        if not devices.is_npu(patient.device):
            yield about("no NPU", why, "note")
    elif devices.emulates_npu():
        yield about("the NPU is emulated on the CPU", "unset OVNPU_NPU_EMULATION to use a real one", "note")


def device_hardly_used(patient: Patient) -> Iterator[Finding]:
    """Operators that the device does not take run on the CPU, and the data go back and forth."""
    about = partial(Finding, "device hardly used")
    if patient.model is None or patient.missing:
        return
    if names := ", ".join(open_inputs(patient.model)):
        if devices.is_npu(patient.device):
            advice = "fix every size with --shape; the NPU compiles nothing with open dimensions"
            yield about(f"open dimensions in {names}", advice, "problem")
        else:
            yield about(f"open dimensions in {names}: not run", "give --shape and look again", "note")
        return
    if patient.failure:
        yield about("the model does not run", patient.failure, "problem")
    if _runs_on_cpu(patient.device):
        yield about("every operator runs on the CPU, as asked for")
        return
    placement = patient.placement
    if isinstance(placement, str):
        yield about(f"{patient.device} does not say which operators it takes", placement, "problem")
        return
    total = sum(placement.devices.values())
    if not placement.fallback:
        yield about(f"{patient.device} takes all {total} operators")
        return
    kinds = Counter(operator.type for operator in placement.fallback)
    yield about(
        f"{len(placement.fallback)} of {total} operators run on the CPU ({_listed(kinds)}), with {placement.switches} "
        "changes of device in each inference",
        "replace these operators before export, cut the model at them, or run it on GPU or CPU; update the driver",
        "problem",
    )


def latency_high_and_cpu_full(patient: Patient) -> Iterator[Finding]:
    about = partial(Finding, "latency high and CPU full")
    for info in devices.list_devices():
        if info.driver:
            yield about(f"driver of {info.name}: {info.driver}")
    if patient.runs is None:
        return
    runs = patient.runs
    text = f"{runs.steady_ms:.2f} ms an inference with {runs.cpu_cores:.1f} CPU cores busy"
    if _runs_on_cpu(patient.device) or runs.cpu_cores <= BUSY_CPU:
        yield about(text)
    else:
        advice = "operators fell back to the CPU (see device hardly used), or driver and openvino need an update"
        yield about(f"{text}, though it runs on {patient.device}", advice, "problem")


def first_run_slow(patient: Patient) -> Iterator[Finding]:
    """Compiling and the driver's start belong to the first run; the cache spares both the next process."""
    about = partial(Finding, "very slow first run")
    root = patient.cache.root
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < FREE_BYTES:
        advice = "free some space, or set OVNPU_CACHE_DIR to a folder on another disk"
        yield about(f"{free / 1e9:.1f} GB free for the cache in {root}", advice, "problem")
    held = sum(entry.manifest["bytes"] for entry in patient.cache.entries())
    if held > 0.9 * patient.cache.limit_bytes:
        advice = "raise OVNPU_CACHE_LIMIT_GB, or remove entries: python -m ov_backends cache list"
        yield about(f"the cache is nearly full: {held / 1e9:.1f} GB", advice, "note")
    if patient.order is not None and patient.static_model is not None:
        found = patient.cache.find("blob", patient.order.identity)
        if isinstance(found, Entry):
            yield about(f"this model is in the cache ({found.path.name[:12]})")
        else:
            yield about(f"this model is not in the cache: {found}", "run 'compile' once with this device", "note")
    if patient.runs is not None:
        runs = patient.runs
        first = f"first inference {runs.first_ms:.1f} ms, then {runs.steady_ms:.2f} ms"
        yield about(f"compiling {runs.compile_s:.2f} s, {first}")


def wrong_output(patient: Patient) -> Iterator[Finding]:
    about = partial(Finding, "wrong output")
    if patient.model is None:
        return
    for port in patient.model.inputs:
        shape = port.get_partial_shape()
        if shape.is_static and len(shape) == 4:
            layout = guess_layout([d.get_length() for d in shape])
            text = f"input '{port.get_any_name()}' {shape}: {layout}"
            if layout.name:
                yield about(text)
            else:
                yield about(text, "check the layout that it was exported with: another one gives wrong output", "note")
    if quantized := is_quantized(patient.model):
        advice = "compare it with the float model: python -m ov_backends compare FLOAT QUANTIZED --input SAMPLES"
        yield about(f"the model is quantized ({quantized})", advice, "note")
    yield from _numbers_wrong(patient)


def memory_grows(patient: Patient) -> Iterator[Finding]:
    about = partial(Finding, "memory grows")
    if patient.model is None:
        return
    unbounded = [
        port.get_any_name()
        for port in patient.model.inputs
        if any(not d.is_static and d.get_max_length() < 0 for d in port.get_partial_shape())
    ]
    if unbounded:
        advice = "fix the size with --shape, or pad inputs to one size: each new size takes memory of its own"
        yield about(f"no upper limit for the size of {', '.join(unbounded)}", advice, "note")
    if patient.runs is None:
        return
    grown = patient.runs.grown_bytes
    if grown > GROWTH_BYTES:
        advice = "update openvino and the driver; in your own program use requests again, and wait for their results"
        yield about(f"{grown / 1e6:.0f} MB more after {RUNS} equal inferences", advice, "problem")
    else:
        yield about(f"{RUNS} equal inferences leave it as it is ({grown / 1e6:+.1f} MB)")


def packages_conflict(patient: Patient, installed: Callable[[str], str] | None = None) -> Iterator[Finding]:
    """installed: version of a package, "" if it is not there."""
    about = partial(Finding, "packages conflict")
    version = installed or _installed
    own = version("openvino")
    yield about(f"openvino {own}, nncf {version('nncf') or 'not installed'}, torch {version('torch') or 'none'}")
    for name in FAMILY:
        other = version(name)
        if other and other.split(".")[:2] != own.split(".")[:2]:
            advice = f"install one release: python -m pip install --upgrade openvino {name}"
            yield about(f"{name} {other} was built for another openvino than {own}", advice, "problem")
    for name in OTHER_OPENVINO:
        if other := version(name):
            advice = f"python -m pip uninstall {name}, then python -m pip install --force-reinstall openvino"
            yield about(f"{name} {other} brings OpenVINO libraries of its own", advice, "problem")


SYMPTOMS: tuple[Symptom, ...] = (
    device_missing,
    device_hardly_used,
    latency_high_and_cpu_full,
    first_run_slow,
    wrong_output,
    memory_grows,
    packages_conflict,
)


def _numbers_wrong(patient: Patient) -> Iterator[Finding]:
    """The device's output against the CPU's in FP32."""
    about = partial(Finding, "wrong output")
    import numpy as np

    if patient.runs is None or patient.model is None:
        return
    outputs = patient.runs.outputs
    if not all(np.isfinite(o).all() for o in outputs if o.dtype.kind == "f"):
        advice = "the activations overflow FP16: run it on the CPU in fp32, or on a device with BF16"
        yield about(f"NaN or infinity in the output on {patient.device}", advice, "problem")
        return
    if devices.base_name(patient.device) == "CPU":
        return
    reference = _run(patient.model, "CPU", "CPU", patient.inputs, patient.progress).outputs
    cosine = worst_cosine(reference, outputs)
    text = f"cosine {cosine:.6f} to the CPU in fp32, on noise"
    if cosine < LIMIT:
        advice = (
            "python -m ov_backends compare MODEL --device CPU," + patient.device + " names the first layer that differs"
        )
        yield about(text, advice, "problem")
    else:
        yield about(text)


def _run(model: ov.Model, device: str, target: str, inputs: Mapping[str, np.ndarray], progress: Progress) -> Runs:
    import psutil

    progress(f"Running {RUNS} times on {devices.label(device)}")
    properties: dict[str, object] = {"PERFORMANCE_HINT": "LATENCY", **devices.compile_properties(device)}
    if device == "CPU":
        properties["INFERENCE_PRECISION_HINT"] = "f32"
    started = time.perf_counter()
    try:
        compiled = devices.core().compile_model(model, target, properties)
    except RuntimeError as error:
        raise CompileError(f"{device} refused the model: {devices.explain_device_error(error, device)}") from error
    compile_s = time.perf_counter() - started
    request, times, process, memory = compiled.create_infer_request(), [], psutil.Process(), 0
    busy, began = time.process_time(), time.perf_counter()
    try:
        for index in range(RUNS):
            if index == RUNS // 3:
                memory = process.memory_info().rss
            started = time.perf_counter()
            request.infer(dict(inputs))
            times.append(1000 * (time.perf_counter() - started))
    except RuntimeError as error:
        raise InferenceError(devices.explain_device_error(error, device)) from error
    cores = (time.process_time() - busy) / (time.perf_counter() - began)
    outputs = [tensor.data.copy() for tensor in request.output_tensors]
    steady = sorted(times[1:])[len(times) // 2]
    return Runs(compile_s, times[0], steady, cores, process.memory_info().rss - memory, outputs)


def _runs_on_cpu(device: str) -> bool:
    return devices.base_name(device) == "CPU" or (devices.is_npu(device) and devices.emulates_npu())


def _listed(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
