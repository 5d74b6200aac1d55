"""How fast this CPU multiplies and copies, measured through OpenVINO."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from . import devices

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

GEMM = (1024, 2048, 1024)
"""Rows, depth and columns of the product that measures a CPU: 2.1 GMAC."""
COPY_BYTES = 128 * 2**20
"""Larger than the caches of laptops and mini PCs."""
MEASURE_RUNS = 8


def measure_macs(
    kind: str, size: Sequence[int] = GEMM, device: str = "CPU", clock: Callable[[], float] = time.perf_counter
) -> float:
    """MACs a second of a matrix product on `device` through OpenVINO, the best of some runs.

    kind: "fp32", "bf16", "fp16" or "int8"; size: rows, depth, columns.
    """
    import numpy as np

    rows, depth, columns = size
    x = np.random.default_rng(1).uniform(-1, 1, (rows, depth)).astype(np.float32)
    return rows * depth * columns / _fastest(product(kind, size), x, kind, device, clock)


def measure_bandwidth(
    size_bytes: int = COPY_BYTES, device: str = "CPU", clock: Callable[[], float] = time.perf_counter
) -> float:
    """Bytes a second that are read and written when `size_bytes` are copied by all threads, the best of some runs.

    As in STREAM (McCalpin, 1995) the reading of what is overwritten is not counted.
    """
    import numpy as np
    import openvino as ov
    from openvino import opset13 as ops

    x = np.ones((size_bytes // 4096, 1024), np.float32)
    port = ops.parameter(list(x.shape), ov.Type.f32, name="x")
    # abs is a copy that the compiler does not leave out
    return 2 * x.nbytes / _fastest(ov.Model([ops.abs(port)], [port], "copy"), x, "fp32", device, clock)


macs_of_this_cpu = lru_cache(maxsize=None)(measure_macs)
bandwidth_of_this_cpu = lru_cache(maxsize=None)(measure_bandwidth)


def product(kind: str, size: Sequence[int]) -> ov.Model:
    """x [rows, depth] times constant weights [columns, depth]; for int8 both are quantized."""
    import numpy as np
    import openvino as ov
    from openvino import opset13 as ops

    rows, depth, columns = size
    generator = np.random.default_rng(0)
    x = factor = ops.parameter([rows, depth], ov.Type.f32, name="x")
    if kind == "int8":
        low, high = (ops.constant(np.float32(edge)) for edge in (-1.28, 1.27))
        factor = ops.fake_quantize(x, low, high, low, high, 256)
        stored = ops.constant(generator.integers(-127, 128, (columns, depth)).astype(np.int8))
        weights = ops.multiply(ops.convert(stored, "f32"), ops.constant(np.full((columns, 1), 0.01, np.float32)))
    else:
        weights = ops.constant(generator.uniform(-1, 1, (columns, depth)).astype(np.float32))
    return ov.Model([ops.matmul(factor, weights, False, True)], [x], f"product {kind}")


def _fastest(model: ov.Model, x: np.ndarray, kind: str, device: str, clock: Callable[[], float]) -> float:
    """Seconds of the fastest of MEASURE_RUNS inferences; the first one is not counted."""
    import openvino as ov

    hint = {"INFERENCE_PRECISION_HINT": {"bf16": "bf16", "fp16": "f16"}.get(kind, "f32")}
    compiled = devices.core().compile_model(model, device, {"PERFORMANCE_HINT": "LATENCY", **hint})
    request = compiled.create_infer_request()
    request.set_input_tensor(ov.Tensor(x, shared_memory=True))
    request.infer()
    durations = []
    for _ in range(MEASURE_RUNS):
        started = clock()
        request.infer()
        durations.append(clock() - started)
    return min(durations)
