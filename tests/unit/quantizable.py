"""A small network with everything that quantization has rules for, and inputs for it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import openvino as ov
import torch
from ovpack.ov_backends.compiler.ir import Source, hash_tensors
from ovpack.ov_backends.convert.trace import TraceInput, trace
from ovpack.ov_backends.progress import Progress, log_progress
from ovpack.ov_backends.report import RunReport
from ovpack.ov_backends.runtime.submodel import Submodel
from torch import nn

WIDTH = 32
EMBEDDING = "timestep_embedding"


class Block(nn.Module):
    """Convolution steered by a time vector, then attention over the pixels, both residual."""

    def __init__(self):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, WIDTH), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.time = nn.Linear(WIDTH, WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, time):
        x = x + self.conv(nn.functional.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        rows = x.flatten(2).transpose(1, 2)
        attention = torch.softmax(self.query(rows) @ self.key(rows).transpose(1, 2) / WIDTH**0.5, -1)
        return x + self.out(attention @ self.value(rows)).transpose(1, 2).reshape(x.shape)


class Net(nn.Module):
    """sample [batch, 4, h, w], timestep_embedding [batch, WIDTH] -> noise [batch, 4, h, w]."""

    def __init__(self, blocks: int = 3):
        super().__init__()
        torch.manual_seed(0)
        self.time = nn.Linear(WIDTH, WIDTH)
        self.first, self.last = nn.Conv2d(4, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 4, 3, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, sample, embedding):
        time, x = nn.functional.silu(self.time(embedding)), self.first(sample)
        for block in self.blocks:
            x = block(x, time)
        return self.last(x)


def to_ir(net: nn.Module) -> ov.Model:
    inputs = [
        TraceInput("sample", torch.randn(1, 4, 8, 8), (-1, 4, -1, -1)),
        TraceInput(EMBEDDING, torch.randn(1, WIDTH), (-1, WIDTH)),
    ]
    return trace(net.eval(), inputs, ["noise"], "net")


@lru_cache
def plain() -> ov.Model:
    return to_ir(Net())


def plant_outlier(net: Net, block: int) -> Net:
    """Make one block's value layer write one channel 3000 times as large, which the next layer reads as small again.

    In float that changes nothing; in INT8 with one range for the tensor, the other channels of that value are lost.
    That block's attention is also made stronger, so that its loss is seen in the output.
    """
    with torch.no_grad():
        value, out = net.blocks[block].value, net.blocks[block].out
        out.weight *= 3
        value.weight[3] *= 3000
        value.bias[3] *= 3000
        out.weight[:, 3] /= 3000
    return net


def samples(count: int = 12, size: int = 8) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(count)
    return [
        {
            "sample": random.standard_normal((1, 4, size, size)).astype(np.float32),
            EMBEDDING: random.standard_normal((1, WIDTH)).astype(np.float32),
        }
        for _ in range(count)
    ]


SOURCE = Source("unet", hash_tensors(Net().state_dict()), "Net", lambda: plain().clone())


def one_run(
    submodel: Submodel,
    calls: int = 6,
    size: int = 8,
    texts: list[str] | None = None,
    progress: Progress = log_progress,
):
    """A run of `calls` calls with two rows each; (its last output, its report).

    texts: takes what is shown meanwhile; progress: is called with it too.
    """
    report = RunReport().submodel("unet", submodel.plan.device)
    generator = torch.Generator().manual_seed(calls)

    def show(text: str) -> None:
        if texts is not None:
            texts.append(text)
        progress(text)

    submodel.start_run()
    for _ in range(calls):
        given = {
            "sample": torch.randn(2, 4, size, size, generator=generator),
            EMBEDDING: torch.randn(2, WIDTH, generator=generator),
        }
        output = submodel.run(given, report, show)["noise"]
        if texts is not None:
            texts.append(submodel.activity)
    submodel.finish_run("a test", report, show)
    return output, report
