"""Which of Intel's NPU compilers this machine can run, without an NPU: OpenVINO's own, or the Windows one in Wine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ..errors import CompilerMissingError
from .npu_setup import toolchain, wine

WORKER = Path(__file__).with_name("npu_worker.py")
_LIBRARY = {"win32": "openvino_intel_npu_compiler.dll", "linux": "libopenvino_intel_npu_compiler_loader.so"}
HOW_TO_GET_ONE = "python -m ov_backends preflight --setup"


@dataclass(frozen=True)
class NpuCompiler:
    """A way to run the compiler. command: followed by limit in seconds, model, blob or "-", shapes and properties."""

    kind: Literal["native", "wine"]
    where: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]

    def path(self, file: Path) -> str:
        """`file` as the compiler must be given it."""
        return "Z:" + str(file.absolute()).replace("/", "\\") if self.kind == "wine" else str(file)

    @property
    def stamp(self) -> str:
        """Changes when another compiler takes its place: part of what results are known by."""
        if self.kind == "wine":
            return f"wheel {self.where.name}"
        library = self.where / _LIBRARY[sys.platform]
        return f"{library.name} {library.stat().st_size} {int(library.stat().st_mtime)}"

    def __str__(self) -> str:
        return "OpenVINO's own" if self.kind == "native" else f"that of OpenVINO {self.where.name} for Windows, in Wine"


def find_compiler() -> NpuCompiler | None:
    """The best one that is there: native before Wine; None if there is none yet."""
    return _native() or _under_wine()


def require_compiler() -> NpuCompiler:
    """The same; CompilerMissingError, with the command that gets one, if there is none."""
    found = find_compiler()
    if found is None:
        raise CompilerMissingError(
            f"There is no NPU compiler here yet. Get Intel's own, which needs no NPU, with: {HOW_TO_GET_ONE}"
        )
    return found


@lru_cache(maxsize=1)
def libraries_folder() -> Path:
    """Where the installed OpenVINO keeps its plugins, found without importing it."""
    spec = find_spec("openvino")
    return Path((spec.submodule_search_locations or [""])[0]) / "libs" if spec else Path()


def _native() -> NpuCompiler | None:
    """OpenVINO loads the compiler from beside its plugins: its Windows wheel has it; on Linux it may be added there."""
    folder, name = libraries_folder(), _LIBRARY.get(sys.platform, "")
    if not name or not (folder / name).is_file():
        return None
    return NpuCompiler("native", folder, (sys.executable, str(WORKER)), {**os.environ, "PYTHONUTF8": "1"})


def _under_wine() -> NpuCompiler | None:
    made = toolchain()
    if not made.is_ready:
        return None
    return NpuCompiler("wine", made.folder, (wine(), str(made.program)), made.environment)
