"""Which operator runs on which device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..report import FallenOperator

if TYPE_CHECKING:
    import openvino as ov

SKIPPED_TYPES = frozenset({"Parameter", "Constant", "Result"})
FALLBACK_DEVICE = "CPU"


@dataclass(frozen=True)
class Placement:
    """Operators by device, those that are not on the device asked for, and how often the data change device."""

    devices: Mapping[str, int]
    fallback: tuple[FallenOperator, ...] = ()
    switches: int = 0

    def as_json(self) -> dict:
        return {
            "devices": dict(self.devices),
            "fallback": [[o.name, o.type, o.device] for o in self.fallback],
            "switches": self.switches,
        }

    @classmethod
    def from_json(cls, data: dict) -> Placement:
        return cls(data["devices"], tuple(FallenOperator(*o) for o in data["fallback"]), data["switches"])


def place(model: ov.Model, device: str, query: Callable[[ov.Model, str], Mapping[str, str]]) -> Placement:
    """Ask the plugin which operators of `model` it takes; the rest goes to the CPU.

    query: `ov.Core.query_model` or a stand-in: operator name -> device for what the device supports. Weights, inputs
    and results are not counted; what only prepares weights at compile time goes where its user goes.
    """
    supported = query(model, device)
    where: dict[str, str] = {}
    fallback = []
    for node in model.get_ordered_ops():
        name, type_name = node.get_friendly_name(), node.get_type_name()
        if type_name in SKIPPED_TYPES or _only_prepares_weights(node):
            continue
        where[name] = device if name in supported else FALLBACK_DEVICE
        if name not in supported:
            fallback.append(FallenOperator(name, type_name, FALLBACK_DEVICE))
    return Placement(dict(Counter(where.values())), tuple(fallback), _switches(model, where))


def everything_on(model: ov.Model, device: str) -> Placement:
    """The placement of a model that its device's plugin took whole."""
    counted = [n for n in model.get_ops() if n.get_type_name() not in SKIPPED_TYPES and not _only_prepares_weights(n)]
    return Placement({device: len(counted)})


def _only_prepares_weights(node: ov.Node) -> bool:
    """True for the Convert between an FP16 weight and its FP32 user."""
    return node.get_type_name() == "Convert" and node.input_value(0).get_node().get_type_name() == "Constant"


def _switches(model: ov.Model, where: Mapping[str, str]) -> int:
    """Edges whose two ends are on different devices, counted once for each tensor and device that needs it."""
    crossings = set()
    for node in model.get_ordered_ops():
        source = where.get(node.get_friendly_name())
        if source is None:
            continue
        for index, output in enumerate(node.outputs()):
            for target in output.get_target_inputs():
                device = where.get(target.get_node().get_friendly_name(), source)
                if device != source:
                    crossings.add((node.get_friendly_name(), index, device))
    return len(crossings)
