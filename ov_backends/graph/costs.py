"""What each operator of a model costs in one inference: multiply-accumulates, weights read, activations moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ShapeError

if TYPE_CHECKING:
    import openvino as ov

# They give their input's memory another shape and move nothing.
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
# Their inputs may be constants, and their outputs are not.
_NEVER_FOLDED = frozenset({"Parameter", "ReadValue", "Variable", "RandomUniform", "Multinomial"})
INT8_LEVELS = 256
"""A FakeQuantize of at most so many levels leaves numbers that a device keeps in a byte."""


@dataclass(frozen=True)
class OperatorCost:
    """One operator in one inference.

    weight_bytes: constants that it reads, each counted at its first reader only. activation_bytes: its inputs that are
    no constants, plus its outputs; 0 for what only renames the shape of its input's memory.
    """

    name: str
    type: str
    macs: int
    weight_bytes: int
    activation_bytes: int


@dataclass(frozen=True)
class Totals:
    """Sums over operators. activation_bytes: if every tensor between operators went through memory."""

    macs: int
    weight_bytes: int
    activation_bytes: int


def operator_costs(model: ov.Model, float_bytes: int | None = None) -> list[OperatorCost]:
    """The cost of every operator, in the order of execution; ShapeError if an input is dynamic.

    Multiply-accumulates: Convolution, GroupConvolution, their transposed kinds, DeformableConvolution, MatMul, Einsum,
    ScaledDotProductAttention (both products), cells and sequences of LSTM, GRU and RNN; loops as often as they run, of
    a condition the dearer branch. Softmax, normalisation and other element-wise work count as 0, as is usual.

    Weights have the type that they are stored in, before Convert and Multiply give them back their range; where a
    FakeQuantize reduces them, a byte each. float_bytes: bytes of a floating-point number wider than 8 bits where the
    device computes in another type than the model holds (2 for FP16); None: as stored.

    What the compiler computes beforehand, from constants alone, is no operator and costs nothing. Of a tensor whose
    size depends on the data the largest size counts, and nothing if it has no bound.
    """
    _require_static_inputs(model)
    counter = _Counter(float_bytes)
    return [counter.cost(node) for node in model.get_ordered_ops() if counter.is_operator(node)]


def totals(costs: Iterable[OperatorCost]) -> Totals:
    """Sums over `costs`."""
    listed = list(costs)
    return Totals(
        macs=sum(c.macs for c in listed),
        weight_bytes=sum(c.weight_bytes for c in listed),
        activation_bytes=sum(c.activation_bytes for c in listed),
    )


def port_bytes(ports: Iterable[ov.Output], float_bytes: int | None = None) -> int:
    """Bytes of these tensors; see `operator_costs`."""
    return sum(_tensor_bytes(port, float_bytes) for port in ports)


class _Counter:
    """Goes through a model in the order of execution; what is folded is known before its users are met."""

    def __init__(self, float_bytes: int | None):
        self._float_bytes = float_bytes
        self._folded: set[str] = set()
        self._counted: set[str] = set()

    def is_operator(self, node: ov.Node) -> bool:
        """False for inputs, outputs, and what can be computed when the model is compiled."""
        kind = node.get_type_name()
        sources = [port.get_node().get_name() for port in node.input_values()]
        is_shape = kind == "ShapeOf" and node.get_input_partial_shape(0).is_static
        if kind == "Constant" or is_shape or self._is_folded(kind, sources):
            self._folded.add(node.get_name())
            return False
        return kind not in ("Parameter", "Result")

    def _is_folded(self, kind: str, sources: list[str]) -> bool:
        return kind not in _NEVER_FOLDED and bool(sources) and all(name in self._folded for name in sources)

    def cost(self, node: ov.Node) -> OperatorCost:
        kind = node.get_type_name()
        inputs = node.input_values()
        moved = [*(port for port in inputs if port.get_node().get_name() not in self._folded), *node.outputs()]
        inner = _inner_cost(node, self._float_bytes)
        weights = sum(self._weight_bytes(port.get_node()) for port in inputs) + inner.weight_bytes
        activations = 0 if kind in _VIEWS else port_bytes(moved, self._float_bytes)
        macs = _MACS[kind](node) if kind in _MACS else inner.macs
        return OperatorCost(node.get_friendly_name(), kind, macs, weights, activations)

    def _weight_bytes(self, node: ov.Node) -> int:
        """Bytes of the constants behind a folded input that no operator has read before."""
        name = node.get_name()
        if name not in self._folded or name in self._counted or node.get_type_name() == "ShapeOf":
            return 0
        self._counted.add(name)
        if node.get_type_name() == "Constant":
            return _tensor_bytes(node.output(0), self._float_bytes)
        sources = [port.get_node() for port in node.input_values()]
        if node.get_type_name() == "FakeQuantize" and node.get_attributes()["levels"] <= INT8_LEVELS:
            self._counted.add(sources[0].get_name())
            return _length(node.output(0)) + sum(self._weight_bytes(source) for source in sources[1:])
        return sum(self._weight_bytes(source) for source in sources)


def _require_static_inputs(model: ov.Model) -> None:
    dynamic = [port for port in model.inputs if port.get_partial_shape().is_dynamic]
    if not dynamic:
        return
    found = ", ".join(f"'{p.get_any_name() if p.get_names() else '?'}' {p.get_partial_shape()}" for p in dynamic)
    raise ShapeError(
        f"The cost of {model.get_friendly_name()} depends on sizes that are open: {found}. Give every input its size."
    )


# Shapes


def _dims(port: ov.Output) -> tuple[int, ...]:
    """Lengths of a port's dimensions: the largest that it may have, 0 where there is no bound."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return (0,)
    # the largest possible length of an unbounded dimension is -1
    return tuple(d.get_length() if d.is_static else max(0, d.get_max_length()) for d in shape)


