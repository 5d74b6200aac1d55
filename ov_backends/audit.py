"""Whether a model's activations fit FP16 and BF16: measured on real inputs, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from .errors import TensorError, last_line
from .inner_values import grouped, read_values
from .progress import Progress, log_progress, with_heartbeat
from .tensor_kinds import AnyTensor, round_to_bfloat16, to_numpy

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

FP16_MAX = 65504.0
"""Largest finite FP16 number: (2 - 2**-10) * 2**15, IEEE 754-2019 binary16."""

FP16_TINY = 2.0**-14
"""Smallest normal FP16 number; what is smaller loses bits, and some devices flush it to 0."""

FP16_SUBNORMAL = 2.0**-24
"""Smallest FP16 number above 0; what is smaller becomes 0 or this."""

GROUP_BYTES = 256 * 10**6
"""Activations that are read in one run, in float32; the model runs once for each such group."""

UNKNOWN_BYTES = 16 * 10**6
"""Assumed size of an output whose shape is not known before the run."""

CHUNK = 1 << 20
"""Values that are looked at together: temporary arrays stay small beside the activations."""

NAMED = 5
"""Layers named in the text; the JSON has all."""


@dataclass(frozen=True)
class LayerRange:
    """One output of one layer in float32, and what FP16 and BF16 would make of it.

    Shares are of all its values; errors are relative, ||rounded - x|| / ||x|| over the values that stay finite.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    max_abs: float
    """Of the finite values."""
    not_finite: int
    """NaN and infinities, there in float32 already."""
    overflow: int
    """Values beyond FP16_MAX."""
    flushed: float
    """Share of values other than 0 that are below FP16_SUBNORMAL."""
    subnormal: float
    """Share of values from FP16_SUBNORMAL to below FP16_TINY."""
    fp16_error: float
    bf16_error: float


@dataclass(frozen=True)
class Audit:
    """The ranges of a model's layers, in the order in which they are computed."""

    model: str
    layers: tuple[LayerRange, ...]

    @property
    def overflowing(self) -> list[LayerRange]:
        """Layers that FP16 cannot hold, the largest first."""
        return sorted((x for x in self.layers if x.overflow), key=lambda x: -x.max_abs)

    @property
    def fading(self) -> list[LayerRange]:
        """Layers that lose more than 1 % of their values to 0 in FP16, the worst first."""
        return sorted((x for x in self.layers if x.flushed > 0.01), key=lambda x: -x.flushed)

    @property
    def broken(self) -> list[LayerRange]:
        """Layers that hold NaN or infinity in float32 already."""
        return [x for x in self.layers if x.not_finite]

    @property
    def advice(self) -> str:
        if self.broken:
            return "The model itself fails on this input; no precision helps. Look at the first layer named."
        if self.overflowing:
            return "Run it in bf16 or fp32, or keep the layers named in fp32; in fp16 they become infinite."
        if self.fading:
            return "fp16 holds the largest values and loses small ones to 0; compare its outputs with fp32."
        return "fp16 holds every value of this input, with the smaller rounding error."

    def __str__(self) -> str:
        count = len(self.layers)
        bf16, fp16 = (max((getattr(x, n) for x in self.layers), default=0.0) for n in ("bf16_error", "fp16_error"))
        lines = [
            _sentence(self.broken, count, "hold NaN or infinity in fp32 already", lambda x: f"{x.not_finite} values"),
            _sentence(
                self.overflowing,
                count,
                "exceed 65504, the largest FP16 number",
                lambda x: f"max {x.max_abs:.1e}".replace("e+0", "e").replace("e+", "e"),
            ),
            _sentence(self.fading, count, "lose over 1 % of their values to 0 in FP16", lambda x: f"{x.flushed:.1%}"),
            f"Largest relative rounding error of a layer: {bf16:.1e} in BF16, {fp16:.1e} in FP16.",
            self.advice,
        ]
        return "\n".join(line for line in lines if line)

    def as_json(self) -> dict:
        return {"model": self.model, "advice": self.advice, "layers": [asdict(layer) for layer in self.layers]}


def audit_activations(
    model: ov.Model,
    inputs: Mapping[str, AnyTensor],
    progress: Progress = log_progress,
    group_bytes: int = GROUP_BYTES,
) -> Audit:
    """Run `model` in FP32 on the CPU and look at every floating-point output of every layer.

    inputs: name -> tensor, for each input of the model. The outputs are read in groups of about `group_bytes`, and the
    model runs once for each group up to its last layer. Weights, what depends on weights alone, and the insides of
    loops and branches are not looked at. The model stays as it is. `progress` may raise to stop between groups.
    """
    arrays = _checked(model, inputs)
    # names of inputs stay, and with their shapes fixed the sizes of all layers are known
    own = model.clone()
    try:
        own.reshape({name: list(array.shape) for name, array in arrays.items()})
    except RuntimeError as error:
        raise TensorError(
            f"{model.get_friendly_name()} does not take inputs of these shapes "
            f"({', '.join(f'{name} {list(array.shape)}' for name, array in arrays.items())}): {last_line(error)}"
        ) from error
    groups = list(grouped(_outputs(own), _bytes, group_bytes))
    layers: list[LayerRange] = []
    for index, group in enumerate(groups):
        text = f"Reading activations of {model.get_friendly_name()}, part {index + 1} of {len(groups)}"
        layers += with_heartbeat(partial(_read, own, group, arrays), text, progress)
    return Audit(model.get_friendly_name(), tuple(layers))


