"""A session runs batches as requests that are made once, shares memory, and survives a failing one."""

from __future__ import annotations

import openvino as ov
import pytest
import torch
from openvino import opset13 as ops
from ovpack.ov_backends.errors import InferenceError, ShapeError
from ovpack.ov_backends.runtime.session import Session

SHAPE = (4, 6)
ROWS = pytest.mark.parametrize("rows", [1, 2])


class WatchedRequest:
    """A real request that says what was done to it, and fails where told."""

    def __init__(self, real: ov.InferRequest, log: list[str], number: int):
        self.real, self.log, self.number = real, log, number
        self.fails_at = ""
        self.bound: dict[str, int] = {}

    def set_tensor(self, port, tensor: ov.Tensor) -> None:
        name = port if isinstance(port, str) else port.get_any_name()
        self.bound[name] = tensor.data.ctypes.data
        self.real.set_tensor(port, tensor)

    def get_tensor(self, port) -> ov.Tensor:
        return self.real.get_tensor(port)

    def start_async(self) -> None:
        self.log.append(f"start {self.number}")
        if self.fails_at == "start":
            raise RuntimeError("ZE_RESULT_ERROR_DEVICE_LOST")
        self.real.start_async()

    def wait(self) -> None:
        self.log.append(f"wait {self.number}")
        self.real.wait()
        if self.fails_at == "wait":
            raise RuntimeError("ZE_RESULT_ERROR_DEVICE_LOST")


class WatchedModel:
    """A real compiled model whose requests are watched."""

    def __init__(self, real: ov.CompiledModel):
        self.real, self.log = real, []
        self.requests: list[WatchedRequest] = []

    @property
    def inputs(self):
        return self.real.inputs

    @property
    def outputs(self):
        return self.real.outputs

    def create_infer_request(self) -> WatchedRequest:
        self.requests.append(WatchedRequest(self.real.create_infer_request(), self.log, len(self.requests)))
        return self.requests[-1]


def compiled(rows: int | None) -> WatchedModel:
    """sum = a + b and product = a * b, both [rows, *SHAPE]."""
    a, b = (ops.parameter([rows or -1, *SHAPE], ov.Type.f32) for _ in range(2))
    outputs = [ops.add(a, b), ops.multiply(a, b)]
    for node, name in zip([a, b, *outputs], ("a", "b", "sum", "product"), strict=True):
        node.output(0).set_names({name})
    return WatchedModel(ov.Core().compile_model(ov.Model(outputs, [a, b]), "CPU"))


def inputs(batch: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(batch, *SHAPE, generator=generator) for name in "ab"}


def check(found: dict[str, torch.Tensor], given: dict[str, torch.Tensor]) -> None:
    assert torch.equal(found["sum"], given["a"] + given["b"])
    assert torch.equal(found["product"], given["a"] * given["b"])


@ROWS
def test_a_batch_is_cut_into_requests_all_started_before_any_is_waited_for(rows):
    model = compiled(rows)
    outputs, seconds = Session(model, rows)(given := inputs(2 * rows))
    check(outputs, given)
    assert model.log == ["start 0", "start 1", "wait 0", "wait 1"]
    assert seconds > 0


def test_requests_are_made_once_and_used_again():
    model = compiled(1)
    session = Session(model, 1)
    for batch in (2, 3, 1, 3):
        check(session(given := inputs(batch, batch))[0], given)
    assert (len(model.requests), session.calls) == (3, 4)


@ROWS
def test_contiguous_inputs_are_shared_without_a_copy(rows):
    model = compiled(rows)
    given = inputs(2 * rows)
    Session(model, rows)(given)
    for index, request in enumerate(model.requests):
        for name in "ab":
            assert request.bound[name] == given[name][index * rows].data_ptr()


@ROWS
def test_every_request_writes_straight_into_the_result(rows):
    model = compiled(rows)
    outputs, _ = Session(model, rows)(inputs(2 * rows))
    for index, request in enumerate(model.requests):
        for name, tensor in outputs.items():
            assert request.bound[name] == tensor[index * rows].data_ptr()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
        lambda t: torch.stack([t, t], dim=-1)[..., 0],
        lambda t: t[:1].expand(2, *SHAPE),
        lambda t: t.half(),
        lambda t: t.clone().requires_grad_(),
    ],
    ids=["transposed", "strided", "expanded", "half", "requires_grad"],
)
def test_inputs_of_any_layout_and_type_work(change):
    given = {name: change(tensor) for name, tensor in inputs(2).items()}
    check(Session(compiled(1), 1)(given)[0], {name: tensor.detach().float() for name, tensor in given.items()})


def test_inputs_made_in_comfyuis_inference_mode_work():
    with torch.inference_mode():
        given = inputs(2)
        check(Session(compiled(1), 1)(given)[0], given)


@pytest.mark.parametrize("rows", [1, None])
def test_a_later_call_does_not_change_an_earlier_result(rows):
    session = Session(compiled(rows), rows)
    first, _ = session(given := inputs(2, seed=1))
    session(inputs(2, seed=2))
    check(first, given)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_dynamic_model_takes_any_batch_whole(batch):
    model = compiled(None)
    check(Session(model, None)(given := inputs(batch))[0], given)
    assert model.log == ["start 0", "wait 0"]


