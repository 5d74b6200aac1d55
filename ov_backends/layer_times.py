"""Where the time goes inside a model: each layer that the device executes, with its work and its traffic."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from . import devices
from .bench import Ready, compile_for
from .compiler.precision import resolve_precision
from .errors import InferenceError
from .graph.costs import OperatorCost, operator_costs
from .inputs import random_inputs
from .progress import Progress, log_progress

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

RUNS = 10
"""Profiled inferences; the first one is not counted."""


@dataclass(frozen=True)
class LayerTime:
    """One executed layer; several operators of the model may be fused into it.

    operator: the model's name of what costs most in it, since compilers rename what they fuse; kernel: the plugin's
    name of its code, on the NPU the engine; seconds: median; macs and traffic_bytes: 0 where the plugin does not tell
    which operators are in it.
    """

    name: str
    operator: str
    type: str
    kernel: str
    seconds: float
    macs: int
    traffic_bytes: int


@dataclass(frozen=True)
class LayerTimes:
    """Layers in the order of execution; those that took no time are left out."""

    layers: tuple[LayerTime, ...]

    @property
    def seconds(self) -> float:
        """Sum over the layers; more than an inference takes where the device runs several at a time."""
        return sum(layer.seconds for layer in self.layers)

    @property
    def by_type(self) -> dict[str, float]:
        """Seconds of all layers of a type, the dearest first."""
        sums: dict[str, float] = defaultdict(float)
        for layer in self.layers:
            sums[layer.type] += layer.seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def slowest(self, most: int) -> list[LayerTime]:
        return sorted(self.layers, key=lambda layer: -layer.seconds)[:most]

    def text(self, most: int = 10) -> str:
        """Shares of the types, and the `most` slowest layers."""
        if not self.layers:
            return "The device does not tell the times of its layers."
        whole = self.seconds or 1.0
        shares = ", ".join(f"{kind} {seconds / whole:.0%}" for kind, seconds in list(self.by_type.items())[:6])
        lines = [f"Time by type of layer: {shares}", "Slowest layers (ms, share, GMAC/s, kernel, name):"]
        for layer in self.slowest(most):
            time = f"{1e3 * layer.seconds:8.3f}{layer.seconds / whole:7.1%}"
            rate = f"{layer.macs / layer.seconds / 1e9:.1f}" if layer.macs else "-"
            lines.append(f"  {time}{rate:>9}  {layer.kernel:<24} {layer.operator}")
        return "\n".join(lines)

    def as_json(self) -> dict:
        return {"seconds": self.seconds, "by_type": self.by_type, "layers": [asdict(layer) for layer in self.layers]}


def measure_layers(
    model: ov.Model,
    device: str,
    inputs: Mapping[str, np.ndarray] | None = None,
    precision: str = "auto",
    progress: Progress = log_progress,
) -> LayerTimes:
    """Compile `model` once more, with profiling, and time its layers; empty where the plugin does not profile.

    Profiling itself takes time, so these times are for shares, not for speed. Static shapes. inputs: as for
    `benchmark_model`.
    """
    device = devices.resolve(device, "model", "error").device
    chosen, _ = resolve_precision(precision, device)
    compiled, _ = compile_for(model, device, chosen, "LATENCY", progress, PERF_COUNT="YES")
    return time_layers(model, compiled, random_inputs(model) if inputs is None else inputs, progress)


def time_layers(
    model: ov.Model, compiled: ov.CompiledModel, inputs: Mapping[str, np.ndarray], progress: Progress = log_progress
) -> LayerTimes:
    """The same for a model that is compiled already, with PERF_COUNT on. inputs: contiguous, of the ports' types."""
    ready = Ready(compiled, inputs)
    ready()
    times: dict[str, list[float]] = defaultdict(list)
    kinds: dict[str, tuple[str, str]] = {}
    for number in range(RUNS):
        progress(f"Measuring layers of {model.get_friendly_name()}, run {number + 1} of {RUNS}")
        ready()
        for info in _profile(ready.request):
            times[info.node_name].append(info.real_time.total_seconds())
            kinds[info.node_name] = (info.node_type, info.exec_type)
    work = _work(model, compiled, list(times))
    layers = []
    for name, seconds in times.items():
        operator, macs, traffic_bytes = work[name]
        layers.append(LayerTime(name, operator, *kinds[name], statistics.median(seconds), macs, traffic_bytes))
    return LayerTimes(tuple(layer for layer in layers if layer.seconds > 0))


def _profile(request: ov.InferRequest) -> Sequence[ov.ProfilingInfo]:
    try:
        return request.get_profiling_info()
    except RuntimeError as error:
        raise InferenceError(f"The device does not tell the times of its layers: {error}") from error


def _work(model: ov.Model, compiled: ov.CompiledModel, names: Iterable[str]) -> dict[str, tuple[str, int, int]]:
    """Executed layer -> its dearest operator, MACs of all operators in it, and bytes that it reads and writes."""
    nodes = _executed(compiled)
    fused = {name: [name, *_originals(nodes[name])] if name in nodes else [name] for name in names}
    costs = _costs_by_layer(model, fused)
    work = {}
    for name in fused:
        inside = costs[name]
        dearest = max(inside, key=lambda cost: cost.macs, default=None)
        told = sum(cost.weight_bytes + cost.activation_bytes for cost in inside)
        traffic = _traffic(nodes[name]) if name in nodes else told
        work[name] = (dearest.name if dearest and dearest.macs else name, sum(c.macs for c in inside), traffic)
    return work


def _executed(compiled: ov.CompiledModel) -> dict[str, ov.Node]:
    try:
        return {node.get_friendly_name(): node for node in compiled.get_runtime_model().get_ordered_ops()}
    except RuntimeError:  # not every plugin shows its graph
        return {}


def _originals(node: ov.Node) -> list[str]:
    info = node.get_rt_info()
    told = str(info["originalLayersNames"].value) if "originalLayersNames" in info else ""
    return [name for name in told.split(",") if name]


def _costs_by_layer(model: ov.Model, fused: Mapping[str, Sequence[str]]) -> dict[str, list[OperatorCost]]:
    """Each operator's cost at the layer that holds it.

    Compilers rename what they fuse: an operator that no layer names went into the one that holds its user.
    """
    owner: dict[str, str] = {}
    for layer, operators in fused.items():
        for operator in operators:
            owner.setdefault(operator, layer)
    for layer in fused:
        owner[layer] = layer
    for node in reversed(model.get_ordered_ops()):
        users = [
            target.get_node().get_friendly_name() for port in node.outputs() for target in port.get_target_inputs()
        ]
        owners = [owner[user] for user in users if user in owner]
        if owners:
            owner.setdefault(node.get_friendly_name(), owners[0])
    found: dict[str, list[OperatorCost]] = defaultdict(list)
    for cost in operator_costs(model):
        if cost.name in owner:
            found[owner[cost.name]].append(cost)
    return found


def _traffic(node: ov.Node) -> int:
    """Bytes of all inputs, weights among them, and outputs, in the types that they are executed in."""
    ports = [*node.input_values(), *node.outputs()]
    shapes = ((port.get_partial_shape(), port.get_element_type().bitwidth) for port in ports)
    return sum(math.prod(shape.to_shape()) * bits // 8 for shape, bits in shapes if shape.is_static)
