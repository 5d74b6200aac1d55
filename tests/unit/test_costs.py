"""Multiply-accumulates and bytes of every operator, against independent counts in torch and by hand."""

from __future__ import annotations

from math import prod

import nncf
import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops
from ovpack.ov_backends.errors import ShapeError
from ovpack.ov_backends.graph.costs import OperatorCost, operator_costs, port_bytes, totals


def one(node: ov.Node, *inputs: ov.Node) -> OperatorCost:
    """The cost of the last operator of a model."""
    return operator_costs(ov.Model([node.output(0)], list(inputs)))[-1]


def parameter(*shape: int, kind: ov.Type = ov.Type.f32, name: str = "x") -> ov.Node:
    node = ops.parameter(list(shape), kind, name=name)
    node.output(0).set_names({name})
    return node


def weights(*shape: int, kind: type = np.float32) -> ov.Node:
    return ops.constant(np.ones(shape, kind))


X = parameter(2, 8, 10, 12)
PLAIN = {"pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}


@pytest.mark.parametrize(
    ("node", "macs"),
    [
        # [batch, out, 8, 10] x 3x3 x in
        (lambda: ops.convolution(X, weights(16, 8, 3, 3), [1, 1], [0, 0], [0, 0], [1, 1]), 2 * 16 * 8 * 10 * 9 * 8),
        (lambda: ops.convolution(X, weights(16, 8, 3, 3), [2, 2], [1, 1], [1, 1], [1, 1]), 2 * 16 * 5 * 6 * 9 * 8),
        # depthwise: one input channel for each output
        (lambda: ops.group_convolution(X, weights(8, 1, 1, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]), 2 * 8 * 120 * 9),
        (lambda: ops.group_convolution(X, weights(2, 6, 4, 1, 1), [1, 1], [0, 0], [0, 0], [1, 1]), 2 * 12 * 120 * 4),
        (lambda: ops.convolution_backprop_data(X, weights(8, 16, 2, 2), [2, 2]), 2 * 8 * 120 * 16 * 4),
        (lambda: ops.group_convolution_backprop_data(X, weights(2, 4, 3, 2, 2), [2, 2], **PLAIN), 2 * 8 * 120 * 3 * 4),
        (lambda: ops.matmul(X, weights(12, 7), False, False), 2 * 8 * 10 * 7 * 12),
        (lambda: ops.matmul(X, weights(7, 12), False, True), 2 * 8 * 10 * 7 * 12),
        (lambda: ops.matmul(X, weights(10, 7), True, False), 2 * 8 * 12 * 7 * 10),
        (lambda: ops.matmul(weights(10), X, False, False), 2 * 8 * 12 * 10),
        (lambda: ops.einsum([X, weights(10, 5)], "abcd,ce->abde"), 2 * 8 * 12 * 5 * 10),
        (lambda: ops.einsum([X, weights(12, 5)], "...d,de->...e"), 2 * 8 * 10 * 5 * 12),
        (lambda: ops.tanh(X), 0),
    ],
    ids=[
        *("conv", "stride", "depthwise", "groups", "transposed", "grouped transposed"),
        *("matmul", "b transposed", "a transposed", "vector", "einsum", "einsum ...", "tanh"),
    ],
)
def test_macs_of_an_operator(node, macs):
    assert one(node(), X).macs == macs


def test_attention_counts_both_products():
    query, key, value = parameter(1, 8, 64, 40), parameter(1, 8, 77, 40), parameter(1, 8, 77, 24)
    found = one(ops.scaled_dot_product_attention(query, key, value), query, key, value)
    assert found.macs == 8 * 64 * 77 * 40 + 8 * 64 * 77 * 24


@pytest.mark.parametrize(
    ("kind", "gates", "both_ways"),
    [(torch.nn.LSTM, 4, True), (torch.nn.GRU, 3, False), (torch.nn.RNN, 1, False)],
    ids=["LSTM both ways", "GRU", "RNN"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_recurrent_layer_multiplies_both_matrices_at_each_step(kind, gates, both_ways):
    layer = kind(12, 20, batch_first=True, bidirectional=both_ways).eval()
    model = ov.convert_model(layer, example_input=torch.zeros(3, 5, 12), input=[[3, 5, 12]])
    assert totals(operator_costs(model)).macs == 3 * 5 * gates * 20 * (12 + 20) * (2 if both_ways else 1)


def test_a_recurrent_cell_is_one_step():
    x, h, c = parameter(3, 12), parameter(3, 20), parameter(3, 20)
    found = one(ops.lstm_cell(x, h, c, weights(80, 12), weights(80, 20), weights(80), hidden_size=20), x, h, c)
    assert found.macs == 3 * 80 * (12 + 20) and found.weight_bytes == 4 * (80 * 12 + 80 * 20 + 80)
    found = one(ops.gru_cell(x, h, weights(60, 12), weights(60, 20), weights(60), hidden_size=20), x, h)
    assert found.macs == 3 * 60 * (12 + 20)


def test_a_loop_counts_as_often_as_it_runs_and_its_weights_once():
    rows, row = parameter(1, 6, 4), parameter(1, 1, 4)
    body = ov.Model([ops.matmul(row, weights(4, 5), False, False)], [row])
    loop = ops.tensor_iterator()
    loop.set_body(body)
    loop.set_sliced_input(row, rows.output(0), 0, 1, 1, -1, 1)
    result = loop.get_concatenated_slices(body.results[0].output(0), 0, 1, 1, -1, 1)
    found = operator_costs(ov.Model([result], [rows]))[-1]
    assert (found.macs, found.weight_bytes) == (6 * 4 * 5, 4 * 4 * 5)


def test_of_a_condition_the_dearer_branch_counts():
    condition = parameter(1, kind=ov.Type.boolean)
    x, inner = parameter(1, 4), [parameter(1, 4), parameter(1, 4)]
    branches = [ov.Model([ops.matmul(p, weights(4, n), False, False)], [p]) for p, n in zip(inner, (5, 9), strict=True)]
    node = ops.if_op(condition.output(0))
    node.set_then_body(branches[0])
    node.set_else_body(branches[1])
    node.set_input(x.output(0), inner[0], inner[1])
    result = node.set_output(branches[0].results[0], branches[1].results[0])
    assert operator_costs(ov.Model([result], [condition, x]))[-1].macs == 4 * 9


def test_activations_are_what_goes_in_and_out():
    assert one(ops.matmul(X, weights(12, 7), False, False), X).activation_bytes == 4 * 2 * 8 * 10 * (12 + 7)
    half = parameter(4, 6, kind=ov.Type.f16)
    assert one(ops.add(half, half), half).activation_bytes == 2 * 3 * 4 * 6
    assert one(ops.reshape(X, ops.constant([2, 960]), False), X).activation_bytes == 0
    assert port_bytes(ov.Model([ops.tanh(X)], [X]).inputs) == 4 * prod((2, 8, 10, 12))


# Weights


def dense(weight: ov.Node, x: ov.Node) -> list[OperatorCost]:
    return operator_costs(ov.Model([ops.matmul(x, weight, False, False)], [x]))


def test_half_precision_weights_behind_a_convert_are_two_bytes_each():
    costs = dense(ops.convert(weights(64, 32, kind=np.float16), "f32"), parameter(1, 64))
    assert [c.type for c in costs] == ["MatMul"], "what is done to weights is no operator"
    assert costs[0].weight_bytes == 2 * 64 * 32


@pytest.mark.parametrize(("mode", "bits"), [("INT8_ASYM", 8), ("INT4_SYM", 4)])
def test_compressed_weights_count_as_stored(mode, bits):
    x = parameter(1, 256)
    model = ov.Model([ops.matmul(x, weights(256, 128), False, False)], [x])
    settings = {"ratio": 1.0, "group_size": 64, "all_layers": True} if bits == 4 else {}
    model = nncf.compress_weights(model, mode=getattr(nncf.CompressWeightsMode, mode), **settings)
    whole = totals(operator_costs(model))
    assert whole.macs == 256 * 128
    # and a scale for each column or group
    assert 256 * 128 * bits / 8 < whole.weight_bytes < 1.1 * 256 * 128 * bits / 8


def test_a_fake_quantized_weight_is_a_byte():
    quantized = ops.fake_quantize(weights(64, 32), weights(1), weights(1), weights(1), weights(1), 255)
    assert dense(quantized, parameter(1, 64))[0].weight_bytes == 64 * 32 + 4 * 4


def test_shared_weights_are_counted_at_their_first_reader():
    x, shared = parameter(1, 64), ops.convert(weights(64, 64, kind=np.float16), "f32")
    first = ops.matmul(x, shared, False, False, name="first")
    second = ops.matmul(first, shared, False, False, name="second")
    found = {c.name: c.weight_bytes for c in operator_costs(ov.Model([second], [x]))}
    assert found == {"first": 2 * 64 * 64, "second": 0}


def test_a_device_that_computes_in_two_bytes_halves_floats_and_nothing_else():
    x, numbers = parameter(1, 64), parameter(1, 64, kind=ov.Type.i8, name="n")
    product = ops.matmul(x, weights(64, 32), False, False)
    model = ov.Model([product, ops.abs(numbers)], [x, numbers])
    halved = {c.type: c for c in operator_costs(model, float_bytes=2)}
    assert halved["MatMul"].weight_bytes == 2 * 64 * 32 and halved["MatMul"].activation_bytes == 2 * (64 + 32)
    assert halved["Abs"].activation_bytes == 2 * 64


# Shapes


def test_computed_shapes_are_no_operators():
    class Flatten(torch.nn.Module):
        def forward(self, x):
            return x.view(x.shape[0], -1).tanh()

    model = ov.convert_model(Flatten(), example_input=torch.zeros(1, 3, 4))
    model.reshape([2, 3, 4])
    assert {c.type for c in operator_costs(model)} == {"Reshape", "Tanh"}


def test_open_sizes_are_refused_with_the_names_of_their_inputs():
    x, y, z = parameter(1, -1, name="x"), parameter(1, 4, name="y"), parameter(-1, 4, name="z")
    model = ov.Model([ops.add(x, y), ops.tanh(z)], [x, y, z], "open")
    with pytest.raises(ShapeError, match=r"of open .* open: 'x' \[1,\?\], 'z' \[\?,4\]\. Give every input its size"):
        operator_costs(model)


def test_a_size_that_depends_on_the_data_counts_as_its_largest():
    x = parameter(2, 3)
    # [2, at most 6] of i64 in and out
    assert one(ops.abs(ops.non_zero(x)), x).activation_bytes == 2 * 8 * 2 * 6
