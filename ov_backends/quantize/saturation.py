"""Does INT8 arithmetic on this CPU saturate?

Without VNNI instructions a CPU adds pairs of 8-bit products in 16 bits: 2 * 255 * 127 does not fit and is cut to 32767.
nncf can leave one bit of the weights unused so that nothing is cut. Every CPU that comes with an NPU has VNNI.
"""

from __future__ import annotations

from functools import lru_cache

from .. import devices

WIDTH = 64


@lru_cache(maxsize=1)
def cpu_saturates() -> bool:
    """Found out by one product of the greatest values there are."""
    import numpy as np
    import openvino as ov
    from openvino import opset13 as ops

    x = ops.parameter([1, WIDTH], ov.Type.f32, name="x")
    ends = [ops.constant(np.float32(value)) for value in (0.0, 255.0, 0.0, 255.0)]
    eight_bits = ops.fake_quantize(x, *ends, 256)
    stored = ops.convert(ops.constant(np.full((WIDTH, WIDTH), 127, np.int8)), "f32")
    weights = ops.multiply(stored, ops.constant(np.ones((1, WIDTH), np.float32)))
    product = ops.matmul(eight_bits, weights, False, False)
    compiled = devices.core().compile_model(ov.Model([product], [x]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    (result,) = compiled([np.full((1, WIDTH), 255, np.float32)]).values()
    return bool(result.max() < 0.9 * WIDTH * 255 * 127)
