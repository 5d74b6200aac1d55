"""TensorFlow's files, written without TensorFlow: fields of protocol buffers, by the numbers of its .proto files."""

from __future__ import annotations

import numpy as np

WEIGHTS = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
FLOAT = 1
"""DT_FLOAT of types.proto."""


def graph() -> bytes:
    """A GraphDef: y [2, 4] = relu(x [2, 3] @ WEIGHTS), float."""
    kind = _field(6, FLOAT)
    constant = _field(1, FLOAT) + _field(2, _shape(*WEIGHTS.shape)) + _field(4, WEIGHTS.tobytes())
    return b"".join(
        [
            _node(b"x", b"Placeholder", dtype=kind, shape=_field(7, _shape(2, 3))),
            _node(b"weights", b"Const", dtype=kind, value=_field(8, constant)),
            _node(b"product", b"MatMul", b"x", b"weights", T=kind, transpose_a=_field(5, 0), transpose_b=_field(5, 0)),
            _node(b"y", b"Relu", b"product", T=kind),
        ]
    )


def saved_model(definition: bytes) -> bytes:
    """A SavedModel with `definition`, tagged "serve", and its default signature."""
    ends = {1: (b"x", (2, 3)), 2: (b"y", (2, 4))}
    tensors = [
        _field(
            number, _field(1, name) + _field(2, _field(1, name + b":0") + _field(2, FLOAT) + _field(3, _shape(*size)))
        )
        for number, (name, size) in ends.items()
    ]
    signature = b"".join(tensors) + _field(3, b"tensorflow/serving/predict")
    meta = _field(1, _field(4, b"serve")) + _field(2, definition)
    meta += _field(5, _field(1, b"serving_default") + _field(2, signature))
    return _field(1, 1) + _field(2, meta)


def _node(name: bytes, op: bytes, *inputs: bytes, **attributes: bytes) -> bytes:
    """A NodeDef; attributes: encoded AttrValue."""
    entries = [_field(5, _field(1, key.encode()) + _field(2, value)) for key, value in attributes.items()]
    return _field(1, _field(1, name) + _field(2, op) + b"".join(_field(3, i) for i in inputs) + b"".join(entries))


def _shape(*sizes: int) -> bytes:
    """A TensorShapeProto."""
    return b"".join(_field(2, _field(1, size)) for size in sizes)


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7])
