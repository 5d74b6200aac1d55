"""Inputs for a model whose user has brought none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import ShapeError, TensorError

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov


_NUMBERS = frozenset(["f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "boolean"])
"""Types that OpenVINO and numpy share."""


def random_inputs(model: ov.Model, seed: int = 0) -> dict[str, np.ndarray]:
    """Input name -> array of the input's shape and type: standard normal numbers, 0 and 1 for whole numbers.

    Good for times, which do not depend on the values; not for accuracy. ShapeError for open sizes, TensorError for
    types that numpy does not have.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    inputs = {}
    for port in model.inputs:
        name, shape = port.get_any_name(), port.get_partial_shape()
        if shape.is_dynamic:
            raise ShapeError(f"Input '{name}' {shape} leaves sizes open. Give every input its size, or real inputs.")
        type_name = port.get_element_type().get_type_name()
        if type_name not in _NUMBERS:
            raise TensorError(f"Input '{name}' is of type {type_name}, for which none is made up. Give real inputs.")
        kind, lengths = port.get_element_type().to_dtype(), list(shape.to_shape())
        is_float = np.issubdtype(kind, np.floating)
        values = generator.standard_normal(lengths) if is_float else generator.integers(0, 2, lengths)
        inputs[name] = values.astype(kind)
    return inputs
