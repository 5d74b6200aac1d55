"""A compiled model with its requests: made once, used for every call."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import InferenceError, ShapeError
from ..tensors import share

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov
    import torch


class Session:
    """Runs a compiled model on batches of torch tensors.

    rows: batch that the model was compiled for; a larger batch is cut into requests of that many rows, all started
    before any is waited for. None: the model takes any batch whole.
    """

    def __init__(self, compiled: ov.CompiledModel, rows: int | None):
        self.compiled, self.rows = compiled, rows
        self.calls = 0
        self._input_types = {name: _torch_type(port) for port in compiled.inputs for name in port.get_names()}
        self._requests: list[ov.InferRequest] = []

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], float]:
        """Run one batch. inputs: name -> [batch, ...] for every input of the model.

        Returns the outputs by name, [batch, ...] in memory of their own and in the model's types, and the seconds
        spent in OpenVINO. An output whose first dimension is not the batch comes from each request whole, one after
        the other.
        """
        arrays = {name: self._array(name, tensor) for name, tensor in inputs.items()}
        batch = len(next(iter(arrays.values())))
        rows = self.rows or batch
        if batch % rows:
            raise ShapeError(f"A batch of {batch} rows cannot be cut into requests of {rows} rows.")
        starts = range(0, batch, rows)
        while len(self._requests) < len(starts):
            self._requests.append(self.compiled.create_infer_request())
        requests = self._requests[: len(starts)]
        outputs = self._bind_outputs(requests, batch, rows)
        for request, start in zip(requests, starts, strict=True):
            self._bind_inputs(request, arrays, slice(start, start + rows))
        started = time.perf_counter()
        self._run(requests)
        seconds = time.perf_counter() - started
        self.calls += 1
        return outputs or self._copy_outputs(requests), seconds

    def _array(self, name: str, tensor: torch.Tensor) -> np.ndarray:
        import torch

        dtype = self._input_types[name]
        if dtype == torch.float32:
            return share(tensor)
        return tensor.detach().to("cpu", dtype).contiguous().numpy()

    def _bind_inputs(self, request: ov.InferRequest, arrays: Mapping, rows: slice) -> None:
        import openvino as ov

        for name, array in arrays.items():
            request.set_tensor(name, ov.Tensor(array[rows], shared_memory=True))

    def _bind_outputs(self, requests: list[ov.InferRequest], batch: int, rows: int) -> dict[str, torch.Tensor]:
        """Let every request write into its rows of fresh tensors; {} where an output's shape is not known before."""
        import openvino as ov
        import torch

        outputs: dict[str, torch.Tensor] = {}
        # all or none: a bound tensor that is not returned would be written to after it is freed
        if not all(_has_rows(port, rows) for port in self.compiled.outputs):
            return outputs
        for port in self.compiled.outputs:
            whole = torch.empty(batch, *list(port.get_shape())[1:], dtype=_torch_type(port))
            for index, request in enumerate(requests):
                part = whole[index * rows : (index + 1) * rows].numpy()
                request.set_tensor(port, ov.Tensor(part, shared_memory=True))
            outputs[port.get_any_name()] = whole
        return outputs

    def _copy_outputs(self, requests: list[ov.InferRequest]) -> dict[str, torch.Tensor]:
        import numpy as np
        import torch

        def rows(port: ov.ConstOutput) -> list[torch.Tensor]:
            # array, not copy: numpy makes a plain number of the copy of what has no dimension
            return [torch.from_numpy(np.array(request.get_tensor(port).data)) for request in requests]

        return {
            port.get_any_name(): torch.cat([row if row.ndim else row[None] for row in rows(port)])
            for port in self.compiled.outputs
        }

    def _run(self, requests: list[ov.InferRequest]) -> None:
        failures = []
        started = []
        try:
            for request in requests:
                request.start_async()
                started.append(request)
        except RuntimeError as error:
            failures.append(error)
        for request in started:
            # every started request must be waited for, also when an earlier one failed
            try:
                request.wait()
            except RuntimeError as error:
                failures.append(error)
        if failures:
            # after a lost device the old requests never work again
            self._requests.clear()
            raise InferenceError(str(failures[0])) from failures[0]


def _has_rows(port: ov.ConstOutput, rows: int) -> bool:
    """Whether an output has a known shape [rows, ...]."""
    shape = port.get_partial_shape()
    return shape.is_static and len(shape) > 0 and shape[0].get_length() == rows


def _torch_type(port: ov.ConstOutput) -> torch.dtype:
    """The dtype of a port; InferenceError where torch and numpy have none in common, as for text or bfloat16."""
    import torch

    name = port.get_element_type().get_type_name()
    types = {
        "f32": torch.float32, "f16": torch.float16, "f64": torch.float64, "boolean": torch.bool,
        "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    }  # fmt: skip
    if name not in types:
        raise InferenceError(
            f"Port '{port.get_any_name()}' is of type {name}, which cannot be handed to or from torch. Convert the "
            "model so that it takes and gives numbers of a common type, such as float32 or int64."
        )
    return types[name]
