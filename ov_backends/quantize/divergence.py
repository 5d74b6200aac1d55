"""Where two versions of a model begin to differ: layer by layer, on one input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import CompareError
from ..inner_values import grouped, read_values
from ..progress import Progress, log_progress, with_heartbeat
from .gate import LIMIT, Sample, cosine
from .scope import is_constant, layers

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

CHUNK_BYTES = 2**29
"""Values read in one inference: all layers of a UNet at once would be gigabytes, each chunk is compiled anew."""

NOISE = 1e-4
"""Loss of cosine that FP16 rounding alone explains."""

GROWTH = 3.0
"""An error that grows by this factor within one layer is the layer's own, not carried on from before."""

PERMUTED = 0.9
"""Rounding leaves more in common than this; another order of the same values does not."""

RULES = 10.0
"""A channel that reaches this many times as far as the median one takes the range from the others."""

LOOKS = {
    "per-tensor": (
        "one channel has values far larger than the others and takes the whole range",
        "use per-channel scales or SmoothQuant for this layer, clip at a percentile, or keep the layer in float",
    ),
    "layout": (
        "the values are the same in another order",
        "check NCHW against NHWC and every transpose before this layer",
    ),
    "range": (
        "values beyond the calibrated range are cut off",
        "calibrate on inputs like these, raise the percentile or use min-max",
    ),
    "rounding": (
        "the error is spread over the whole layer",
        "give this layer more bits: keep it in float, or use int8-weights",
    ),
}


@dataclass(frozen=True)
class LayerDifference:
    """One layer in both models on the same input.

    cosine, max_abs_error: of its output; input_cosine: of what it reads; balanced, input_balanced: the same as the
    mean over channels, in which one huge channel cannot hide the loss of the others; channel_errors: greatest absolute
    error in each output channel; looks: the kind of error, a key of LOOKS.
    """

    name: str
    type: str
    cosine: float
    input_cosine: float
    balanced: float
    input_balanced: float
    max_abs_error: float
    channel_errors: list[float]
    looks: str

    @property
    def worst_channel(self) -> int:
        return max(range(len(self.channel_errors)), key=self.channel_errors.__getitem__)

    @property
    def jump(self) -> float:
        """Cosine lost within this layer, channels counting alike."""
        return self.input_balanced - self.balanced

    @property
    def blame(self) -> float:
        """Cosine lost here times how often the loss has grown here: high for an error's sources, not its victims."""
        return self.jump * (1 - self.balanced) / (1 - self.input_balanced + 10 * NOISE)

    @property
    def is_jump(self) -> bool:
        return 1 - self.balanced > NOISE + GROWTH * (1 - self.input_balanced)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "cosine": round(self.cosine, 7),
            "input_cosine": round(self.input_cosine, 7),
            "max_abs_error": self.max_abs_error,
            "worst_channel": self.worst_channel,
            "worst_channel_error": self.channel_errors[self.worst_channel],
            "looks": self.looks,
        }


@dataclass(frozen=True)
class Divergence:
    """All compared layers in execution order and the first at which the error jumps.

    outputs: cosine of each output of the model; unmatched: layers that only one of the two models has.
    """

    layers: list[LayerDifference]
    outputs: dict[str, float]
    unmatched: list[str] = field(default_factory=list)
    limit: float = LIMIT

    @property
    def worst_output(self) -> float:
        return min(self.outputs.values())

    @property
    def passed(self) -> bool:
        return self.worst_output >= self.limit

    @property
    def first(self) -> LayerDifference | None:
        """The first layer in which the error grows as much as anywhere; None if rounding explains every layer."""
        jumps = [layer for layer in self.layers if layer.is_jump]
        greatest = max((layer.blame for layer in jumps), default=0.0)
        return next((layer for layer in jumps if layer.blame >= greatest / 2), None)

    @property
    def looks(self) -> str:
        return self.first.looks if self.first else ""

    @property
    def advice(self) -> str:
        return LOOKS[self.looks][1] if self.looks else ""

    def text(self) -> str:
        """For people: the outputs, the first jump, what it looks like and what to try."""
        lines = [f"Output '{name}': cosine {value:.6f}" for name, value in self.outputs.items()]
        if self.first:
            layer = self.first
            lines.append(
                f"The error first jumps at {layer.type} '{layer.name}' (layer {self.layers.index(layer) + 1} of "
                f"{len(self.layers)}): cosine {layer.input_cosine:.6f} before, {layer.cosine:.6f} after, "
                f"max abs error {layer.max_abs_error:.4g}, worst channel {layer.worst_channel}."
            )
            lines.append(f"It looks {layer.looks}: {LOOKS[layer.looks][0]}. Try: {LOOKS[layer.looks][1]}.")
        else:
            lines.append(f"No layer of {len(self.layers)} loses more than rounding explains.")
        if self.unmatched:
            lines.append(f"{len(self.unmatched)} layers are in one model only, such as '{self.unmatched[0]}'.")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "outputs": self.outputs,
            "first": self.first.as_json() if self.first else None,
            "looks": self.looks,
            "advice": self.advice,
            "layers": [layer.as_json() for layer in self.layers],
            "unmatched": self.unmatched,
        }