def test_a_model_with_one_dynamic_output_binds_none_of_them():
    a = ops.parameter([1, 4], ov.Type.f32)
    outputs = [ops.relu(a), ops.non_zero(a)]
    for node, name in zip([a, *outputs], ("a", "relu", "where"), strict=True):
        node.output(0).set_names({name})
    model = WatchedModel(ov.Core().compile_model(ov.Model(outputs, [a]), "CPU"))
    found, _ = Session(model, 1)({"a": torch.tensor([[1.0, -1.0, 0.0, 2.0]])})
    assert found["relu"].tolist() == [[1.0, 0.0, 0.0, 2.0]]
    assert set(model.requests[0].bound) == {"a"}


def test_a_batch_that_cannot_be_cut_is_refused():
    with pytest.raises(ShapeError, match="batch of 3 rows cannot be cut into requests of 2 rows"):
        Session(compiled(2), 2)(inputs(3))


@pytest.mark.parametrize("fails_at", ["start", "wait"])
def test_one_failing_request_leaves_none_unwaited_and_the_next_call_works(fails_at):
    model = compiled(1)
    session = Session(model, 1)
    session(inputs(3))
    model.log.clear()
    model.requests[1].fails_at = fails_at
    with pytest.raises(InferenceError, match="DEVICE_LOST"):
        session(inputs(3))
    started = [line.split()[1] for line in model.log if line.startswith("start")]
    if fails_at == "start":
        started.remove("1")
    assert [line.split()[1] for line in model.log if line.startswith("wait")] == started
    check(session(given := inputs(3, seed=5))[0], given)
    assert len(model.requests) == 6, "after a lost device the old requests never work again"


def typed_model(types: dict[str, ov.Type]) -> WatchedModel:
    """One input and one output [1, 3] for each type: the output is twice the input, in the same type."""
    parameters = [ops.parameter([1, 3], kind, name=name) for name, kind in types.items()]
    doubled = [ops.add(parameter, parameter) for parameter in parameters]
    for node, name in zip([*parameters, *doubled], [*types, *(f"{name} twice" for name in types)], strict=True):
        node.output(0).set_names({name})
    return WatchedModel(ov.Core().compile_model(ov.Model(doubled, parameters), "CPU"))


def test_every_common_type_goes_in_and_comes_out_as_it_is():
    types = {"f32": torch.float32, "f16": torch.float16, "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64}
    session = Session(typed_model({name: getattr(ov.Type, name) for name in types}), 1)
    values = torch.tensor([[1, 2, 3], [4, 5, 6]])
    # given in other types on purpose: a user's int64 ids for an int32 port, say
    outputs, _ = session({name: values.to(torch.float64) for name in types})
    for name, dtype in types.items():
        assert outputs[f"{name} twice"].dtype == dtype
        assert torch.equal(outputs[f"{name} twice"], (2 * values).to(dtype))


def test_large_integers_keep_every_digit():
    """Through float32 an id of this size would come out as another one. (The CPU plugin has 32-bit integers.)"""
    ids = torch.tensor([[2**24 + 1, 2**29 + 1, -(2**25) - 1]])
    outputs, _ = Session(typed_model({"ids": ov.Type.i64}), 1)({"ids": ids})
    assert torch.equal(outputs["ids twice"], 2 * ids)


def test_integers_of_the_right_type_are_shared_without_a_copy():
    model = typed_model({"ids": ov.Type.i64})
    given = torch.tensor([[1, 2, 3]])
    Session(model, 1)({"ids": given})
    assert model.requests[0].bound["ids"] == given.data_ptr()


def test_outputs_without_the_batch_come_whole_from_each_request():
    """A detector's [boxes, 7] or a single number: their first dimension is not the batch."""
    x = ops.parameter([1, 2, 3], ov.Type.f32)
    boxes = ops.reshape(x, ops.constant([3, 2]), False)
    total = ops.reduce_sum(x, ops.constant([0, 1, 2]))
    for node, name in zip([x, boxes, total], ("x", "boxes", "total"), strict=True):
        node.output(0).set_names({name})
    session = Session(WatchedModel(ov.Core().compile_model(ov.Model([boxes, total], [x]), "CPU")), 1)
    given = torch.arange(12.0).reshape(2, 2, 3)
    outputs, _ = session({"x": given})
    assert torch.equal(outputs["boxes"], given.reshape(6, 2))
    assert outputs["total"].tolist() == [15.0, 51.0]


def test_a_type_that_torch_lacks_is_named():
    with pytest.raises(InferenceError, match="Port 'x' is of type u4"):
        x = ops.parameter([1, 2], ov.Type.u4, name="x")
        x.output(0).set_names({"x"})
        wide = ops.convert(x, "f32")
        wide.output(0).set_names({"wide"})
        Session(WatchedModel(ov.Core().compile_model(ov.Model([wide], [x]), "CPU")), 1)
