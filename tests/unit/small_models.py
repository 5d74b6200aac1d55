"""Small real models, and a core that watches and can be told to refuse. No torch: second processes start faster so."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from ovpack.ov_backends.compiler.compile import Order

WIDTH = 64
IDENTITY = {"submodel": "unet", "model": "Dense", "weights": "a" * 32, "conversion": "1"}


def dense_model() -> ov.Model:
    """y [batch, WIDTH] = tanh(x [batch, WIDTH] @ W), the same in every process."""
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
    x = ops.parameter([-1, WIDTH], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    product = ops.matmul(x, ops.constant(weights), False, False, name="product")
    y = ops.tanh(product, name="curve")
    y.output(0).set_names({"y"})
    return ov.Model([y], [x], "dense")


def dense_input(rows: int = 1) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((rows, WIDTH)).astype(np.float32)


def dense_expected(x: np.ndarray) -> np.ndarray:
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
    return np.tanh(x @ weights)


def dense_order(**changes: Any) -> Order:
    """One row of `dense_model` on the CPU in fp32."""
    order = {
        "submodel": "unet",
        "ir_identity": IDENTITY,
        "read": dense_model,
        "shapes": {"x": (1, WIDTH)},
        "device": "CPU",
        "precision": "fp32",
        "policy": "warn",
    }
    return Order(**{**order, **changes})


@dataclass
class WatchedCore:
    """The real core with a GPU that is not there: its models run on the real CPU, once something is compiled at all.

    refuses: device -> what its compiler says; lacks: operator types that the GPU does not have.
    """

    real: ov.Core
    refuses: dict[str, str] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()
    refuses_hetero: bool = False
    compiled: list[tuple[str, list[ov.PartialShape]]] = field(default_factory=list)
    """Device and input shapes of everything that was compiled, or tried."""
    imported: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    may_finish: threading.Event | None = None
    """Where it is set, compiling takes until this event."""

    @property
    def available_devices(self) -> list[str]:
        return [*self.real.available_devices, "GPU"]

    def get_property(self, device: str, key: str) -> object:
        return self.real.get_property(device, key)

    def read_model(self, path) -> ov.Model:
        return self.real.read_model(path)

    def compile_model(self, model: ov.Model, target: str, properties: Mapping[str, str]) -> ov.CompiledModel:
        self.compiled.append((target, [port.get_partial_shape() for port in model.inputs]))
        if self.may_finish is not None:
            assert self.may_finish.wait(30)
        types = {node.get_type_name() for node in model.get_ops()}
        if target in self.refuses:
            raise RuntimeError(self.refuses[target])
        if target == "GPU" and types & self.lacks:
            raise RuntimeError(f"Unsupported operation: {', '.join(types & self.lacks)}")
        if target.startswith("HETERO:") and self.refuses_hetero:
            raise RuntimeError("HETERO cannot cut this graph")
        return self.real.compile_model(model, _stand_in(target), properties)

    def query_model(self, model: ov.Model, device: str) -> dict[str, str]:
        if device in self.refuses:
            raise RuntimeError(self.refuses[device])
        return {n.get_friendly_name(): device for n in model.get_ops() if n.get_type_name() not in self.lacks}

    def import_model(self, blob, target: str, properties: Mapping[str, str]) -> ov.CompiledModel:
        self.imported.append((target, properties))
        return self.real.import_model(blob, _stand_in(target), properties)


def _stand_in(target: str) -> str:
    return "CPU" if "GPU" in target else target
