"""Is the quantized model still the same model? Measured on inputs that it was not calibrated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import devices

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

LIMIT = 0.99
"""Least cosine similarity of a call's outputs to the float model's: below it images visibly change."""

Sample = Mapping[str, "np.ndarray"]
"""One call's inputs by name, [1, ...] each."""


@dataclass(frozen=True)
class Gate:
    """Outcome of the comparison with the float model.

    cosines: one for each held-out input, the worst output counting; restored: layers returned to floating point to
    get there; restored_macs_share: their share of the model's multiply-accumulates.
    """

    cosines: list[float] = field(default_factory=list)
    limit: float = LIMIT
    restored: list[str] = field(default_factory=list)
    restored_macs_share: float = 0.0
    colour_shift: list[float] = field(default_factory=list)
    """Where the output is an image [1, 3, height, width]: mean change of red, green and blue in 8-bit steps."""

    @property
    def worst(self) -> float | None:
        return min(self.cosines) if self.cosines else None

    @property
    def passed(self) -> bool:
        """True also where there was nothing to measure with."""
        return self.worst is None or self.worst >= self.limit

    def text(self) -> str:
        if self.worst is None:
            return "accuracy not measured, there are no recorded inputs"
        parts = [f"cosine to the float model at least {self.worst:.4f} in {len(self.cosines)} held-out calls"]
        if self.restored:
            share = f"{100 * self.restored_macs_share:.1f} % of the MACs"
            parts.append(f"{len(self.restored)} layers kept in floating point for it ({share})")
        if self.colour_shift:
            red, green, blue = self.colour_shift
            parts.append(f"colour shift red {red:+.2f}, green {green:+.2f}, blue {blue:+.2f} of 255")
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "limit": self.limit,
            "cosines": [round(c, 6) for c in self.cosines],
            "restored": self.restored,
            "restored_macs_share": round(self.restored_macs_share, 6),
            "colour_shift": [round(c, 4) for c in self.colour_shift],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Gate:
        return cls(**{key: values[key] for key in values if key != "passed"})


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine similarity of two arrays of one shape, over all elements; 1 for two arrays of zeros, 0 if one has NaN."""
    import numpy as np

    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return 0.0
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    if lengths == 0.0:
        return float(np.array_equal(x, y))
    return float(x @ y) / lengths


class Runner:
    """Runs `model` (dynamic or static) on the CPU in FP32, one sample at a time."""

    def __init__(self, model: ov.Model, device: str = "CPU"):
        hint = {"INFERENCE_PRECISION_HINT": "f32"} if device == "CPU" else {}
        self._request = devices.core().compile_model(model, device, hint).create_infer_request()

    def __call__(self, sample: Sample) -> list[np.ndarray]:
        """Every output, in the model's order."""
        import openvino as ov

        for name, array in sample.items():
            self._request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        self._request.infer()
        return [tensor.data.copy() for tensor in self._request.output_tensors]


def worst_cosine(expected: Sequence[np.ndarray], given: Sequence[np.ndarray]) -> float:
    """Of all outputs of one call."""
    return min(cosine(a, b) for a, b in zip(expected, given, strict=True))


def colour_shift(expected: Sequence[Sequence[np.ndarray]], given: Sequence[Sequence[np.ndarray]]) -> list[float]:
    """Mean change of each of three colours, in 1/255 of the range of the float images; [] where they are no images."""
    import numpy as np

    if any(len(outputs) != 1 or outputs[0].ndim != 4 or outputs[0].shape[1] != 3 for outputs in expected):
        return []
    shifts = [
        255 * (b[0] - a[0]).mean(axis=(0, 2, 3)) / max(float(a[0].max() - a[0].min()), 1e-12)
        for a, b in zip(expected, given, strict=True)
    ]
    return [float(shift) for shift in np.mean(shifts, axis=0)]