def _length(port: ov.Output) -> int:
    return math.prod(_dims(port))


def _tensor_bytes(port: ov.Output, float_bytes: int | None) -> int:
    kind = port.get_element_type()
    bits = kind.bitwidth
    if float_bytes is not None and kind.is_real() and bits > 8:
        bits = 8 * float_bytes
    return -(-_length(port) * bits // 8)


# Multiply-accumulates, by operator type


def _input(node: ov.Node, index: int) -> tuple[int, ...]:
    return _dims(node.input_value(index))


def _convolution(weights: int, skip: int) -> Callable[[ov.Node], int]:
    """Every output element is a sum over the weights of its channel. weights: number of that input; skip: of its
    dimensions those that count output channels."""
    return lambda node: _length(node.output(0)) * math.prod(_input(node, weights)[skip:])


def _transposed_convolution(skip: int) -> Callable[[ov.Node], int]:
    """Every input element goes to all output channels of its group, once for each element of the kernel."""
    return lambda node: math.prod(_input(node, 0)) * math.prod(_input(node, 1)[skip:])


def _matmul(node: ov.Node) -> int:
    a = _input(node, 0)
    depth = a[0] if len(a) == 1 else a[-2 if node.get_attributes()["transpose_a"] else -1]
    return _length(node.output(0)) * depth


def _attention(node: ov.Node) -> int:
    """Query times key, and the result times value. Masks save a device nothing that one could rely on."""
    query, key, out = _input(node, 0), _input(node, 1), _dims(node.output(0))
    return math.prod(out[:-1]) * key[-2] * (query[-1] + out[-1])


def _einsum(node: ov.Node) -> int:
    """Output elements times the lengths that are summed over."""
    left, _, right = node.get_attributes()["equation"].replace(" ", "").partition("->")
    lengths: dict[str, int] = {}
    for index, labels in enumerate(left.split(",")):
        before, _, after = labels.partition("...")
        shape = _input(node, index)
        lengths |= dict(zip(before, shape, strict=False))
        lengths |= dict(zip(reversed(after), reversed(shape), strict=False))
    return _length(node.output(0)) * math.prod(n for label, n in lengths.items() if label not in right)


def _recurrent(weights: int, has_time: bool) -> Callable[[ov.Node], int]:
    """Every row and time step multiplies both weight matrices. weights: number of the first of these two inputs."""

    def macs(node: ov.Node) -> int:
        rows = math.prod(_input(node, 0)[: 2 if has_time else 1])
        return rows * (math.prod(_input(node, weights)) + math.prod(_input(node, weights + 1)))

    return macs


_MACS: dict[str, Callable[[ov.Node], int]] = {
    "Convolution": _convolution(1, skip=1),
    "GroupConvolution": _convolution(1, skip=2),
    "DeformableConvolution": _convolution(2, skip=1),
    "ConvolutionBackpropData": _transposed_convolution(skip=1),
    "GroupConvolutionBackpropData": _transposed_convolution(skip=2),
    "MatMul": _matmul,
    "Einsum": _einsum,
    "ScaledDotProductAttention": _attention,
    "LSTMCell": _recurrent(3, has_time=False),
    "GRUCell": _recurrent(2, has_time=False),
    "RNNCell": _recurrent(2, has_time=False),
    "LSTMSequence": _recurrent(4, has_time=True),
    "GRUSequence": _recurrent(3, has_time=True),
    "RNNSequence": _recurrent(3, has_time=True),
}


def _inner_cost(node: ov.Node, float_bytes: int | None) -> Totals:
    """What runs inside of a loop or a condition; its activations are not counted."""
    kind = node.get_type_name()
    if kind == "If":
        branches = [_body_cost(node.get_function(index), float_bytes) for index in (0, 1)]
        return max(branches, key=lambda branch: (branch.macs, branch.weight_bytes))
    if kind in ("Loop", "TensorIterator"):
        body, times = _body_cost(node.get_function(), float_bytes), node.get_num_iterations()
        if times < 0 and body.macs:
            raise ShapeError(
                f"How often the loop '{node.get_friendly_name()}' runs depends on the data, so its cost is not known."
            )
        return Totals(body.macs * max(0, times), body.weight_bytes, 0)
    return Totals(0, 0, 0)


def _body_cost(body: ov.Model, float_bytes: int | None) -> Totals:
    counter = _Counter(float_bytes)
    return totals(counter.cost(node) for node in body.get_ordered_ops() if counter.is_operator(node))
