"""Why Intel's NPU compiler refused a model, in the user's words: which operator, which layer, what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..graph.npu_support import Support, operator_support, predict
from .npu_platforms import Platform

if TYPE_CHECKING:
    import openvino as ov

Kind = Literal["operator", "type", "shape", "memory", "read", "internal", "crash", "timeout"]
MOST_DIMENSIONS = 5
"""Of a tensor that the compiler can lay out in memory; the operators of more that it takes are few."""


@dataclass(frozen=True)
class Refusal:
    """No program for the NPU came of it. operator, layer: "" where nothing tells; said: the compiler's own words."""

    kind: Kind
    operator: str
    layer: str
    advice: str
    said: str

    def as_json(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        place = " ".join(filter(None, [self.operator, f"'{self.layer}'" if self.layer else ""]))
        return f"{place}: {self.advice}" if place else self.advice


class _Known(NamedTuple):
    """advice: {0}: what the pattern's group found, {platform}: the platform. find: looks for the layer in the model."""

    pattern: str
    kind: Kind
    advice: str
    find: Callable[[ov.Model, str, Platform], ov.Node | None]


def explain(step: str, text: str, platform: Platform, model: ov.Model) -> Refusal:
    """What the compiler means by `text`, said when `step` ("read", "reshape", "compile") failed."""
    said = _without_origin(text)
    if step in ("start", "read", "reshape"):
        return Refusal("read", "", "", _READ[step].format(platform=platform), said)
    for known in _KNOWN:
        if found := re.search(known.pattern, said):
            about = next(filter(None, found.groups()), "")
            operator, layer = _place(said, model, known.find(model, about, platform))
            return Refusal(known.kind, operator, layer, known.advice.format(about, platform=platform), said)
    raise AssertionError("the last pattern fits everything")


def crash(code: int | None, said: str, platform: Platform, model: ov.Model) -> Refusal:
    """The compiler ended without a word; the table of operators may know one that does that."""
    advice = (
        f"the compiler for {platform} crashed (exit code {code}). Replace this operator or leave it outside; where "
        "none is named, cut the model to find it. Another version of OpenVINO brings another compiler."
    )
    return Refusal("crash", *_place("", model, _refused_by_table(model, "", platform)), advice, said)


def _place(said: str, model: ov.Model, found: ov.Node | None) -> tuple[str, str]:
    """Operator and layer: as the compiler names them if the model has such a layer, else what was found in it."""
    names = {node.get_friendly_name(): node.get_type_name() for node in model.get_ops()}
    named = [match.groupdict() for pattern in _PLACES for match in re.finditer(pattern, said)]
    for place in named:
        if place["layer"] in names:
            return names[place["layer"]], place["layer"]
    if found is not None:
        return found.get_type_name(), found.get_friendly_name()
    types = [place["operator"] for place in named if place["operator"] in names.values()]
    return (types[0], next(name for name, kind in names.items() if kind == types[0])) if types else ("", "")


_PLACES = (
    r"node '(?P<layer>[^']+)' \(type '(?P<operator>\w+)'\)",
    r"(?P<operator>\w+) node '(?P<layer>[^']+)'",
    r'name = "(?P<layer>[^"]+)", type = "(?P<operator>\w+)"',
    r"'IE\.(?P<operator>\w+)' op(?P<layer>)",
    r"nGraph (?P<operator>\w+)(?P<layer>) ",
)
"""How the compiler names a layer."""


# Looking in the model for what the compiler does not name


def _first(nodes: Iterable[ov.Node]) -> ov.Node | None:
    return next(iter(nodes), None)


def _with_open_size(model: ov.Model, about: str, platform: Platform) -> ov.Node | None:
    """The first operator that makes an open size of fixed ones."""
    return _first(n for n in model.get_ordered_ops() if any(o.get_partial_shape().is_dynamic for o in n.outputs()))


def _of_type(model: ov.Model, about: str, platform: Platform) -> ov.Node | None:
    """The first one that gives this type of number."""
    kinds = ((node, [o.get_element_type().get_type_name() for o in node.outputs()]) for node in model.get_ordered_ops())
    return _first(node for node, types in kinds if about in types and node.get_type_name() != "Constant")


def _with_attribute(model: ov.Model, about: str, platform: Platform) -> ov.Node | None:
    """Several kinds of operators may have it: one that the table does not take, or does not know, is likelier."""
    table = operator_support(platform.number)
    having = [node for node in model.get_ordered_ops() if about in node.get_attributes()]
    doubtful = [n for n in having if table is None or not _is_taken(table.entries.get(n.get_type_name()))]
    return _first(doubtful or having)


def _is_taken(entries: Mapping[str, Support] | None) -> bool:
    return entries is not None and all(entry.is_taken for entry in entries.values())


def _with_many_dimensions(model: ov.Model, about: str, platform: Platform) -> ov.Node | None:
    having = [n for n in model.get_ordered_ops() if any(_rank(o) > MOST_DIMENSIONS for o in n.outputs())]
    return _first([node for node in having if node.get_type_name() != "Parameter"] or having)


def _rank(port: ov.Output) -> int:
    rank = port.get_partial_shape().rank
    return rank.get_length() if rank.is_static else 0


def _largest(model: ov.Model, about: str, platform: Platform) -> ov.Node | None:
    """The one whose result takes most memory."""
    operators = [node for node in model.get_ordered_ops() if node.get_type_name() not in ("Parameter", "Constant")]
    sizes = [(o.get_tensor().size, node) for node in operators for o in node.outputs() if _is_static(o)]
    return max(sizes, key=lambda pair: pair[0])[1] if sizes else None


def _is_static(port: ov.Output) -> bool:
    return port.get_partial_shape().is_static


def _refused_by_table(model: ov.Model, about: str, platform: Platform) -> ov.Node | None:
    """The first operator that the table says this platform does not take."""
    table = operator_support(platform.number)
    refused = predict(model, table).refused if table else ()
    return _first(node for node in model.get_ordered_ops() if refused and node.get_friendly_name() == refused[0].name)


_OUTSIDE = "Leave this operator outside of the model, or run the part with it on GPU or CPU."
_READ = {
    "start": "the compiler's OpenVINO did not start; set it up again: delete its folder, then preflight --setup.",
    "read": "the model could not be read by the compiler's OpenVINO; is it of a newer version, or a file missing?",
    "reshape": "the model cannot take these sizes.",
}
_KNOWN = (
    _Known(
        r"npu_compiler_loader|Cannot load library|Failed to load",
        "internal",
        "the NPU compiler of this OpenVINO cannot be loaded; install its packages again, or use preflight --setup.",
        lambda *_: None,
    ),
    _Known(
        r"Unknown value for platform",
        "internal",
        "this compiler does not know {platform}; a newer OpenVINO may.",
        lambda *_: None,
    ),
    _Known(
        r"Non-const trip_count",
        "shape",
        "how often this loop runs depends on values, and the NPU needs a fixed number. Make it a constant, or leave "
        "the loop outside of the model.",
        lambda model, *_: _first(node for node in model.get_ordered_ops() if node.get_type_name() == "Loop"),
    ),
    _Known(
        r"dynamic|[Uu]pper bound",
        "shape",
        "its sizes depend on values or are open, and the NPU needs every size fixed before it runs. Give every input "
        "its size (--shape), make what decides it a constant, or leave this operator outside of the model.",
        _with_open_size,
    ),
    _Known(
        r"bad[ _]alloc|out of memory|[Ff]ailed to statically allocate|StaticAllocation",
        "memory",
        "the model does not fit at this size: it is the layer with the largest result. Choose a smaller size, or run "
        "the model in tiles.",
        _largest,
    ),
    _Known(
        r"Incorrect precision: (\w+)|but got 'tensor<(?:\d+x)*(\w+)>'",
        "type",
        "the compiler does not take numbers of type {0}. Convert to f16, f32 or i32 before, outside of the model.",
        _of_type,
    ),
    _Known(
        r"output_type attribute 'si64' should have only SI32",
        "type",
        "it gives 64-bit integers, which the compiler does not take here. Set its output type to i32.",
        lambda *_: None,
    ),
    _Known(
        r"ttribute (\w+) (?:is not supported|can't be processed)",
        "operator",
        "the compiler does not know this operator (it stumbled over its attribute '{0}'). " + _OUTSIDE,
        _with_attribute,
    ),
    _Known(
        r"Failed to find BLOCKED",
        "shape",
        "a tensor has more dimensions than the compiler can lay out in memory. Bring it to five or fewer with Reshape.",
        _with_many_dimensions,
    ),
    _Known(
        r"[Uu]nsupported operation|(?:not supported|unsupported) (?:node|layer|operation)",
        "operator",
        "the compiler does not take this operator. " + _OUTSIDE,
        _refused_by_table,
    ),
    _Known(
        r"Failed Pass (\w+)|(\w+) Pass failed",
        "internal",
        "a step of the compiler ({0}) failed on it. Replace the operator or leave it outside; where none is named, cut "
        "the model to find it.",
        _refused_by_table,
    ),
    _Known(
        r"",
        "internal",
        "the compiler for {platform} gave up; what it said is below. Cut the model to find the operator, and leave it "
        "outside.",
        _refused_by_table,
    ),
)
"""The first one that fits counts. Patterns are of messages that compilers 8.4 gave; the tests hold them whole."""


def _without_origin(text: str) -> str:
    """The message without the lines that say where in OpenVINO's source it came from."""
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith("Exception from") and "returned msg:" not in line]
    return "\n".join(kept or [line for line in lines if line])[:2000]
