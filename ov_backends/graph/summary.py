"""What a model is, before anything is done with it: ports, operators, their cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..layout import guess_layout
from .costs import OperatorCost, operator_costs

if TYPE_CHECKING:
    import openvino as ov


@dataclass(frozen=True)
class PortSummary:
    """An input or output. shape: "[?,3,?,?]"; dynamic: numbers of its open dimensions; layout: a guess, or ""."""

    name: str
    shape: str
    dtype: str
    layout: str
    dynamic: tuple[int, ...]

    def __str__(self) -> str:
        layout = f", {self.layout}" if self.layout else ""
        free = f", open: {', '.join(f'dimension {n}' for n in self.dynamic)}" if self.dynamic else ""
        return f"{self.name} {self.shape} {self.dtype}{layout}{free}"


@dataclass(frozen=True)
class OperatorGroup:
    """All operators of one type in one model, with the sums of their cost; None where the shapes are open."""

    type: str
    count: int
    macs: int | None
    weight_bytes: int | None
    activation_bytes: int | None


@dataclass(frozen=True)
class ModelSummary:
    """A model's ports and its operators, the dearest type first."""

    name: str
    inputs: tuple[PortSummary, ...]
    outputs: tuple[PortSummary, ...]
    operators: tuple[OperatorGroup, ...]
    constant_bytes: int

    @property
    def is_dynamic(self) -> bool:
        return any(port.dynamic for port in (*self.inputs, *self.outputs))

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates of one inference."""
        return None if self.is_dynamic else sum(group.macs or 0 for group in self.operators)

    def as_json(self) -> dict:
        return {**asdict(self), "is_dynamic": self.is_dynamic, "macs": self.macs}

    def text(self) -> str:
        lines = [f"Inputs of {self.name}:", *(f"  {port}" for port in self.inputs)]
        lines += ["Outputs:", *(f"  {port}" for port in self.outputs)]
        lines.append(f"Constants: {self.constant_bytes / 1e6:.2f} MB")
        lines += self._costs() if self.macs is not None else self._counts()
        return "\n".join(lines)

    def _costs(self) -> list[str]:
        lines = [f"Operators ({(self.macs or 0) / 1e6:.1f} million MACs an inference; bytes in 10^6):"]
        lines.append(f"  {'type':<28}{'count':>6}{'MMAC':>11}{'weights':>10}{'activations':>13}")
        for g in self.operators:
            weights, activations = (g.weight_bytes or 0) / 1e6, (g.activation_bytes or 0) / 1e6
            lines.append(f"  {g.type:<28}{g.count:>6}{(g.macs or 0) / 1e6:>11.2f}{weights:>10.2f}{activations:>13.2f}")
        return lines

    def _counts(self) -> list[str]:
        lines = [f"  {group.type:<28}{group.count:>6}" for group in self.operators]
        return ["Operators (MACs need fixed sizes; give --shape):", *lines]


def summarize(model: ov.Model) -> ModelSummary:
    """Ports and operators of `model`; with cost if its shapes are static."""
    ports = [*model.inputs, *model.outputs]
    is_static = not any(port.get_partial_shape().is_dynamic for port in ports)
    return ModelSummary(
        name=model.get_friendly_name(),
        inputs=tuple(_port(port) for port in model.inputs),
        outputs=tuple(_port(port) for port in model.outputs),
        operators=_grouped(operator_costs(model)) if is_static else _counted(model),
        constant_bytes=sum(n.get_byte_size() for n in model.get_ops() if n.get_type_name() == "Constant"),
    )


def _port(port: ov.Output) -> PortSummary:
    shape = port.get_partial_shape()
    lengths = [d.get_length() if d.is_static else -1 for d in shape] if shape.rank.is_static else []
    # a batch that is open says nothing about the layout of the rest
    guess = guess_layout([max(length, 1) if i == 0 else length for i, length in enumerate(lengths)])
    return PortSummary(
        name=port.get_any_name() if port.get_names() else "(no name)",
        shape=str(shape),
        dtype=port.get_element_type().to_string(),
        layout=guess.name,
        dynamic=tuple(i for i, length in enumerate(lengths) if length < 0),
    )


def _grouped(costs: Sequence[OperatorCost]) -> tuple[OperatorGroup, ...]:
    groups: dict[str, list[OperatorCost]] = defaultdict(list)
    for cost in costs:
        groups[cost.type].append(cost)
    summed = [
        OperatorGroup(
            kind,
            len(group),
            sum(c.macs for c in group),
            sum(c.weight_bytes for c in group),
            sum(c.activation_bytes for c in group),
        )
        for kind, group in groups.items()
    ]
    return tuple(sorted(summed, key=lambda g: (-(g.macs or 0), -(g.activation_bytes or 0), g.type)))


def _counted(model: ov.Model) -> tuple[OperatorGroup, ...]:
    counts: dict[str, int] = defaultdict(int)
    for node in model.get_ops():
        if node.get_type_name() not in ("Parameter", "Constant", "Result"):
            counts[node.get_type_name()] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(OperatorGroup(kind, count, None, None, None) for kind, count in ordered)
