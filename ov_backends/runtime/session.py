"""A compiled model with its requests: made once, used for every call."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import InferenceError, ShapeError
from ..tensors import share

if TYPE_CHECKING:
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
        self._requests: list[ov.InferRequest] = []

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], float]:
        """Run one batch. inputs: name -> [batch, ...] for every input of the model.

        Returns the outputs by name, [batch, ...] float32 in memory of their own, and the seconds spent in OpenVINO.
        """
        arrays = {name: share(tensor) for name, tensor in inputs.items()}
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

    def _bind_inputs(self, request: ov.InferRequest, arrays: Mapping, rows: slice) -> None:
        import openvino as ov

        for name, array in arrays.items():
            request.set_tensor(name, ov.Tensor(array[rows], shared_memory=True))

    def _bind_outputs(self, requests: list[ov.InferRequest], batch: int, rows: int) -> dict[str, torch.Tensor]:
        """Let every request write into its rows of fresh tensors; {} where the output's shape is not known before."""
        import openvino as ov
        import torch

        outputs: dict[str, torch.Tensor] = {}
        # all or none: a bound tensor that is not returned would be written to after it is freed
        if any(port.get_partial_shape().is_dynamic for port in self.compiled.outputs):
            return outputs
        for port in self.compiled.outputs:
            whole = torch.empty(batch, *list(port.get_shape())[1:], dtype=torch.float32)
            for index, request in enumerate(requests):
                part = whole[index * rows : (index + 1) * rows].numpy()
                request.set_tensor(port, ov.Tensor(part, shared_memory=True))
            outputs[port.get_any_name()] = whole
        return outputs

    def _copy_outputs(self, requests: list[ov.InferRequest]) -> dict[str, torch.Tensor]:
        import torch

        return {
            port.get_any_name(): torch.cat([torch.from_numpy(r.get_tensor(port).data.copy()) for r in requests])
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
