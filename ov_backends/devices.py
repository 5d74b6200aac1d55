"""Which devices OpenVINO has on this machine, what they depend on, and which one a submodel gets."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NamedTuple

from .errors import DeviceError, PlanError
from .npu_diagnosis import System, diagnose_gpu, diagnose_npu
from .plan import POLICIES

if TYPE_CHECKING:  # importing openvino takes half a second; only core() and what calls it may
    import openvino

AUTO = "AUTO"

# The devices AUTO takes, best first; a missing device falls to the next one. Offload the stage that repeats with a
# fixed shape, and place the others where they do not stand in its way.
PREFERENCE: dict[str, tuple[str, ...]] = {
    # Runs steps x 2 times with one static shape: it repays minutes of NPU compilation, at the least power.
    "unet": ("NPU", "GPU", "CPU"),
    # Once a prompt, tens of milliseconds anywhere: a third NPU compilation and its memory would not pay off.
    "text_encoder": ("GPU", "CPU"),
    # Once an image, and never on the NPU unasked: its activations overflow FP16, the only float type of the NPU, and
    # its full-resolution tensors are what the NPU's memory fails at first. intel/openvino-ai-plugins-gimp agrees.
    "vae_decoder": ("GPU", "CPU"),
    "vae_encoder": ("GPU", "CPU"),
    # A file of the user's, mostly a vision network: regular convolutions, one fixed shape.
    "model": ("NPU", "GPU", "CPU"),
    # Convolutions on many tiles of one static shape: the NPU's best case.
    "upscaler": ("NPU", "GPU", "CPU"),
}

_WIDGET_CHOICES = (AUTO, "CPU", "GPU", "NPU", "GPU.0", "GPU.1", "GPU.2", "GPU.3")
_EMULATION = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_ONLINE_PIPELINE": "NONE"}
_EMULATED_LABEL = "NPU (emulated on CPU)"
_DRIVER_PROPERTY = {"NPU": "NPU_DRIVER_VERSION", "GPU": "GPU_DRIVER_VERSION"}

_seen: set[str] = set()  # names that an enumeration in this process has found


@dataclass(frozen=True)
class DeviceInfo:
    """One device; what could not be asked is ""."""

    name: str  # as OpenVINO enumerates it: "CPU", "GPU.1", "NPU"
    full_name: str
    architecture: str
    driver: str
    is_emulated: bool

    @property
    def label(self) -> str:
        return _EMULATED_LABEL if self.is_emulated else self.name


@dataclass(frozen=True)
class Resolution:
    """The device a submodel gets; reason says why it is another than asked, "" when it is as asked."""

    requested: str
    device: str
    reason: str

    @property
    def properties(self) -> dict[str, str]:
        return compile_properties(self.device)


def emulates_npu() -> bool:
    """Whether device NPU is served by the CPU plugin, for tests. It then hides a real NPU."""
    return os.environ.get("OVNPU_NPU_EMULATION") == "1"


def device_choices() -> list[str]:
    """Entries of a device widget: the same everywhere, so that a workflow saved on one machine validates on another."""
    return [*_WIDGET_CHOICES, *sorted(_seen.difference(_WIDGET_CHOICES))]


@lru_cache(maxsize=1)
def core() -> openvino.Core:
    """The one Core of this process."""
    try:
        import openvino
    except ImportError as error:
        raise DeviceError(
            f"OpenVINO cannot be imported ({error}). Install it into the Python that runs ComfyUI: "
            f"python -m pip install openvino"
        ) from error
    return openvino.Core()


def list_devices() -> tuple[DeviceInfo, ...]:
    """What OpenVINO enumerates, and the emulated NPU when it is on."""
    return tuple(_info(name) for name in _names())


def base_name(device: str) -> str:
    """'GPU.1' -> 'GPU'."""
    return device.split(".", 1)[0]


def is_npu(device: str) -> bool:
    return base_name(device) == "NPU"


def label(device: str) -> str:
    """The device's name for a user's eyes; an emulated NPU cannot be mistaken for a real one."""
    return _EMULATED_LABEL if is_npu(device) and emulates_npu() else device


def capabilities(device: str) -> str:
    """Data types and abilities that the plugin lists, sorted: 'BF16 EXPORT_IMPORT FP32 INT8'."""
    return _property(device, "OPTIMIZATION_CAPABILITIES")


def versions() -> dict[str, str]:
    """What a bug report needs: packages, Python, operating system, and 'driver GPU', 'driver NPU' where known."""
    found = {"openvino": _openvino_build()}
    for package in ("nncf", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found |= {"python": platform.python_version(), "os": platform.platform()}
    return found | {f"driver {info.name}": info.driver for info in list_devices() if info.driver}


def identity(device: str) -> dict[str, str]:
    """All that a compiled blob depends on besides the model: when a value changes, the blob must be made again."""
    emulated = is_npu(device) and emulates_npu()
    host = "CPU" if emulated else device
    info = _info(host)
    return {
        "device": "NPU" if emulated else device,
        "full_name": info.full_name,
        "architecture": "emulated" if emulated else info.architecture,
        "driver": info.driver,
        "openvino": _openvino_build(),
        "compiler": _npu_compiler(device) if is_npu(device) and not emulated else "",
        "capabilities": capabilities(host) if base_name(host) == "CPU" else "",
    }


def why_missing(device: str) -> str:
    """One or two sentences with the remedy; "" when the device is there."""
    names = _names()
    if _is_present(device, names):
        return ""
    relatives = [name for name in names if base_name(name) == base_name(device)]
    if relatives:
        return f"There is no {device} here; OpenVINO sees {_described(relatives)}. Choose one of these."
    if is_npu(device):
        return diagnose_npu(System.here())
    if base_name(device) == "GPU":
        return diagnose_gpu(System.here())
    return f"OpenVINO knows no device '{device}' here; it sees {_described(names)}. Choose one of these, or AUTO."


def resolve(requested: str, submodel: str, policy: str) -> Resolution:
    """The device to compile submodel ('unet', 'vae_decoder', ...) for; policy: 'error', 'warn' or 'allow'."""
    if submodel not in PREFERENCE:
        raise PlanError(f"Unknown submodel '{submodel}'; there are {', '.join(PREFERENCE)}.")
    if policy not in POLICIES:
        raise PlanError(f"Unknown fallback policy '{policy}'; there are {', '.join(POLICIES)}.")
    order = PREFERENCE[submodel]
    names = _names()
    wanted = requested.strip().upper()
    if wanted == AUTO:
        return Resolution(requested, _first_present(order, names), "")
    if _is_present(wanted, names):
        return Resolution(requested, wanted, "")
    why = why_missing(wanted)
    if policy == "error":
        raise DeviceError(
            f"{submodel} was to run on {wanted}, which is not available. {why} To run on another device instead, set "
            f"the fallback policy to warn or allow; present are {', '.join(map(label, names))}."
        )
    family = base_name(wanted)
    following = order[order.index(family) :] if family in order else order
    device = _first_present(following, names)
    return Resolution(requested, device, f"{submodel} runs on {label(device)} instead of {wanted}. {why}")


def compile_properties(device: str) -> dict[str, str]:
    """Properties that every compile and import for device needs: those of the emulation, or none."""
    return dict(_EMULATION) if is_npu(device) and emulates_npu() else {}


def explain_device_error(error: BaseException, device: str) -> str:
    """What a plugin's error means and what to do; a text that is not known is passed on, its first 400 characters."""
    text = str(error).strip() or type(error).__name__
    for known in _KNOWN_ERRORS:
        if found := re.search(known.pattern, text):
            why = _why_missing_if_known(device) if known.means_unreachable else ""
            advice = why or known.advice.format(device=device, driver=_driver_if_known(device))
            said = text[found.start() :].splitlines()[0].strip()[:200]
            return f"{label(device)}: {advice} (OpenVINO: {said})"
    return text[:400]