def measure_range(name: str, type_name: str, values: np.ndarray) -> LayerRange:
    """The range of one array of floats, any shape."""
    import numpy as np

    flat = values.reshape(-1)
    max_abs, counts, squares = 0.0, np.zeros(4, np.int64), np.zeros(4)
    for start in range(0, flat.size, CHUNK):
        chunk = flat[start : start + CHUNK].astype(np.float32)
        finite = chunk[np.isfinite(chunk)]
        size = np.abs(finite)
        fits = finite[size <= FP16_MAX]
        max_abs = max(max_abs, float(size.max(initial=0.0)))
        is_tiny = size < FP16_SUBNORMAL
        counts += np.array(
            [
                chunk.size - finite.size,
                finite.size - fits.size,
                np.count_nonzero(is_tiny & (size > 0)),
                np.count_nonzero(~is_tiny & (size < FP16_TINY)),
            ]
        )
        squares += [*_squares(fits, fits.astype(np.float16)), *_squares(finite, round_to_bfloat16(finite))]
    not_finite, overflow, flushed, subnormal = (int(count) for count in counts)
    return LayerRange(
        name=name,
        type=type_name,
        shape=tuple(values.shape),
        max_abs=max_abs,
        not_finite=not_finite,
        overflow=overflow,
        flushed=flushed / max(flat.size, 1),
        subnormal=subnormal / max(flat.size, 1),
        fp16_error=_relative(*squares[:2]),
        bf16_error=_relative(*squares[2:]),
    )


def _squares(exact: np.ndarray, rounded: np.ndarray) -> tuple[float, float]:
    """Sums of squares of the error and of the exact values, over the values that rounding left finite."""
    import numpy as np

    wide, close = exact.astype(np.float64), rounded.astype(np.float64)
    error = np.where(np.isfinite(close), close - wide, 0.0)
    return float(error @ error), float(wide @ wide)


def _relative(error: float, exact: float) -> float:
    return float((error / exact) ** 0.5) if exact else 0.0


def _checked(model: ov.Model, inputs: Mapping[str, AnyTensor]) -> dict[str, np.ndarray]:
    """The inputs as arrays, by the first name of their port."""
    arrays = {}
    for port in model.inputs:
        name = next((name for name in inputs if name in port.get_names()), None)
        if name is None:
            named = ", ".join(p.get_any_name() if p.get_names() else "(unnamed)" for p in model.inputs)
            raise TensorError(
                f"{model.get_friendly_name()} has the inputs {named}; got {', '.join(inputs) or 'none'}. Give a tensor "
                "for each, by name."
            )
        arrays[name] = to_numpy(inputs[name])
    return arrays


def _outputs(model: ov.Model) -> list[ov.Output]:
    """Floating-point outputs that depend on an input, in the order in which they are computed."""
    outputs, depends = [], set()
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_friendly_name()
        sources = (node.input_value(i).get_node().get_friendly_name() for i in range(node.get_input_size()))
        if kind == "Parameter" or any(source in depends for source in sources):
            depends.add(name)
            if kind not in ("Parameter", "Result", "Assign"):
                outputs += [o for o in node.outputs() if o.get_element_type().is_real()]
    return outputs


def _bytes(output: ov.Output) -> int:
    return 4 * math.prod(output.get_shape()) if output.get_partial_shape().is_static else UNKNOWN_BYTES


def _read(model: ov.Model, group: list[ov.Output], arrays: Mapping[str, np.ndarray]) -> list[LayerRange]:
    """Run the model as far as `group` needs and measure each of its outputs."""
    ranges = []
    for output, values in zip(group, read_values(model, group, arrays), strict=True):
        node = output.get_node()
        several = f".{output.get_index()}" if node.get_output_size() > 1 else ""
        ranges.append(measure_range(node.get_friendly_name() + several, node.get_type_name(), values))
    return ranges


def _sentence(layers: list[LayerRange], count: int, what: str, detail: Callable[[LayerRange], str]) -> str:
    if not layers:
        return ""
    named = ", ".join(f"{layer.name} ({detail(layer)})" for layer in layers[:NAMED])
    more = f" and {len(layers) - NAMED} more" if len(layers) > NAMED else ""
    return f"{len(layers)} of {count} layers {what}: {named}{more}."
