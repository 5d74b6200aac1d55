"""Rewrites of a graph: exact ones keep the output, approximate ones are told apart, and each does what it says."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from ovpack.ov_backends.errors import UseError
from ovpack.ov_backends.graph.rewrite import REWRITES, ApproximateRewrite, ExactRewrite, rewrite
from ovpack.ov_backends.graph.rewrites.text_keys import text_keys_model

SIDE, WIDTH, HEADS, TOKENS, TEXT = 4, 16, 2, 5, 12
"""Height and width of the picture, channels, heads, tokens of the text and their width."""
PIXELS = SIDE * SIDE

EXACT = [name for name, one in REWRITES.items() if isinstance(one, ExactRewrite) and name != "hoist-text-keys"]
EVERY_FORM = pytest.mark.parametrize("form", ["f32", "f16", "i8"])


@dataclass(frozen=True)
class Kit:
    """Makes parts of a transformer with random weights. form: "f32", "f16" (widened) or "i8" (with a scale a row)."""

    form: str = "f32"
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def numbers(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * self.random.standard_normal(shape)).astype(np.float32)

    def weights(self, rows: int, columns: int) -> ov.Node:
        plain = self.numbers(rows, columns, scale=columns**-0.5)
        if self.form == "f32":
            return ops.constant(plain)
        if self.form == "f16":
            return ops.convert(ops.constant(plain.astype(np.float16)), "f32")
        scale = np.abs(plain).max(axis=1, keepdims=True) / 127
        integers = ops.constant(np.round(plain / scale).astype(np.int8))
        return ops.multiply(ops.convert(integers, "f32"), ops.constant(scale))

    def quantized(self, value: ov.Node) -> ov.Node:
        ends = [ops.constant(np.float32(end)) for end in (-6, 6, -6, 6)]
        return ops.fake_quantize(value, *ends, levels=256) if self.form == "i8" else value

    def linear(self, x: ov.Node, width_in: int, width_out: int) -> ov.Node:
        return ops.matmul(x, self.weights(width_out, width_in), False, True)

    def biased(self, x: ov.Node, width_in: int, width_out: int) -> ov.Node:
        return ops.add(self.linear(x, width_in, width_out), ops.constant(self.numbers(1, 1, width_out)))

    def smoothed(self, value: ov.Node, width: int = WIDTH) -> ov.Node:
        """A factor for each channel, as SmoothQuant leaves."""
        return ops.multiply(value, ops.constant(0.5 + np.abs(self.numbers(1, 1, width))))

    def normalized(self, x: ov.Node) -> ov.Node:
        plain = ops.mvn(x, ops.constant([2]), True, 1e-5, "inside_sqrt")
        return ops.add(ops.multiply(plain, ops.constant(self.numbers(WIDTH))), ops.constant(self.numbers(WIDTH)))

    def attention(self, x: ov.Node, source: ov.Node, source_width: int) -> ov.Node:
        query = self.quantized(self.linear(x, WIDTH, WIDTH))
        key = self.quantized(self.linear(source, source_width, WIDTH))
        value = self.linear(source, source_width, WIDTH)
        mixed = ops.scaled_dot_product_attention(heads(query), heads(key), heads(value))
        merged = ops.reshape(ops.transpose(mixed, [0, 2, 1, 3]), [0, 0, WIDTH], True)
        return self.biased(self.quantized(self.smoothed(merged)), WIDTH, WIDTH)

    def feed_forward(self, x: ov.Node) -> ov.Node:
        both = self.biased(x, WIDTH, 8 * WIDTH)
        value, gate = ops.variadic_split(both, ops.constant(-1), ops.constant([4 * WIDTH, 4 * WIDTH])).outputs()
        product = self.smoothed(ops.multiply(value, ops.gelu(gate, "erf")), 4 * WIDTH)
        return self.biased(self.quantized(product), 4 * WIDTH, WIDTH)


def heads(x: ov.Node) -> ov.Node:
    return ops.transpose(ops.reshape(x, [0, 0, HEADS, WIDTH // HEADS], True), [0, 2, 1, 3])


def transformer(form: str = "f32") -> ov.Model:
    """A transformer block of a UNet: picture [1, WIDTH, SIDE, SIDE] and context [1, TOKENS, TEXT] in, tokens out."""
    kit = Kit(form)
    sample = ops.parameter([1, WIDTH, SIDE, SIDE], ov.Type.f32, name="sample")
    context = ops.parameter([1, TOKENS, TEXT], ov.Type.f32, name="context")
    for parameter in (sample, context):
        parameter.output(0).set_names({parameter.get_friendly_name()})
    x = ops.reshape(ops.transpose(sample, [0, 2, 3, 1]), [1, PIXELS, WIDTH], False)
    own = kit.quantized(kit.smoothed(kit.normalized(x)))
    x = ops.add(x, kit.attention(own, own, WIDTH))
    x = ops.add(x, kit.attention(kit.quantized(kit.smoothed(kit.normalized(x))), context, TEXT))
    x = ops.add(x, kit.feed_forward(kit.quantized(kit.smoothed(kit.normalized(x)))))
    return ov.Model([ops.result(x)], [sample, context], "transformer")


INPUTS = {"sample": Kit().numbers(1, WIDTH, SIDE, SIDE), "context": Kit().numbers(1, TOKENS, TEXT)}


def run(model: ov.Model, inputs: dict[str, np.ndarray] = INPUTS) -> np.ndarray:
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return next(iter(compiled(inputs).values()))


def max_abs_error(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).max())


def count(model: ov.Model, kind: str) -> int:
    return sum(node.get_type_name() == kind for node in model.get_ordered_ops())


def limit(form: str) -> float:
    """Of the error: rounding; in FP16 weights that are scaled are rounded once more; in INT8 a step may tip over."""
    return {"f32": 1e-4, "f16": 1e-2, "i8": 6 / 127 * 2}[form]


@EVERY_FORM
@pytest.mark.parametrize("name", EXACT)
def test_an_exact_rewrite_keeps_the_output_and_finds_its_places(name, form):
    model = transformer(form)
    changed = rewrite(model, [name])
    assert changed.places[name] > 0
    assert changed.is_exact
    error = max_abs_error(run(changed.model), run(model))
    assert error <= limit(form), error


@EVERY_FORM
def test_all_scales_are_folded_once_the_geglu_is_split(form):
    model = transformer(form)
    changed = rewrite(model, ["split-geglu", "fold-scales"])
    # three behind normalizations, two behind attention, one behind the GEGLU
    assert changed.places == {"split-geglu": 1, "fold-scales": 6}
    assert count(changed.model, "VariadicSplit") == 0
    # the INT8 weights of the halves have a scale each
    assert count(changed.model, "Multiply") == count(model, "Multiply") - 6 + (form == "i8")
    error = max_abs_error(run(changed.model), run(model))
    assert error <= limit(form), error


def test_a_factor_of_a_value_that_others_use_stays():
    x = ops.parameter([1, 3, WIDTH], ov.Type.f32, name="x")
    kit = Kit()
    shared = kit.linear(x, WIDTH, WIDTH)
    y = ops.add(kit.smoothed(shared), shared)
    model = ov.Model([ops.result(y)], [x], "shared")
    assert rewrite(model, ["fold-scales"]).places == {"fold-scales": 0}


def test_weights_keep_their_integers_when_they_are_scaled():
    model = transformer("i8")
    changed = rewrite(model, ["split-geglu", "fold-scales"]).model

    def integers(of: ov.Model) -> int:
        nodes = (node for node in of.get_ordered_ops() if node.get_type_name() == "Constant")
        return sum(node.data.size for node in nodes if node.get_output_element_type(0) == ov.Type.i8)

    assert integers(changed) == integers(model)


@EVERY_FORM
def test_text_keys_that_are_computed_outside_give_the_same(form):
    model = transformer(form)
    changed = rewrite(model, ["hoist-text-keys"])
    assert changed.places == {"hoist-text-keys": 1}
    names = {name for port in changed.model.inputs for name in port.get_names()}
    assert names == {"sample", "text_key_0", "text_value_0"}
    outside = ov.Core().compile_model(text_keys_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    made = outside({"context": INPUTS["context"]})
    keys = {name: made[name] for name in ("text_key_0", "text_value_0")}
    error = max_abs_error(run(changed.model, {"sample": INPUTS["sample"], **keys}), run(model))
    assert error <= 1e-4, error


@EVERY_FORM
@pytest.mark.parametrize("name", [n for n, one in REWRITES.items() if isinstance(one, ApproximateRewrite)])
def test_fewer_keys_change_the_output_a_little_and_are_not_called_exact(name, form):
    model = transformer(form)
    changed = rewrite(model, [name])
    assert changed.places == {name: 1}, "the attention to the text has no picture to shrink"
    assert not changed.is_exact
    shapes = [
        node.get_input_shape(1)[2] for node in changed.model.get_ordered_ops() if "Attention" in node.get_type_name()
    ]
    assert shapes == [PIXELS // int(name[-1]) ** 2, TOKENS]
    expected, given = run(model).reshape(-1), run(changed.model).reshape(-1)
    cosine = expected @ given / np.linalg.norm(expected) / np.linalg.norm(given)
    # of a picture that is noise; real ones are smoother
    assert 0.7 < cosine < 0.999999, cosine


@pytest.mark.parametrize("name", ["average-keys-2", "thin-out-keys-2"])
def test_fewer_keys_are_exact_where_each_square_is_of_one_colour(name):
    model = transformer()
    squares = Kit().numbers(1, WIDTH, SIDE // 2, SIDE // 2).repeat(2, axis=2).repeat(2, axis=3)
    inputs = {**INPUTS, "sample": squares}
    error = max_abs_error(run(rewrite(model, [name]).model, inputs), run(model, inputs))
    assert error <= 1e-4, error


def test_the_model_that_is_given_stays_as_it_is():
    model = transformer()
    before = [node.get_friendly_name() for node in model.get_ordered_ops()]
    rewrite(model, REWRITES)
    assert [node.get_friendly_name() for node in model.get_ordered_ops()] == before
    assert {name for port in model.inputs for name in port.get_names()} == {"sample", "context"}


def test_a_rewrite_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(UseError, match="There is no rewrite 'faster'; there are split-geglu, fold-scales"):
        rewrite(transformer(), ["faster"])
