"""The graph that a device really executes: what its compiler fused, and in which precision each part runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino as ov

_PORTS = frozenset({"Input", "Output", "Const", "Parameter", "Result", "Constant"})


@dataclass(frozen=True)
class ExecutedLayer:
    """One step of a compiled model. kernel: the plugin's name of its code; fused: operators of the model in it."""

    name: str
    type: str
    precision: str
    kernel: str
    fused: tuple[str, ...]


@dataclass(frozen=True)
class ExecutionGraph:
    """The steps in order. told: False where the plugin does not show its graph."""

    layers: tuple[ExecutedLayer, ...]
    told: bool = True

    def as_json(self) -> dict:
        return asdict(self)

    def text(self, most: int = 40) -> str:
        """A summary, and the `most` steps that hold the most operators."""
        if not self.told:
            return "This device does not show its execution graph."
        fused = [layer for layer in self.layers if len(layer.fused) > 1]
        operators = sum(len(layer.fused) for layer in self.layers)
        precisions = Counter(layer.precision for layer in self.layers)
        spread = ", ".join(f"{count} in {name}" for name, count in precisions.most_common())
        lines = [f"Executed: {len(self.layers)} steps for {operators} operators ({spread}); {len(fused)} are fused:"]
        for layer in sorted(fused, key=lambda layer: -len(layer.fused))[:most]:
            lines.append(f"  {layer.type:<20}{layer.precision:<6}{layer.kernel:<28}{' + '.join(layer.fused)[:120]}")
        left_out = len(fused) - most
        return "\n".join([*lines, *([f"  ... and {left_out} more; --json has all"] if left_out > 0 else [])])


def execution_graph(compiled: ov.CompiledModel) -> ExecutionGraph:
    """What `compiled` executes; inputs, outputs and constants are left out."""
    try:
        nodes = compiled.get_runtime_model().get_ordered_ops()
    except RuntimeError:  # not every plugin has it, and imported blobs may have lost it
        return ExecutionGraph((), told=False)
    layers = []
    for node in nodes:
        kind = _told(node, "layerType")
        if kind in _PORTS:
            continue
        fused = tuple(name for name in _told(node, "originalLayersNames").split(",") if name)
        precision, kernel = _told(node, "runtimePrecision"), _told(node, "primitiveType")
        layers.append(ExecutedLayer(node.get_friendly_name(), kind, precision, kernel, fused))
    return ExecutionGraph(tuple(layers))


def _told(node: ov.Node, key: str) -> str:
    info = node.get_rt_info()
    return str(info[key].value) if key in info else ""