def compare_layers(
    reference: ov.Model,
    other: ov.Model,
    inputs: Sample,
    devices: tuple[str, str] = ("CPU", "CPU"),
    progress: Progress = log_progress,
    limit: float = LIMIT,
) -> Divergence:
    """Run both models on `inputs` (name -> array) and compare every layer that has the same name in both.

    devices: where the reference and the other run. Raises CompareError if the models have no layer or output in common.
    """
    pairs = _Pair(reference, other, inputs, devices)
    names = {layer.get_friendly_name() for layer in layers(other)}
    common = [layer for layer in layers(reference) if layer.get_friendly_name() in names]
    if not common:
        raise CompareError(
            "The two models have no layer name in common, so nothing says which layer answers to which. Compare two "
            "versions of one model: before and after quantizing, or on two devices."
        )
    found: list[LayerDifference] = []
    for chunk in pairs.chunks([layer.get_friendly_name() for layer in common]):
        text = f"Comparing layers {len(found) + 1} to {len(found) + len(chunk)} of {len(common)}"
        found += with_heartbeat(partial(pairs.compare, chunk), text, progress)
    mine = {layer.get_friendly_name() for layer in common}
    unmatched = sorted({n.get_friendly_name() for n in [*layers(reference), *layers(other)]} - mine)
    return Divergence(found, pairs.outputs(), unmatched, limit)


def drifting_layers(reference: ov.Model, other: ov.Model, inputs: Sample, progress: Progress) -> list[LayerDifference]:
    """Layers whose own error is more than rounding explains, the one most to blame first."""
    compared = compare_layers(reference, other, inputs, progress=progress)
    return sorted((layer for layer in compared.layers if layer.jump > NOISE), key=lambda layer: -layer.blame)


class _Pair:
    """Two models that are asked for the same inner values."""

    def __init__(self, reference: ov.Model, other: ov.Model, inputs: Sample, names: tuple[str, str]):
        self._models = [_static(model, inputs) for model in (reference, other)]
        self._inputs, self._devices = inputs, names
        self._nodes = [{n.get_friendly_name(): n for n in model.get_ordered_ops()} for model in self._models]

    def chunks(self, names: Sequence[str]) -> Iterator[list[str]]:
        """`names` in order, in groups whose values fit into CHUNK_BYTES."""
        return grouped(names, self._bytes, CHUNK_BYTES)

    def _bytes(self, name: str) -> int:
        node = self._nodes[0][name]
        ports = [node.output(0), *(node.input_value(number) for number in self._activations(name))]
        return sum(4 * math.prod(port.get_shape()) for port in ports)

    def compare(self, names: Sequence[str]) -> list[LayerDifference]:
        mine = self._read(0, names, fed=False)
        given = self._read(1, names, fed=True)
        return [self._difference(name, mine[name], given[name]) for name in names]

    def outputs(self) -> dict[str, float]:
        results = [self._values(side, [r.input_value(0) for r in self._models[side].get_results()]) for side in (0, 1)]
        ports = [p.get_any_name() if p.get_names() else f"output {i}" for i, p in enumerate(self._models[0].outputs)]
        if len(results[0]) != len(results[1]):
            raise CompareError(f"One model has {len(results[0])} outputs, the other {len(results[1])}.")
        return {name: cosine(a, b) for name, a, b in zip(ports, *results, strict=True)}

    def _read(self, side: int, names: Sequence[str], fed: bool) -> dict[str, dict[str, np.ndarray]]:
        """For each layer: its output, what it reads in the reference's sense, and what it is really fed (quantized).

        A weighted layer reads one tensor; a product of two activations, as in attention, reads two.
        """
        nodes = self._nodes[side]
        wanted: dict[str, dict[str, tuple[str, int]]] = {}
        order: list[tuple[str, int]] = []
        for name in names:
            ports = {"output": (name, 0)}
            for number in self._activations(name):
                ports[f"input {number}"] = _source(self._nodes[0][name], number)
                if fed:
                    ports[f"fed {number}"] = _source(nodes[name], number)
            wanted[name] = {role: port for role, port in ports.items() if port[0] in nodes}
            order += wanted[name].values()
        unique = list(dict.fromkeys(order))
        read = self._values(side, [nodes[owner].output(number) for owner, number in unique])
        values = dict(zip(unique, read, strict=True))
        return {name: {role: values[port] for role, port in ports.items()} for name, ports in wanted.items()}

    def _values(self, side: int, outputs: Sequence[ov.Output]) -> list[np.ndarray]:
        return read_values(self._models[side], outputs, self._inputs, self._devices[side])

    def _activations(self, name: str) -> list[int]:
        """Numbers of the layer's inputs that are not weights, as the reference has them."""
        inputs = self._nodes[0][name].input_values()
        return [number for number, source in enumerate(inputs) if not is_constant(source.get_node())]

    def _difference(
        self, name: str, mine: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]
    ) -> LayerDifference:
        import numpy as np

        node = self._nodes[0][name]
        a, b = mine["output"], given["output"]
        if a.shape != b.shape:
            raise CompareError(f"Layer '{name}' gives {list(a.shape)} in one model and {list(b.shape)} in the other.")
        axis = a.ndim - 1 if node.get_type_name() == "MatMul" else min(1, a.ndim - 1)
        error = np.abs(np.nan_to_num(a.astype(np.float64) - b.astype(np.float64), nan=np.inf))
        channels = error.max(axis=tuple(i for i in range(a.ndim) if i != axis))
        inputs = [(mine[role], given[role]) for role in mine if role in given and role != "output"]
        before = min((cosine(x, y) for x, y in inputs), default=1.0)
        balanced_before = min((_balanced(x, y, axis == 1) for x, y in inputs), default=1.0)
        kind = _looks_of_output(a, b)
        for role in () if kind else [role for role in mine if role.startswith("input")]:
            kind = kind or _looks_of_input(mine[role], given.get(role.replace("input", "fed")))
        kind = kind or "rounding"
        return LayerDifference(
            name, node.get_type_name(), cosine(a, b), before, _balanced(a, b, axis == 1), balanced_before,
            float(error.max()), channels.tolist(), kind,
        )  # fmt: skip


