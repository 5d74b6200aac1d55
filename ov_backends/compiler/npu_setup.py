"""Intel's NPU compiler where OpenVINO brings none: the one of the Windows wheel, run by Wine, all in the cache folder.

Layout of `<cache>/npu_compiler/<openvino version>/`: `download/` the wheel until it is unpacked, `lib/` its libraries
and the small program that drives them (npu_compile.c), `wine/` the Wine prefix, `setup.log`, `ready.json` at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..errors import SetupError
from ..progress import Progress
from .cache import default_root
from .npu_process import run_watched

SOURCE = Path(__file__).with_name("npu_compile.c")
CROSS_COMPILER = "x86_64-w64-mingw32-gcc"
READY = "ready.json"
_STEP_LIMIT_S = 1800.0
_APT = "apt-get install -y --no-install-recommends"
# Plugins of other devices, a third of the size; nothing here compiles for them.
_NOT_NEEDED = ("openvino_intel_cpu_plugin.dll", "openvino_intel_gpu_plugin.dll")
_UNREACHABLE = ("ConnectionError", "name resolution", "getaddrinfo", "timed out", "Max retries", "ProxyError")


@dataclass(frozen=True)
class Toolchain:
    """Where the compiler of one OpenVINO version lies, or will."""

    folder: Path

    @property
    def libraries(self) -> Path:
        return self.folder / "lib"

    @property
    def program(self) -> Path:
        return self.libraries / "npu_compile.exe"

    @property
    def environment(self) -> dict[str, str]:
        """Of a process under Wine: its own prefix, paths in UTF-8, no debugger, nothing put into the user's menus."""
        return {
            **os.environ,
            "WINEPREFIX": str(self.folder / "wine"),
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "winemenubuilder.exe=d;winedbg.exe=d;mscoree=;mshtml=",
            "LC_ALL": "C.UTF-8",
        }

    @property
    def is_ready(self) -> bool:
        """Whether every step is done, by this version of the pack's program."""
        try:
            found = json.loads((self.folder / READY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return found == {"program": _source_hash()} and self.program.is_file() and bool(wine())


def toolchain() -> Toolchain:
    """The toolchain for the installed OpenVINO."""
    return Toolchain(default_root().absolute() / "npu_compiler" / openvino_version())


def openvino_version() -> str:
    """As the wheel is called: 2026.4.1."""
    try:
        return version("openvino")
    except PackageNotFoundError as error:
        raise SetupError("OpenVINO is not installed: python -m pip install openvino") from error


def wine() -> str:
    """The command that starts Windows programs, or ""."""
    return shutil.which("wine") or shutil.which("wine64") or ""


def missing_programs() -> str:
    """What must be installed before, in one line with the command; "" if nothing."""
    packages = [] if wine() else ["wine", "wine64"]
    if not shutil.which(CROSS_COMPILER):
        packages.append("gcc-mingw-w64-x86-64")
    if not packages:
        return ""
    geteuid = getattr(os, "geteuid", None)
    sudo = "" if geteuid and geteuid() == 0 else "sudo "
    return f"Not installed: {', '.join(packages)}. On Debian and Ubuntu: {sudo}{_APT} {' '.join(packages)}"


def set_up(progress: Progress) -> Toolchain:
    """Make the toolchain, or what is missing of it; a second process waits for the first one.

    Downloads 85 MB. SetupError says what is missing, that there is no network, or what failed.
    """
    import filelock

    made = toolchain()
    if made.is_ready:
        return made
    if any(sign in str(made.folder) for sign in ":\\"):
        raise SetupError(
            f"The cache folder {made.folder} has ':' or '\\' in its name, which Wine cannot open. Set OVNPU_CACHE_DIR "
            "to another folder."
        )
    if missing := missing_programs():
        raise SetupError(missing)
    try:
        made.folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(made.folder / "setup.lock")
        while not lock.is_locked:
            try:
                lock.acquire(timeout=0.5)
            except filelock.Timeout:
                progress("Waiting for another process to set up the NPU compiler")
        with lock:
            if not made.is_ready:
                _make(made, progress)
    except OSError as error:
        raise SetupError(f"The NPU compiler could not be set up in {made.folder}: {error.strerror or error}") from error
    return made


def _make(made: Toolchain, progress: Progress) -> None:
    """Each step leaves its result under its final name only when it is whole, so the next try goes on after it."""
    (made.folder / READY).unlink(missing_ok=True)
    if not (made.libraries / "openvino_c.dll").is_file():
        _unpack(_download(made, progress), made.libraries, progress)
        shutil.rmtree(made.folder / "download", ignore_errors=True)
    _build(made, progress)
    _start_wine(made, progress)
    content = json.dumps({"program": _source_hash()})
    (made.folder / READY).write_text(content, encoding="utf-8")


def _download(made: Toolchain, progress: Progress) -> Path:
    folder = made.folder / "download"
    for wheel in folder.glob("openvino-*.whl"):
        if zipfile.is_zipfile(wheel):
            return wheel
        wheel.unlink()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    platform = ("--platform", "win_amd64", "--only-binary=:all:", "--python-version", python, "--implementation", "cp")
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-deps"]
    command += [*platform, "--progress-bar", "off", "--dest", str(folder), f"openvino=={made.folder.name}"]
    _step(made, f"1/4 Downloading OpenVINO {made.folder.name} for Windows, 85 MB", command, os.environ, progress)
    wheels = list(folder.glob("openvino-*.whl"))
    if not wheels:
        raise SetupError(f"pip downloaded no wheel of openvino {made.folder.name}; see {made.folder / 'setup.log'}")
    return wheels[0]


def _unpack(wheel: Path, target: Path, progress: Progress) -> None:
    progress("2/4 Unpacking its libraries")
    temporary = target.with_name("lib.part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            file = Path(name).name
            is_wanted = file.endswith(".dll") or file == "openvino_c.lib"
            if name.startswith("openvino/libs/") and is_wanted and file not in _NOT_NEEDED:
                with archive.open(name) as source, (temporary / file).open("wb") as out:
                    shutil.copyfileobj(source, out)
    if not (temporary / "openvino_intel_npu_compiler.dll").is_file():
        raise SetupError(f"{wheel.name} has no NPU compiler; the first OpenVINO that brings one is 2026.0.")
    temporary.replace(target)


def _build(made: Toolchain, progress: Progress) -> None:
    temporary = made.libraries / "npu_compile.part.exe"
    command = [CROSS_COMPILER, "-O1", "-municode", str(SOURCE), "-o", str(temporary)]
    command.append(str(made.libraries / "openvino_c.lib"))
    _step(made, "3/4 Building the program that drives the compiler", command, os.environ, progress)
    temporary.replace(made.program)


def _start_wine(made: Toolchain, progress: Progress) -> None:
    """Make the prefix; one that was left half made is made anew."""
    shutil.rmtree(made.folder / "wine", ignore_errors=True)
    _step(made, "4/4 Preparing Wine", [wine(), "wineboot", "--init"], made.environment, progress)


def _step(
    made: Toolchain, text: str, command: Sequence[str], environment: Mapping[str, str], progress: Progress
) -> None:
    log = made.folder / "setup.log"
    progress(text)
    ended = run_watched(
        command, made.folder, environment, log, _STEP_LIMIT_S, lambda seconds: progress(f"{text}, {seconds:.0f} s")
    )
    if ended.code == 0:
        return
    said = log.read_text(encoding="utf-8", errors="replace")
    if any(sign in said for sign in _UNREACHABLE):
        raise SetupError(
            "The package index was not reached, and the NPU compiler has to be downloaded once: check the network, a "
            "proxy (HTTPS_PROXY) or pip's index setting, then run it again."
        )
    if "(from versions: none)" in said:
        raise SetupError(
            f"The package index has no openvino {made.folder.name} for Windows, or it was not reached. The version has "
            "to be the installed one: install one that is published, or check the network."
        )
    tail = " / ".join([line.strip() for line in said.splitlines() if line.strip()][-3:]) or "it said nothing"
    why = "took too long" if ended.why == "timeout" else f"ended with code {ended.code}"
    raise SetupError(f"Setting up the NPU compiler stopped at '{text}': {Path(command[0]).name} {why}: {tail}")


def _source_hash() -> str:
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
