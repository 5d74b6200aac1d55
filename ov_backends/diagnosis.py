"""Why a model is not as fast as it could be: four questions, in the order in which the answers are most often yes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from . import devices
from .bench import Benchmark
from .graph.placement import Placement, everything_on, place
from .layer_times import LayerTimes
from .peaks import Theory
from .tensor_kinds import AnyTensor, dtype_name, to_numpy
from .tensors import shares_memory
from .timing import milliseconds

if TYPE_CHECKING:
    import openvino as ov

Verdict = Literal["yes", "no", "unknown"]

MANY_NAMES = 5
"""So many names are listed; of the rest only the number."""
NOTABLE_SHARE = 0.05
"""Of an inference; what takes less is not worth the work."""
NOTABLE_GAIN = 1.2
"""Several requests at a time must be so many times faster before it is worth changing a program."""
GOOD_USE = 0.5
"""Half of the peak is what well-shaped models reach."""
POOR_USE = 0.1

_CONVERSIONS = frozenset({"Reorder", "Convert", "Transpose"})
_GENERIC = "ref"  # how the CPU plugin calls kernels that are written for correctness and not for speed


@dataclass(frozen=True)
class Step:
    """One question. verdict "yes": this costs time here."""

    question: str
    verdict: Verdict
    evidence: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.question} {self.verdict}: {self.evidence}{f' -> {self.advice}' if self.advice else ''}"


@dataclass(frozen=True)
class Diagnosis:
    """The four answers in order, and what to do."""

    steps: tuple[Step, ...]
    recommendation: str

    @property
    def first(self) -> Step | None:
        """The first question that is answered with yes: begin there."""
        return next((step for step in self.steps if step.verdict == "yes"), None)

    def text(self) -> str:
        lines = [f"{number}. {step}" for number, step in enumerate(self.steps, start=1)]
        return "\n".join([*lines, f"Recommendation: {self.recommendation}"])

    def as_json(self) -> dict:
        return {"steps": [asdict(step) for step in self.steps], "recommendation": self.recommendation}


def diagnose(
    model: ov.Model,
    compiled: ov.CompiledModel,
    device: str,
    inputs: Mapping[str, AnyTensor],
    measured: Benchmark,
    times: LayerTimes,
    outside_s: float | None = None,
) -> Diagnosis:
    """The four questions, answered for one model on one device.

    compiled: of `model`; inputs: as the user's program has them, before they are made contiguous or of another type;
    times: of its layers; outside_s: seconds that the program spends around each inference, if known.
    """
    steps = (
        operators_elsewhere(model, compiled, device, times),
        inputs_copied(compiled, inputs, times),
        shapes_open(model),
        work_serial(measured, outside_s),
    )
    return Diagnosis(steps, recommend(measured.theory, measured.device))


def operators_elsewhere(model: ov.Model, compiled: ov.CompiledModel, device: str, times: LayerTimes) -> Step:
    """Do operators run elsewhere than on the device, or there by slow generic code?"""
    question = f"Operators off {devices.label(device)}, or in slow generic code there?"
    told = compiled.get_property("EXECUTION_DEVICES")
    where = [told] if isinstance(told, str) else list(told)  # the NPU's plugin gives one name
    placement = _placement(model, device, where)
    if placement is None:
        return Step(
            question, "unknown", f"it ran on {', '.join(where)}; the device does not tell which operators it has"
        )
    if placement.fallback:
        kinds = _listed([f"{operator.type} '{operator.name}'" for operator in placement.fallback])
        elsewhere = f"{len(placement.fallback)} run on {placement.fallback[0].device}"
        evidence = f"{elsewhere}: {kinds}; {placement.switches} crossings"
        return Step(question, "yes", evidence, "Move them out of the model, or replace them by operators that it has.")
    count = f"all {sum(placement.devices.values())} operators run there (EXECUTION_DEVICES {', '.join(where)})"
    engines = _engines(times)
    generic = [layer for layer in times.slowest(len(times.layers)) if layer.kernel.startswith(_GENERIC)]
    share = sum(layer.seconds for layer in generic) / (times.seconds or 1)
    if share >= NOTABLE_SHARE:
        names = _listed([f"{layer.type} '{layer.operator}'" for layer in generic])
        advice = "Express them by operators that have fast code, or move them out of the model."
        return Step(question, "yes", f"{count}, but {share:.0%} of the time is generic code: {names}", advice)
    return Step(question, "no", count + (f"; time by engine: {engines}" if engines else ""))


def _placement(model: ov.Model, device: str, where: list[str]) -> Placement | None:
    """What ran says most; where more than the device took part, its plugin is asked. None if it does not answer."""
    emulation = {"CPU"} if devices.is_npu(device) and devices.emulates_npu() else set()
    if set(map(devices.base_name, where)) <= {devices.base_name(device)} | emulation:
        return everything_on(model, device)
    try:
        return place(model, device, devices.core().query_model)
    except RuntimeError:
        return None


def inputs_copied(compiled: ov.CompiledModel, inputs: Mapping[str, AnyTensor], times: LayerTimes) -> Step:
    """Are inputs copied on their way in, or inputs and outputs brought into another layout or type?"""
    question = "Inputs copied at each call?"
    copied = [reason for port in compiled.inputs if (reason := _why_copied(port, inputs))]
    seconds = {layer.name: layer.seconds for layer in times.layers}
    converted = [name for name in _port_conversions(compiled) if name in seconds]
    share = sum(seconds[name] for name in converted) / (times.seconds or 1)
    everywhere = sum(layer.seconds for layer in times.layers if layer.type in _CONVERSIONS) / (times.seconds or 1)
    moved = (
        f"changes of layout or type at inputs and outputs take {share:.1%} of the time, inside of the model "
        f"{everywhere - share:.1%}"
    )
    if copied or share >= NOTABLE_SHARE:
        advice = "Make inputs contiguous and of the port's type once, and keep the memory; give the model's own layout."
        return Step(question, "yes", "; ".join([*copied, moved]), advice)
    return Step(question, "no", f"all {len(compiled.inputs)} inputs are read where they are; {moved}")


def shapes_open(model: ov.Model) -> Step:
    """Are there open sizes, which mean recompiling, or kernels that fit no size well?"""
    question = "Open sizes, which are compiled for anew?"
    ports = [*model.inputs, *model.outputs]
    found = [
        f"'{port.get_any_name() if port.get_names() else '?'}' {port.get_partial_shape()}"
        for port in ports
        if port.get_partial_shape().is_dynamic
    ]
    if found:
        advice = "Give each input the size that is really used, and pad to it; one model for each of a few sizes."
        return Step(question, "yes", f"{len(found)} of {len(ports)} ports: {_listed(found)}", advice)
    return Step(question, "no", f"all {len(ports)} ports have fixed sizes")


def work_serial(measured: Benchmark, outside_s: float | None) -> Step:
    """Does the device wait for what is done before and after an inference?"""
    question = "Device waiting for the program?"
    inside = measured.one.steady.median_s
    gain = measured.many.per_second / measured.one.per_second
    evidence = [f"{measured.many.requests} requests at a time give {gain:.2f} times the throughput of one"]
    share = outside_s / (outside_s + inside) if outside_s is not None else 0.0
    if outside_s is None:
        evidence.append(f"an inference takes {milliseconds(inside)}; the time around it was not measured")
    else:
        evidence.append(f"{milliseconds(inside)} inside OpenVINO and {milliseconds(outside_s)} around it ({share:.0%})")
    if gain >= NOTABLE_GAIN or share >= 1 - 1 / NOTABLE_GAIN:
        advice = f"Keep {measured.many.requests} requests under way, and prepare the next input meanwhile."
        return Step(question, "yes", "; ".join(evidence), advice)
    return Step(question, "unknown" if outside_s is None else "no", "; ".join(evidence))


def recommend(theory: Theory | None, device: str, medians_s: Mapping[str, float] | None = None) -> str:
    """What to do with this model. medians_s: device -> seconds of an inference there, where others were measured."""
    if medians_s and len(medians_s) > 1:
        fastest = min(medians_s, key=lambda name: medians_s[name])
        listed = ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in medians_s.items())
        return f"Run it on {fastest}, the fastest measured ({listed}).{_why_small(theory)}"
    if theory is None:
        return f"The peak figures of {device} are not known; compare with another device."
    if theory.is_small:
        first = "No other device will gain much." if device == "CPU" else "Compare with the CPU, which may win."
        return f"{first}{_why_small(theory)}"
    used = max(theory.macs_used, theory.memory_used)
    if used >= GOOD_USE:
        limit = "memory" if theory.is_bound_by_memory else "arithmetic"
        remedy = "weights in fewer bits" if theory.is_bound_by_memory else "a lower precision or fewer MACs"
        return f"It uses {used:.0%} of what the {limit} allows; only {remedy} would make it faster."
    use = f"{theory.macs_used:.1%} of the MACs and {theory.memory_used:.1%} of the bandwidth"
    if used < POOR_USE:
        return f"It uses {use}, so neither is the limit; the questions above and the slowest layers show what is."
    times = theory.measured_s / theory.ideal_s
    return f"It uses {use}; at best it would be {times:.1f} times as fast. Look at the slowest layers."


def _why_small(theory: Theory | None) -> str:
    if theory is None or not theory.is_small:
        return ""
    work = f"{theory.macs / 1e6:.3g} million MACs ({milliseconds(theory.ideal_s)} at best)"
    return f" With {work} the model is small: moving data and starting the device outweigh the arithmetic."


def _why_copied(port: ov.ConstOutput, inputs: Mapping[str, AnyTensor]) -> str:
    name = next((name for name in port.get_names() if name in inputs), "")
    if not name:
        return ""
    tensor, wanted = inputs[name], port.get_element_type().to_dtype().name
    if (given := dtype_name(tensor)) != wanted:
        return f"'{name}' is {given}, and the model takes {wanted}"
    is_in_place = shares_memory(tensor) if wanted == "float32" else to_numpy(tensor).flags.c_contiguous
    return "" if is_in_place else f"'{name}' does not lie in memory in the order in which it is read"


def _port_conversions(compiled: ov.CompiledModel) -> list[str]:
    """Names of the executed layers that only bring an input or an output into another layout or type."""
    try:
        nodes = compiled.get_runtime_model().get_ordered_ops()
    except RuntimeError:  # not every plugin shows its graph
        return []
    found = []
    for node in nodes:
        if _kind(node) not in _CONVERSIONS:
            continue
        before = [_kind(port.get_node()) for port in node.input_values()]
        after = [_kind(target.get_node()) for port in node.outputs() for target in port.get_target_inputs()]
        if before[:1] == ["Input"] or "Output" in after:
            found.append(node.get_friendly_name())
    return found


def _kind(node: ov.Node) -> str:
    info = node.get_rt_info()
    return str(info["layerType"].value) if "layerType" in info else ""


def _engines(times: LayerTimes) -> str:
    """Shares of the NPU's engines; "" on other devices, whose kernels have names of their own."""
    sums: dict[str, float] = defaultdict(float)
    for layer in times.layers:
        sums[layer.kernel] += layer.seconds
    if not {kernel.upper() for kernel in sums} & {"DPU", "SHAVE", "DMA"}:
        return ""
    return ", ".join(f"{kernel} {seconds / times.seconds:.0%}" for kernel, seconds in sums.items())


def _listed(names: list[str]) -> str:
    rest = len(names) - MANY_NAMES
    return ", ".join(names[:MANY_NAMES]) + (f" and {rest} more" if rest > 0 else "")
