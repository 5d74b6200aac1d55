"""Models that Intel's NPU compiler refuses or crashes on, each with one layer "here" that is the cause. No torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
from openvino import opset15 as ops


def built(node, *inputs: ov.Node) -> ov.Model:
    node = getattr(node, "node", node)
    node.set_friendly_name("here")
    return ov.Model([node.output(0)], list(inputs), "refused")


def port(shape: list[int], kind: ov.Type = ov.Type.f16) -> ov.Node:
    made = ops.parameter(shape, kind)
    made.output(0).set_names({f"x{made.get_name()}"})
    return made


def whole(*values: int) -> ov.Node:
    return ops.constant(np.array(values, np.int64))


def tangent() -> ov.Model:
    x = port([1, 16, 8, 8])
    return built(ops.tan(x), x)


def unique() -> ov.Model:
    x = port([16])
    return built(ops.unique(x), x)


def multinomial() -> ov.Model:
    x = port([1, 8], ov.Type.f32)
    return built(ops.multinomial(x, ops.constant(np.array(4)), "i32", False, False, 1, 2), x)


def deformable_convolution() -> ov.Model:
    """Behind an ordinary convolution, which has the attribute that the compiler stumbles over as well."""
    x, offsets, weights = port([1, 8, 8, 8]), port([1, 18, 8, 8]), ops.constant(np.ones((8, 8, 3, 3), np.float16))
    edges = ([1, 1],) * 4
    before = ops.convolution(x, weights, *edges)
    return built(ops.deformable_convolution(before, offsets, weights, *edges), x, offsets)


def bucketize() -> ov.Model:
    x = port([1, 8, 16])
    return built(ops.bucketize(x, ops.constant(np.array([0.0, 1.0], np.float32))), x)


def bfloat16() -> ov.Model:
    x = port([1, 8, 16], ov.Type.bf16)
    x.set_friendly_name("here")
    return ov.Model([ops.multiply(x, x).output(0)], [x], "refused")


def text() -> ov.Model:
    x, y = port([4], ov.Type.string), port([4])
    x.set_friendly_name("here")
    return ov.Model([ops.add(y, y).output(0), x.output(0)], [x, y], "refused")


def seven_dimensions() -> ov.Model:
    x = port([1, 2, 2, 2, 2, 2, 8])
    return built(ops.transpose(x, whole(0, 6, 1, 2, 3, 4, 5)), x)


def too_large() -> ov.Model:
    x, edges = port([1, 64, 32768, 32768]), ([1, 1],) * 4
    return built(ops.convolution(x, ops.constant(np.ones((64, 64, 3, 3), np.float16)), *edges), x)


def reshape_by_input() -> ov.Model:
    x, sizes = port([1, 8, 16]), port([2], ov.Type.i64)
    return built(ops.reshape(x, sizes, False), x, sizes)


def size_of_values() -> ov.Model:
    """How many numbers are not zero decides a shape."""
    x = port([1, 8, 16])
    found = ops.non_zero(x)
    found.set_friendly_name("here")
    return ov.Model([ops.reduce_sum(ops.convert(found, "f16"), whole(1), False).output(0)], [x], "refused")


def loop_by_input() -> ov.Model:
    times, x, inner = port([], ov.Type.i64), port([1, 4]), port([1, 4])
    body = ov.Model([ops.add(inner, inner), ops.constant(np.array(True))], [inner], "body")
    loop = ops.loop(times.output(0), ops.constant(np.array(True)).output(0))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(inner, x.output(0), body.results[0].output(0))
    loop.get_iter_value(body.results[0].output(0), -1)
    return built(loop, times, x)


REFUSED: dict[str, tuple[Callable[[], ov.Model], str, str, str]] = {
    # name in refusals.json: model, kind, operator, what the user reads
    "unique": (unique, "operator", "Unique", "does not know this operator"),
    "multinomial": (multinomial, "operator", "Multinomial", "does not know this operator"),
    "deform": (deformable_convolution, "operator", "DeformableConvolution", "does not know this operator"),
    "bucketize": (bucketize, "type", "Bucketize", "Set its output type to i32"),
    "bf16": (bfloat16, "type", "Parameter", "does not take numbers of type bf16"),
    "string": (text, "type", "Parameter", "does not take numbers of type string"),
    "rank6": (seven_dimensions, "shape", "Transpose", "five or fewer"),
    "huge": (too_large, "memory", "Convolution", "Choose a smaller size"),
    "dynreshape": (reshape_by_input, "shape", "Reshape", "every size fixed"),
    "dyngather": (size_of_values, "shape", "NonZero", "every size fixed"),
    "loopdyn": (loop_by_input, "shape", "Loop", "a fixed number"),
}