def _static(model: ov.Model, inputs: Sample) -> ov.Model:
    copy = model.clone()
    names = {port.get_any_name() for port in copy.inputs}
    if names != set(inputs):
        raise CompareError(
            f"The values given are for {', '.join(sorted(inputs))}, and a model takes {', '.join(sorted(names))}. "
            "Give one array for each input; both models must have the same ones."
        )
    copy.reshape({name: list(array.shape) for name, array in inputs.items()})
    return copy


def _balanced(a: np.ndarray, b: np.ndarray, is_second_axis: bool) -> float:
    """Mean over the channels (second or last axis) of their cosines, or the whole cosine if that is less."""
    import numpy as np

    if a.shape != b.shape or a.ndim < 2:
        return cosine(a, b)
    axis = 1 if is_second_axis else a.ndim - 1
    x, y = (np.moveaxis(array.astype(np.float64), axis, 0).reshape(a.shape[axis], -1) for array in (a, b))
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return 0.0
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    # a channel that is zero in both is equal
    cosines = np.where(lengths > 0, (x * y).sum(axis=1) / np.maximum(lengths, 1e-300), (x == y).all(axis=1))
    return min(float(cosines.mean()), cosine(a, b))


def _source(node: ov.Node, number: int) -> tuple[str, int]:
    """The operator and the output of it that `node` reads as its input `number`."""
    source = node.input_value(number)
    return source.get_node().get_friendly_name(), source.get_index()


def _looks_of_output(a: np.ndarray, b: np.ndarray) -> str:
    """The kind of error that an output alone shows, or ""."""
    import numpy as np

    if not np.isfinite(b).all():
        return "range"
    is_permuted = cosine(a, b) < PERMUTED and cosine(np.sort(a, axis=None), np.sort(b, axis=None)) > 1 - NOISE
    return "layout" if is_permuted else ""


def _looks_of_input(source: np.ndarray, fed: np.ndarray | None) -> str:
    """The kind of error that quantizing one input makes, or ""; source: what should be read, fed: what is."""
    import numpy as np

    if fed is None or source.shape != fed.shape:
        return ""
    error = (source.astype(np.float64) - fed) ** 2
    for axis in {min(1, source.ndim - 1), source.ndim - 1}:
        reach = np.abs(source).max(axis=tuple(i for i in range(source.ndim) if i != axis))
        rest = np.delete(np.arange(len(reach)), int(reach.argmax()))
        rules = len(rest) > 1 and reach.max() > RULES * max(float(np.median(reach)), 1e-12)
        if rules and cosine(np.take(source, rest, axis), np.take(fed, rest, axis)) < LIMIT:
            return "per-tensor"
    outside = (source > fed.max()) | (source < fed.min())
    return "range" if error[outside].sum() > 0.5 * error.sum() > 0 else ""
