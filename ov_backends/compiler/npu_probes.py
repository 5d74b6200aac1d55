"""The smallest models that show whether the NPU has an operator: each operator once, in each type of number it takes.

The operators are those of Stable Diffusion's submodels as this pack converts them, and those that other vision, speech
and language models use most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

IMAGE, ROWS, SEQUENCE = (1, 16, 8, 8), (1, 8, 16), (1, 4, 16)
INT8_RANGE = (-1.28, 1.27)

FLOATS = ("f16", "f32")
QUANTIZED = (*FLOATS, "i8")
"""i8: what surrounds the operator is quantized, as in a model of NNCF; arithmetic is the compiler's choice."""
NUMBERS = (*FLOATS, "i32", "i64")
ALL_NUMBERS = (*QUANTIZED, "i32", "i64")
LOGICAL = ("boolean",)


@dataclass
class Bench:
    """What a probe is built of: inputs and weights in one type of number."""

    kind: str
    parameters: list[ov.Node] = field(default_factory=list)

    def input(self, *shape: int, kind: str = "") -> ov.Node:
        import openvino as ov

        wanted = kind or self.kind
        port = _ops().parameter(list(shape), getattr(ov.Type, "f16" if wanted == "i8" else wanted))
        port.output(0).set_names({f"input{len(self.parameters)}"})
        self.parameters.append(port)
        return _quantized(port) if wanted == "i8" else port

    def weights(self, *shape: int) -> ov.Node:
        import numpy as np

        values = np.random.default_rng(0).uniform(-1, 1, shape)
        constant = _ops().constant(values.astype(np.float32 if self.kind == "f32" else np.float16))
        return _quantized(constant) if self.kind == "i8" else constant

    def model(self, node: Any) -> ov.Model:
        import openvino as ov

        node.set_friendly_name("probe")
        return ov.Model([node.output(0)], self.parameters, "probe")


@dataclass(frozen=True)
class Probe:
    """One operator in the types of number in `kinds`. variant: what sets it apart from others of its type, or ""."""

    build: Callable[[Bench], Any]
    kinds: tuple[str, ...]
    variant: str = ""

    def model(self, kind: str) -> tuple[str, ov.Model]:
        """The operator's type, and a model of static shapes that holds it under the name "probe"."""
        bench = Bench(kind)
        node = self.build(bench)
        node = getattr(node, "node", node)
        return node.get_type_name(), bench.model(node)


def probes() -> Iterator[Probe]:
    """All of them."""
    for build, groups in ((_unary, _UNARY), (_binary, _BINARY), (_reduction, _REDUCTIONS)):
        for names, kinds in groups:
            yield from (Probe(build(name), kinds) for name in names.split())
    yield from (Probe(*other) for other in _OTHERS)


def _ops() -> Any:
    from openvino import opset15

    return opset15


def _quantized(node: Any) -> Any:
    low, high = (_number(edge, node) for edge in INT8_RANGE)
    return _ops().fake_quantize(node, low, high, low, high, 256)


def _number(value: float, like: Any) -> Any:
    return _ops().constant(_array(value).astype(like.get_element_type().to_dtype()))


def _array(values: Any) -> np.ndarray:
    import numpy as np

    return np.array(values)


def _whole(*values: int) -> Any:
    """A constant of whole numbers, such as axes and sizes."""
    import numpy as np

    return _ops().constant(np.array(values, np.int64))


def _unary(name: str) -> Callable[[Bench], Any]:
    return lambda b: getattr(_ops(), name)(b.input(*IMAGE))


def _binary(name: str) -> Callable[[Bench], Any]:
    return lambda b: getattr(_ops(), name)(b.input(*IMAGE), b.input(*IMAGE))


def _reduction(name: str) -> Callable[[Bench], Any]:
    return lambda b: getattr(_ops(), name)(b.input(*IMAGE), _whole(2, 3), True)


