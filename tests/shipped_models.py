"""Real models that wheels from PyPI bring along; the packages themselves are never imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path


def shipped(package: str, name: str) -> Path:
    """The file called `name` that `package` installed; `name` may begin with folders."""
    try:
        found = [file for file in files(package) or () if f"/{file.as_posix()}".endswith(f"/{name}")]
    except PackageNotFoundError:
        found = []
    assert found, (
        f"{package} has no {name}; install requirements-test.txt and, with --no-deps, requirements-test-models.txt"
    )
    return Path(str(found[0].locate()))


MAGIKA = shipped("magika", "model.onnx")
"""File types from 2048 bytes of a file: bytes int32 [?, 2048] -> target_label [?, 214]."""
SILERO = shipped("silero-vad", "silero_vad_openvino_16k.onnx")
"""Speech or not in 32 ms of sound: input [1, 576], state [2, 1, 128] -> output [1, 1], stateN [2, 1, 128]."""
