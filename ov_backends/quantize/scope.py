"""Which layers of a model may be quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino as ov

LAYER_TYPES = frozenset(
    {"Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData", "MatMul"}
)
"""Operators that hold weights: what INT8 speeds up, and what the gate may return to floating point."""

FLOAT_TYPES = (
    "Softmax", "MVN", "NormalizeL2", "GroupNormalization", "ReduceMean", "Interpolate",
    "LSTMCell", "LSTMSequence", "GRUCell", "GRUSequence", "RNNCell", "RNNSequence",
)  # fmt: skip
"""Sensitive to rounding: softmax, every form of normalization, and what feeds its own result back."""

OTHER_PRODUCTS = frozenset(
    {
        "Einsum", "ScaledDotProductAttention", "DeformableConvolution",
        "LSTMCell", "LSTMSequence", "GRUCell", "GRUSequence", "RNNCell", "RNNSequence",
    }
)  # fmt: skip
"""Operators that multiply too, and that nncf leaves alone."""
DATA_MOVEMENT = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Split", "VariadicSplit", "Slice", "StridedSlice", "Concat", "Pad"}
)
"""Operators that hand on what they are given, so that the numbers behind them are as quantized as those before."""
QUANTIZED_CONSTANTS = frozenset({"i8", "u8", "i4", "u4", "nf4", "f8e4m3", "f8e5m2", "f4e2m1"})
CONDITIONING = frozenset({"timestep_embedding", "context", "vector"})
"""Inputs of a UNet that say what to draw and how noisy it is, not what there is."""


def layers(model: ov.Model) -> list[ov.Node]:
    """The operators of LAYER_TYPES in execution order."""
    return [node for node in model.get_ordered_ops() if node.get_type_name() in LAYER_TYPES]


def is_quantized(model: ov.Model) -> str:
    """What shows that `model` is quantized already, or "" if it is not."""
    for node in model.get_ordered_ops():
        if node.get_type_name() in ("FakeQuantize", "FakeConvert"):
            return f"{node.get_type_name()} '{node.get_friendly_name()}'"
        is_weights = node.get_type_name() == "Constant" and len(node.get_output_shape(0)) > 1
        if is_weights and node.get_output_element_type(0).get_type_name() in QUANTIZED_CONSTANTS:
            users = [target.get_node() for target in node.output(0).get_target_inputs()]
            # integer tables that are only looked up are not weights of a layer
            if any(user.get_type_name() == "Convert" and user.get_output_element_type(0).is_real() for user in users):
                return f"weights '{node.get_friendly_name()}' of type {node.get_output_element_type(0).get_type_name()}"
    return ""


def left_in_float(model: ov.Model, precision: str) -> list[str]:
    """Names of what multiplies in a quantized `model` and does so in floating point all the same.

    precision: "int8" counts weights and activations; the others only weights, and layers without any are not named.
    """
    if precision == "int8":
        return [
            node.get_friendly_name()
            for node in model.get_ordered_ops()
            if node.get_type_name() in OTHER_PRODUCTS
            or (node.get_type_name() in LAYER_TYPES and not all(map(_is_low, node.input_values()[:2])))
        ]
    with_weights = [node for node in layers(model) if is_constant(node.input_value(1).get_node())]
    return [node.get_friendly_name() for node in with_weights if not _is_low(node.input_value(1))]


def _is_low(value: ov.Output) -> bool:
    """Whether a value is in few bits: from a FakeQuantize, or from weights that are stored so."""
    node = value.get_node()
    if node.get_type_name() in ("FakeQuantize", "FakeConvert"):
        return True
    if node.get_type_name() == "Constant":
        return value.get_element_type().get_type_name() in QUANTIZED_CONSTANTS
    if node.get_type_name() in DATA_MOVEMENT | {"Convert", "Multiply", "Subtract"}:
        is_decompression = node.get_type_name() not in DATA_MOVEMENT
        return (is_constant(node) or not is_decompression) and _is_low(node.input_value(0))
    return False


def float_layers(model: ov.Model) -> list[str]:
    """Names of layers that stay in floating point whatever their error.

    What depends on the conditioning alone: the timestep path, one small vector that steers every block, and the keys
    and values of the text. Their ranges are the prompt's, and ranges of another prompt change colours; they are a small
    part of the work. And the last convolution: its error is the error of the noise.
    """
    return [*_conditioning_path(model), *_last_convolution(model)]


def _conditioning_path(model: ov.Model) -> list[str]:
    starts = [p for p in model.get_parameters() if p.output(0).get_names() & CONDITIONING]
    path = {p.get_friendly_name() for p in starts}
    for node in model.get_ordered_ops() if starts else ():
        sources = [s for s in (i.get_source_output().get_node() for i in node.inputs()) if not is_constant(s)]
        if sources and all(source.get_friendly_name() in path for source in sources):
            path.add(node.get_friendly_name())
    return [node.get_friendly_name() for node in layers(model) if node.get_friendly_name() in path]


def is_constant(node: ov.Node) -> bool:
    """A constant, or what decompresses one."""
    while node.get_type_name() in ("Convert", "Reshape", "Transpose", "Multiply", "Subtract") and node.inputs():
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Constant"


def _last_convolution(model: ov.Model) -> list[str]:
    convolutions = [node.get_friendly_name() for node in layers(model) if "Convolution" in node.get_type_name()]
    return convolutions[-1:] if len(convolutions) > 1 else []