_UNARY: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("relu sigmoid tanh", QUANTIZED),
    ("exp log sqrt sin cos tan erf floor ceiling softplus mish hswish hsigmoid softsign", FLOATS),
    ("asin acos atan sinh cosh asinh acosh atanh is_nan is_inf is_finite", FLOATS),
    ("absolute negative sign", NUMBERS),
    ("logical_not", LOGICAL),
)
_BINARY: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("add subtract multiply", ALL_NUMBERS),
    ("divide maximum minimum power squared_difference mod floor_mod", NUMBERS),
    ("greater greater_equal less less_equal equal not_equal", NUMBERS),
    ("logical_and logical_or logical_xor", LOGICAL),
    ("bitwise_and bitwise_or bitwise_xor", ("i32", "i64")),
)
_REDUCTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("reduce_mean reduce_max", QUANTIZED),
    ("reduce_sum reduce_min", NUMBERS),
    ("reduce_prod reduce_l1 reduce_l2", FLOATS),
    ("reduce_logical_and reduce_logical_or", LOGICAL),
)


def _convolution(b: Bench) -> Any:
    return _ops().convolution(b.input(*IMAGE), b.weights(16, 16, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1])


def _group_convolution(b: Bench) -> Any:
    return _ops().group_convolution(b.input(*IMAGE), b.weights(16, 1, 1, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1])


def _transposed_convolution(b: Bench) -> Any:
    weights = b.weights(16, 16, 2, 2)
    return _ops().convolution_backprop_data(b.input(*IMAGE), weights, strides=[2, 2])


def _convolution_3d(b: Bench) -> Any:
    edges = [1, 1, 1]
    return _ops().convolution(b.input(1, 4, 4, 8, 8), b.weights(4, 4, 3, 3, 3), edges, edges, edges, edges)


def _group_normalization(b: Bench) -> Any:
    return _ops().group_normalization(b.input(*IMAGE), b.weights(16), b.weights(16), 4, 1e-5)


def _batch_normalization(b: Bench) -> Any:
    return _ops().batch_norm_inference(b.input(*IMAGE), *(b.weights(16) for _ in range(4)), 1e-5)


def _attention(b: Bench) -> Any:
    return _ops().scaled_dot_product_attention(*(b.input(1, 2, 16, 16) for _ in range(3)))


def _interpolate(mode: str) -> Callable[[Bench], Any]:
    def build(b: Bench) -> Any:
        coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
        return _ops().interpolate(
            b.input(*IMAGE), _whole(16, 16), mode, "sizes", axes=_whole(2, 3),
            coordinate_transformation_mode=coordinates, nearest_mode="floor",
        )  # fmt: skip

    return build


def _lstm(b: Bench) -> Any:
    state = (b.input(1, 1, 16), b.input(1, 1, 16))
    weights = (b.weights(1, 64, 16), b.weights(1, 64, 16), b.weights(1, 64))
    return _ops().lstm_sequence(b.input(*SEQUENCE), *state, _lengths(), *weights, 16, "forward")


def _gru(b: Bench) -> Any:
    weights = (b.weights(1, 48, 16), b.weights(1, 48, 16), b.weights(1, 48))
    return _ops().gru_sequence(b.input(*SEQUENCE), b.input(1, 1, 16), _lengths(), *weights, 16, "forward")


def _lengths() -> Any:
    import numpy as np

    return _ops().constant(np.array([SEQUENCE[1]], np.int32))


