"""Values inside a model: read as far as they need it, and in groups of a bounded size."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openvino import opset13 as ops
from ovpack.ov_backends.errors import InferenceError, last_line
from ovpack.ov_backends.inner_values import grouped, read_values


def two_inputs() -> ov.Model:
    """doubled = 2 x; tripled = 3 other; y = doubled + tripled."""
    x, other = (ops.parameter([1, 4], ov.Type.f32, name=name) for name in ("x", "other"))
    for port in (x, other):
        port.output(0).set_names({port.get_friendly_name()})
    doubled = ops.multiply(x, ops.constant(np.float32(2)), name="doubled")
    tripled = ops.multiply(other, ops.constant(np.float32(3)), name="tripled")
    return ov.Model([ops.add(doubled, tripled, name="y")], [x, other], "two inputs")


def outputs(model: ov.Model, *names: str) -> list[ov.Output]:
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    return [nodes[name].output(0) for name in names]


def test_values_come_in_the_order_asked_for_and_the_model_stays_as_it_is():
    model = two_inputs()
    ones = {name: np.ones((1, 4), np.float32) for name in ("x", "other")}
    found = read_values(model, outputs(model, "y", "doubled", "tripled"), ones)
    assert [float(values[0, 0]) for values in found] == [5, 2, 3]
    assert len(model.outputs) == 1 and len(model.inputs) == 2


def test_only_the_inputs_that_a_value_depends_on_are_needed():
    model = two_inputs()
    (found,) = read_values(model, outputs(model, "doubled"), {"x": np.ones((1, 4), np.float32)})
    assert found.tolist() == [[2, 2, 2, 2]]


def test_a_failure_names_the_model_and_the_device():
    model = two_inputs()
    with pytest.raises(InferenceError, match="two inputs failed on CPU while values inside it were read: "):
        read_values(model, outputs(model, "doubled"), {"x": np.ones((1, 5), np.float32)})


@given(st.lists(st.integers(0, 20)), st.integers(1, 30))
def test_groups_keep_the_order_and_the_limit(sizes, limit):
    groups = list(grouped(sizes, lambda size: size, limit))
    assert [size for group in groups for size in group] == sizes
    assert all(len(group) == 1 or sum(group) <= limit for group in groups)
    assert all(sum(a) + b[0] > limit for a, b in pairwise(groups)), "no group ends too early"


def test_the_last_line_of_an_error_says_what():
    assert last_line(RuntimeError("Exception from src/core.cpp:12:\n\n  Cannot read.\n")) == "Cannot read"
    assert last_line(RuntimeError()) == "no reason given"