class _KnownError(NamedTuple):
    pattern: str  # regular expression, searched in the plugin's text
    advice: str  # {device}: its name; {driver}: " (now 1.2)" or ""
    means_unreachable: bool = False  # where the device is missing, that is the better explanation


_UPDATE = "Update the driver of {device}{driver} and openvino"
_SMALLER = "Choose a smaller image, or put this submodel on GPU or CPU."

# The first that fits is taken, so the specific ones stand above the Level Zero codes that come along with them. The
# texts are from bug reports at openvino, openvino.genai, linux-npu-driver and openvino-ai-plugins-gimp.
_KNOWN_ERRORS = (
    _KnownError(
        r"(lib)?openvino_intel_npu_compiler_loader",
        "OpenVINO found no NPU compiler: its Linux wheel has none, the driver brings it. Install the package "
        "intel-driver-compiler-npu in the same release as intel-level-zero-npu.",
        means_unreachable=True,
    ),
    _KnownError(
        r"StaticAllocation|Failed to statically allocate",
        "the model does not fit into the memory of {device} at this size. " + _SMALLER,
    ),
    _KnownError(
        r"to_shape was called on a dynamic shape",
        "the model has a dynamic dimension, and {device} needs every dimension fixed. Compile it for one size and one "
        "batch, or for GPU or CPU.",
    ),
    _KnownError(
        r"Unsupported operation",
        "the compiler of {device} does not know an operator of this model, often because the driver{driver} with its "
        "compiler is older than OpenVINO. Update the driver, let OpenVINO's own compiler do it where there is one "
        "(compiler_type PLUGIN), or put this submodel on GPU or CPU.",
    ),
    _KnownError(
        r"[Bb]lob is missing (the )?NPU metadata|Metadata version is not supported",
        "the cached blob was made by another OpenVINO version and must be compiled again: clear this model's cache.",
    ),
    _KnownError(
        r"No backend registered during model import|Unexpected end of ORC input stream",
        "the cached blob is damaged or not for this machine and must be compiled again: clear this model's cache.",
        means_unreachable=True,
    ),
    _KnownError(
        r"No available backend|No available devices",
        "OpenVINO does not reach the driver of {device}{driver}. Install or update it, and restart the computer.",
        means_unreachable=True,
    ),
    _KnownError(
        r"libOpenCL\.so\.1|OpenCL\.dll",
        "the OpenCL loader is not installed. Install ocl-icd-libopencl1 and intel-opencl-icd (Linux) or Intel's "
        "graphics driver (Windows).",
        means_unreachable=True,
    ),
    _KnownError(
        r"ZE_RESULT_ERROR_DEVICE_LOST|0x70000001",
        "the device hung or was reset during the run. Run again; if it comes back, restart the computer or reload the "
        "driver (NPU on Linux: sudo rmmod intel_vpu && sudo modprobe intel_vpu), update it, choose a smaller image.",
    ),
    _KnownError(
        r"ZE_RESULT_ERROR_OUT_OF_(DEVICE|HOST)_MEMORY|0x7000000[23]",
        "there is not enough memory for this model at this size. " + _SMALLER,
    ),
    _KnownError(
        r"ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS|0x70010000",
        "you may not use this device. On Linux add yourself to the group 'render' and log in again.",
    ),
    _KnownError(
        r"ZE_RESULT_ERROR_UNSUPPORTED_(FEATURE|VERSION)|0x7800000[23]",
        "the driver lacks something that this OpenVINO asks for. " + _UPDATE + ", to releases of about the same date.",
    ),
    _KnownError(
        r"ZE_RESULT_ERROR_INVALID_ARGUMENT|0x78000004",
        "the driver refused an argument, mostly because a cached blob or the compiler does not fit it. "
        + _UPDATE
        + ", and clear this model's cache.",
    ),
)