def _loop(b: Bench) -> Any:
    """Four steps over a sequence."""
    import openvino as ov

    ops = _ops()
    step, kept = (
        ops.parameter([1, 1, 16], getattr(ov.Type, b.kind)),
        ops.parameter([1, 1, 16], getattr(ov.Type, b.kind)),
    )
    total = ops.tanh(ops.add(step, kept))
    body = ov.Model([total], [step, kept], "body")
    loop = ops.tensor_iterator()
    loop.set_function(body)
    loop.set_sliced_input(step, b.input(*SEQUENCE).output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(kept, b.input(1, 1, 16).output(0), total.output(0))
    loop.get_iter_value(total.output(0), -1)
    return loop


def _condition(b: Bench) -> Any:
    import openvino as ov

    ops = _ops()
    branches = []
    for make in (ops.relu, ops.tanh):
        port = ops.parameter(list(ROWS), getattr(ov.Type, b.kind))
        branches.append((port, ov.Model([make(port)], [port], "branch")))
    node = ops.if_op(b.input(1, kind="boolean").output(0))
    node.set_then_body(branches[0][1])
    node.set_else_body(branches[1][1])
    node.set_input(b.input(*ROWS).output(0), branches[0][0], branches[1][0])
    node.set_output(branches[0][1].get_results()[0], branches[1][1].get_results()[0])
    return node


_OTHERS: tuple[tuple[Any, ...], ...] = (
    # arithmetic of the MAC arrays
    (_convolution, QUANTIZED),
    (_group_convolution, QUANTIZED),
    (_transposed_convolution, QUANTIZED),
    (_convolution_3d, QUANTIZED, "3d"),
    (lambda b: _ops().matmul(b.input(*ROWS), b.weights(16, 16), False, False), QUANTIZED),
    (_attention, QUANTIZED),
    (lambda b: _ops().einsum([b.input(*ROWS), b.input(16, 16)], "bij,jk->bik"), FLOATS),
    (lambda b: _ops().max_pool(b.input(*IMAGE), [2, 2], [1, 1], [0, 0], [0, 0], [2, 2]), QUANTIZED),
    (lambda b: _ops().avg_pool(b.input(*IMAGE), [2, 2], [0, 0], [0, 0], [2, 2], True), QUANTIZED),
    (lambda b: _ops().adaptive_avg_pool(b.input(*IMAGE), _whole(2, 2)), FLOATS),
    # normalization and activation
    (_group_normalization, FLOATS),
    (_batch_normalization, FLOATS),
    (lambda b: _ops().mvn(b.input(*ROWS), _whole(2), True, 1e-5, "inside_sqrt"), FLOATS),
    (lambda b: _ops().normalize_l2(b.input(*IMAGE), _whole(1), 1e-5, "add"), FLOATS),
    (lambda b: _ops().lrn(b.input(*IMAGE), _whole(1), 1e-4, 0.75, 1.0, 5), FLOATS),
    (lambda b: _ops().softmax(b.input(*ROWS), 2), QUANTIZED),
    (lambda b: _ops().log_softmax(b.input(*ROWS), 2), FLOATS),
    (lambda b: _ops().gelu(b.input(*IMAGE), "erf"), QUANTIZED),
    (lambda b: _ops().swish(b.input(*IMAGE), _number(1.0, b.parameters[0])), QUANTIZED),
    (lambda b: _ops().prelu(b.input(*IMAGE), b.weights(16)), QUANTIZED),
    (lambda b: _ops().elu(b.input(*IMAGE), 1.0), FLOATS),
    (lambda b: _ops().selu(b.input(*IMAGE), _number(1.67, b.parameters[0]), _number(1.05, b.parameters[0])), FLOATS),
    (lambda b: _ops().hard_sigmoid(b.input(*IMAGE), *(_number(n, b.parameters[0]) for n in (0.2, 0.5))), FLOATS),
    (lambda b: _ops().clamp(b.input(*IMAGE), 0.0, 6.0), QUANTIZED),
    (lambda b: _ops().round(b.input(*IMAGE), "half_to_even"), FLOATS),
    (lambda b: _quantized(b.input(*IMAGE)), FLOATS),
    # shapes and copies
    (lambda b: _ops().transpose(b.input(*IMAGE), _whole(0, 2, 3, 1)), ALL_NUMBERS),
    (lambda b: _ops().reshape(b.input(*IMAGE), _whole(1, 16, 64), False), ALL_NUMBERS),
    (lambda b: _ops().squeeze(b.input(*ROWS), _whole(0)), NUMBERS),
    (lambda b: _ops().unsqueeze(b.input(*ROWS), _whole(0)), NUMBERS),
    (lambda b: _ops().concat([b.input(*IMAGE), b.input(*IMAGE)], 1), ALL_NUMBERS),
    (lambda b: _ops().split(b.input(*IMAGE), 1, 2), NUMBERS),
    (lambda b: _ops().variadic_split(b.input(*IMAGE), 1, [4, 12]), ALL_NUMBERS),
    (lambda b: _ops().slice(b.input(*IMAGE), _whole(0), _whole(8), _whole(1), _whole(1)), ALL_NUMBERS),
    (
        lambda b: _ops().strided_slice(b.input(*ROWS), _whole(0, 0, 0), _whole(1, 8, 16), _whole(1, 2, 1), [0], [0]),
        NUMBERS,
    ),
    (lambda b: _ops().broadcast(b.input(1, 1, 16), _whole(1, 8, 16)), NUMBERS),
    (lambda b: _ops().tile(b.input(*ROWS), _whole(1, 2, 1)), NUMBERS),
    (lambda b: _ops().pad(b.input(*IMAGE), _whole(0, 0, 1, 1), _whole(0, 0, 1, 1), "constant"), QUANTIZED),
    (lambda b: _ops().depth_to_space(b.input(*IMAGE), "blocks_first", 2), QUANTIZED),
    (lambda b: _ops().space_to_depth(b.input(*IMAGE), "blocks_first", 2), QUANTIZED),
    (lambda b: _ops().shuffle_channels(b.input(*IMAGE), 1, 4), FLOATS),
    (lambda b: _ops().roll(b.input(*ROWS), _whole(2), _whole(1)), NUMBERS),
    (lambda b: _ops().reverse_sequence(b.input(*ROWS), _ops().constant(_array([8])), 0, 1), FLOATS),
    (_interpolate("nearest"), QUANTIZED),
    (_interpolate("linear_onnx"), FLOATS, "linear"),
    (_interpolate("cubic"), FLOATS, "cubic"),
    (lambda b: _ops().grid_sample(b.input(*IMAGE), b.input(1, 8, 8, 2), {"mode": "bilinear"}), FLOATS),
    (lambda b: _ops().convert(b.input(*IMAGE), "i32"), FLOATS, "to i32"),
    (lambda b: _ops().convert(b.input(*IMAGE), "f16"), ("f32", "i32", "i64", "boolean")),
    # choosing and counting
    (lambda b: _ops().gather(b.input(*ROWS), b.input(4, kind="i32"), _whole(1)), NUMBERS),
    (lambda b: _ops().gather_elements(b.input(*ROWS), b.input(*ROWS, kind="i32"), 1), NUMBERS),
    (lambda b: _ops().gather_nd(b.input(*ROWS), b.input(1, 2, 2, kind="i32")), NUMBERS),
    (lambda b: _ops().scatter_update(b.input(8, 16), b.input(2, kind="i32"), b.input(2, 16), _whole(0)), NUMBERS),
    (lambda b: _ops().scatter_nd_update(b.input(8, 16), b.input(2, 1, kind="i32"), b.input(2, 16)), NUMBERS),
    (
        lambda b: _ops().scatter_elements_update(b.input(8, 16), b.input(2, 16, kind="i32"), b.input(2, 16), _whole(0)),
        NUMBERS,
    ),
    (lambda b: _ops().select(b.input(*IMAGE, kind="boolean"), b.input(*IMAGE), b.input(*IMAGE)), NUMBERS),
    (lambda b: _ops().topk(b.input(*ROWS), _k(), 2, "max", "value"), NUMBERS),
    (lambda b: _ops().cum_sum(b.input(*ROWS), _k(1)), NUMBERS),
    (
        lambda b: _ops().one_hot(
            b.input(8), _k(16), *(_ops().constant(_array(n).astype("float16")) for n in (1, 0)), -1
        ),
        ("i32", "i64"),
    ),
    (lambda b: _ops().bucketize(b.input(*ROWS), _ops().constant(_array([0.0, 1.0]).astype("float32"))), FLOATS),
    (lambda b: _ops().non_zero(b.input(*ROWS)), FLOATS),
    (lambda b: _ops().unique(b.input(16)), FLOATS),
    (lambda b: _ops().non_max_suppression(b.input(1, 16, 4), b.input(1, 2, 16), _k(4)), FLOATS),
    (
        lambda b: _ops().random_uniform(_whole(1, 16), _number(0, b.input(1)), _number(1, b.parameters[0]), b.kind),
        FLOATS,
    ),
    (lambda b: _ops().dft(b.input(1, 8, 16, 2), _whole(1, 2)), FLOATS),
    # with a memory
    (_lstm, FLOATS),
    (_gru, FLOATS),
    (_loop, FLOATS),
    (_condition, FLOATS),
)


def _k(value: int = 4) -> Any:
    """A constant without dimensions."""
    import numpy as np

    return _ops().constant(np.array(value, np.int64))
