"""Does a device compute what the CPU computes? Asked with one real call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import devices
from ..compiler.ir import IR
from ..progress import Progress, with_heartbeat
from ..quantize.gate import worst_cosine
from .session import Session

if TYPE_CHECKING:
    import torch


def parity(
    ir: IR,
    rows: int | None,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    progress: Progress,
) -> float:
    """Cosine similarity of the worst output of a call's first request to the CPU's in FP32.

    inputs, outputs: of a call on the device, [batch, ...]; rows: how many of the batch one request takes, None: all.
    """
    first = {name: tensor[:rows] for name, tensor in inputs.items()}

    def on_cpu() -> dict[str, torch.Tensor]:
        model = ir.read()
        model.reshape({name: list(tensor.shape) for name, tensor in first.items()})
        compiled = devices.core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return Session(compiled, None)(first)[0]

    expected = with_heartbeat(on_cpu, "Comparing the first call with the CPU, once for each compilation", progress)
    # by position: a port without a name of its own is called otherwise in each compiled model
    return worst_cosine(
        [tensor.numpy() for tensor in expected.values()],
        [given[: len(tensor)].numpy() for given, tensor in zip(outputs.values(), expected.values(), strict=True)],
    )
