"""Constants of a graph, plain or compressed (stored in fewer bits and widened by Convert, Subtract, Multiply)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

STORED = frozenset({"f16", "f32", "i8", "u8"})
"""Types of constants that can be cut and scaled here; 4 bits to a number, two in a byte, cannot."""
WIDENING = ("Convert", "Subtract", "Multiply")


def is_constant(value: ov.Output) -> bool:
    """Whether `value` depends on constants of the types in STORED alone, by way of what widens them."""
    node = value.get_node()
    if node.get_type_name() == "Constant":
        return node.get_output_element_type(0).get_type_name() in STORED
    return node.get_type_name() in WIDENING and all(map(is_constant, node.input_values()))


def values(value: ov.Output) -> np.ndarray:
    """What the constant `value` is, float32."""
    import numpy as np

    node = value.get_node()
    if node.get_type_name() == "Constant":
        return np.asarray(node.data).astype(np.float32)
    first, *rest = map(values, node.input_values())
    if node.get_type_name() == "Subtract":
        return first - rest[0]
    return first * rest[0] if rest else first


def single(data: np.ndarray) -> ov.Output:
    """A constant in FP32: vectors are small, and behind them a quantizer may be, which a rounding tips over."""
    import numpy as np
    from openvino import opset13 as ops

    return ops.constant(data.astype(np.float32)).output(0)


def like(value: ov.Output, data: np.ndarray) -> ov.Output:
    """A constant `data`, float32 in the graph, stored in 16 bits where `value` is."""
    import numpy as np
    import openvino as ov
    from openvino import opset13 as ops

    node = value.get_node()
    if node.get_type_name() == "Convert" and node.get_input_element_type(0) == ov.Type.f16:
        return ops.convert(ops.constant(data.astype(np.float16)), "f32").output(0)
    return single(data)


def rows(value: ov.Output, start: int, stop: int) -> ov.Output:
    """Rows start to stop of the constant weights `value` [rows, ...], as compressed as they were."""
    import numpy as np
    from openvino import opset13 as ops

    count, node = value.get_shape()[0], value.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        return ops.constant(np.ascontiguousarray(node.data[start:stop])).output(0)
    parts = [
        rows(part, start, stop) if part.get_shape() and part.get_shape()[0] == count else part
        for part in node.input_values()
    ]
    if kind == "Convert":
        return ops.convert(parts[0], node.get_output_element_type(0).get_type_name()).output(0)
    made = ops.subtract(*parts) if kind == "Subtract" else ops.multiply(*parts)
    return made.output(0)


def scaled_rows(value: ov.Output, factors: np.ndarray) -> ov.Output:
    """The constant weights `value` [rows, columns] with row i times factors[i]; their integers stay as they are."""
    from openvino import opset13 as ops

    node, column = value.get_node(), factors.reshape(-1, 1)
    if node.get_type_name() != "Multiply":
        return like(value, values(value) * column)
    integers, scale = node.input_values()
    return ops.multiply(integers, single(values(scale) * column)).output(0)
