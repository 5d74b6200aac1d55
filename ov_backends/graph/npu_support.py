"""Which operators Intel's NPU compiler takes on each platform, and which engine of the NPU runs them.

The data (npu_operators.json) is made by really compiling a small model of each operator: `preflight --operators`. It
tells what to expect where no compiler is at hand; what a whole model does is only known by compiling it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino as ov

DATA = Path(__file__).with_name("npu_operators.json")
NO = "no: "
"""Before the reason, in the data."""
_NEVER_PLACED = frozenset({"Parameter", "Result", "Constant"})


@dataclass(frozen=True)
class Support:
    """engine: "DPU" (MAC arrays), "SHAVE" (vector processors), "DMA" (data movement), "none" (it is compiled away).

    why_not: the compiler's reason; "" if it takes the operator.
    """

    engine: str
    why_not: str = ""

    @property
    def is_taken(self) -> bool:
        return not self.why_not


@dataclass(frozen=True)
class OperatorTable:
    """What is known of one platform. compiler, openvino: versions asked. entries: operator -> type -> Support.

    Operators by their type, some with what matters about them behind it: "Interpolate", "Interpolate cubic". Types of
    numbers: f16, f32, i8 (quantized on all sides), i32, i64, boolean.
    """

    platform: str
    compiler: str
    openvino: str
    entries: Mapping[str, Mapping[str, Support]]

    def support(self, operator: str, kind: str) -> Support | None:
        """None if it has not been tried. Where this type of number was not tried, another floating-point one counts."""
        kinds = self.entries.get(operator, {})
        near = {"f32": "f16", "f16": "f32", "bf16": "f16", "i8": "f16", "u8": "i8"}.get(kind, "")
        return kinds.get(kind) or kinds.get(near)


@dataclass(frozen=True)
class Refused:
    """An operator of a model that the table says the NPU does not take."""

    name: str
    type: str
    kind: str
    why_not: str


@dataclass(frozen=True)
class Prediction:
    """What the table says of a model. engines: engine -> number of operators; unknown: types that were never tried."""

    table: OperatorTable
    refused: tuple[Refused, ...]
    engines: Mapping[str, int]
    unknown: Mapping[str, int]

    def as_json(self) -> dict:
        return {
            "platform": self.table.platform,
            "compiler": self.table.compiler,
            "refused": [asdict(one) for one in self.refused],
            "engines": dict(self.engines),
            "unknown": dict(self.unknown),
        }

    def text(self) -> str:
        counts = ", ".join(f"{count} on {engine}" for engine, count in self.engines.items() if engine != "none")
        lines = [f"NPU {self.table.platform}, by the table of operators: {counts or 'no operators'}"]
        lines += [f"  does not take {one.type} '{one.name}' ({one.kind}): {one.why_not}" for one in self.refused[:10]]
        if self.unknown:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.unknown.items())
            lines.append(f"  not in the table: {kinds}")
        return "\n".join(lines)


@lru_cache(maxsize=8)
def operator_support(platform: str) -> OperatorTable | None:
    """The table of a platform ("3720", "4000", "5010"); None if there is none."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    if platform not in data["platforms"]:
        return None
    entries = {
        operator: {kind: _support(text) for kind, text in kinds.items()}
        for operator, kinds in data["platforms"][platform].items()
    }
    return OperatorTable(platform, data["compiler"], data["openvino"], entries)


def predict(model: ov.Model, table: OperatorTable) -> Prediction:
    """What `table` says of each operator of `model`; constants, and what is computed from them alone, do not count."""
    refused, engines, unknown = [], Counter[str](), Counter[str]()
    folded: set[str] = set()
    for node in model.get_ordered_ops():
        kind, sources = node.get_type_name(), [port.get_node() for port in node.input_values()]
        static_shape = kind == "ShapeOf" and node.get_input_partial_shape(0).is_static
        if kind == "Constant" or static_shape or (sources and all(s.get_name() in folded for s in sources)):
            folded.add(node.get_name())
            continue
        if kind in _NEVER_PLACED:
            continue
        number = _number_kind(node, folded)
        found = table.support(kind, number)
        if found is None:
            unknown[kind] += 1
        elif found.is_taken:
            engines[found.engine] += 1
        else:
            refused.append(Refused(node.get_friendly_name(), kind, number, found.why_not))
    return Prediction(table, tuple(refused), dict(engines.most_common()), dict(unknown.most_common()))


def _number_kind(node: ov.Node, folded: set[str]) -> str:
    """The type of number that an operator computes in: that of its first input that is no constant."""
    for port in node.input_values():
        source = port.get_node()
        if source.get_name() in folded:
            continue
        if source.get_type_name() == "FakeQuantize":
            return "i8"
        return port.get_element_type().get_type_name()
    return node.get_output_element_type(0).get_type_name()


def _support(text: str) -> Support:
    return Support("", text.removeprefix(NO)) if text.startswith(NO) else Support(text)