def _names() -> tuple[str, ...]:
    found = list(core().available_devices)
    if emulates_npu():
        found = [*(name for name in found if not is_npu(name)), "NPU"]
    _seen.update(found)
    return tuple(found)


def _info(name: str) -> DeviceInfo:
    if is_npu(name) and emulates_npu():
        return DeviceInfo("NPU", _property("CPU", "FULL_DEVICE_NAME"), "emulated", "", is_emulated=True)
    driver = _DRIVER_PROPERTY.get(base_name(name))
    return DeviceInfo(
        name=name,
        full_name=_property(name, "FULL_DEVICE_NAME"),
        architecture=_property(name, "DEVICE_ARCHITECTURE"),
        driver=_property(name, driver) if driver else "",
        is_emulated=False,
    )


def _property(device: str, key: str) -> str:
    """A property as text; "" where the plugin does not have it, which differs between drivers and versions."""
    try:
        value = core().get_property(device, key)
    except (RuntimeError, TypeError, ValueError):  # not there; or of a type or encoding that Python does not get
        return ""
    if isinstance(value, list | tuple | set):
        return " ".join(sorted(str(one) for one in value))
    return str(getattr(value, "name", value)).strip()  # an enum of OpenVINO has a name


def _npu_compiler(device: str) -> str:
    """'PLUGIN 8.4': where the compiler comes from (driver or wheel) and its version, major in the upper 16 bits."""
    number = _property(device, "NPU_COMPILER_VERSION")
    if number.isdecimal():
        number = f"{int(number) >> 16}.{int(number) & 0xFFFF}"
    return f"{_property(device, 'NPU_COMPILER_TYPE')} {number}".strip()


def _openvino_build() -> str:
    core()  # says what to do when OpenVINO cannot be imported
    import openvino

    return str(openvino.get_version())


def _is_present(device: str, names: tuple[str, ...]) -> bool:
    """'GPU' means GPU.0 where several are numbered, and a single one that is listed as 'GPU' answers to 'GPU.0'."""
    return device in names or device in map(base_name, names) or device in (f"{name}.0" for name in names)


def _first_present(order: tuple[str, ...], names: tuple[str, ...]) -> str:
    return next((device for device in order if _is_present(device, names)), "CPU")


def _described(names: tuple[str, ...] | list[str]) -> str:
    infos = [_info(name) for name in names]
    return ", ".join(f"{info.label} ({info.full_name})" if info.full_name else info.label for info in infos)


# An error's explanation asks about the device only where that works: the enumeration itself may be what is broken.


def _why_missing_if_known(device: str) -> str:
    try:
        return why_missing(device)
    except (DeviceError, RuntimeError):
        return ""


def _driver_if_known(device: str) -> str:
    try:
        driver = _info(device).driver
    except DeviceError:
        return ""
    return f" (now {driver})" if driver else ""
