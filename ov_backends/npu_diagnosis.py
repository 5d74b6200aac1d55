"""Why OpenVINO sees no NPU (or no GPU) on this machine, and what the user can do about it.

Facts about the Linux stack (intel_vpu, /dev/accel, libze_intel_npu): docs/overview.md of intel/linux-npu-driver.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_INTEL = "0x8086"
_LINUX_DRIVER = "https://github.com/intel/linux-npu-driver/releases"
_WINDOWS_DRIVER = "https://www.intel.com/content/www/us/en/download/794734/intel-npu-driver-windows.html"
_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib64",
    "usr/local/lib",
    "usr/local/lib64",
    "usr/local/lib/x86_64-linux-gnu",
    "run/opengl-driver/lib",  # NixOS
)


def _may_open(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)  # the driver opens the node O_RDWR


@dataclass(frozen=True)
class System:
    """The machine as the diagnosis sees it; a test gives a folder tree of its own as root."""

    platform: str  # as sys.platform
    root: Path  # parent of /dev, /sys, /proc; on Windows %SystemRoot%
    readable: Callable[[Path], bool] = _may_open  # may this process open the device node for reading and writing
    library_folders: tuple[Path, ...] = ()  # searched besides the usual ones

    @classmethod
    def here(cls) -> System:
        if sys.platform == "win32":
            return cls(sys.platform, Path(os.environ.get("SYSTEMROOT", "C:/Windows")))
        own = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
        return cls(sys.platform, Path("/"), library_folders=(*own, Path(sys.prefix) / "lib"))


def diagnose_npu(system: System) -> str:
    """One or two sentences: what keeps OpenVINO from seeing the NPU, and the remedy."""
    if system.platform == "win32":
        return _diagnose_npu_windows(system)
    if system.platform != "linux":
        return f"Intel NPUs need Windows or Linux, and this is '{system.platform}'. Choose CPU or AUTO."

    nodes = _device_nodes(system, "accel", "accel*")
    if not nodes:
        return _why_no_npu_node(system)
    if not any(system.readable(node) for node in nodes):
        return _no_permission(system, "NPU", f"/dev/accel/{nodes[0].name}")
    where = " inside the container" if _in_container(system) else ""
    if not _has_library(system, "libze_intel_npu.so*", "libze_intel_vpu.so*"):  # the second: before driver 1.16
        return (
            f"The kernel sees the NPU, but Intel's user-space NPU driver (libze_intel_npu.so) is not installed{where}. "
            "Install the packages intel-level-zero-npu, intel-driver-compiler-npu and intel-fw-npu from "
            f"{_LINUX_DRIVER}."
        )
    if not _has_library(system, "libze_loader.so.1*"):
        return (
            f"The NPU and its driver are here, but the Level Zero loader (libze_loader.so.1) is not installed{where}. "
            f"Install it: package libze1 or level-zero of your distribution."
        )
    if not _has_library(system, "libnpu_driver_compiler.so*", "libvpux_driver_compiler.so*"):
        return (
            f"The NPU and its driver are here, but no compiler for it{where}: OpenVINO's Linux wheel brings none. "
            f"Install intel-driver-compiler-npu in the same release as intel-level-zero-npu, from {_LINUX_DRIVER}."
        )
    return (
        "The NPU, its device node and its driver are all here, yet OpenVINO does not list it: driver and OpenVINO do "
        f"not fit together. Update the NPU driver (all three packages of one release, {_LINUX_DRIVER}) and openvino, "
        "then start the computer again."
    )


def diagnose_gpu(system: System) -> str:
    """One or two sentences: what keeps OpenVINO from seeing an Intel GPU, and the remedy."""
    if system.platform == "win32":
        return (
            "OpenVINO sees no Intel GPU on this computer; GPUs of other makers are not supported by it. If there is an "
            "Intel GPU, install its current graphics driver from intel.com and restart."
        )
    if system.platform != "linux":
        return f"OpenVINO needs Windows or Linux for Intel GPUs, and this is '{system.platform}'. Choose CPU or AUTO."

    if _in_wsl(system):
        if not (system.root / "dev/dxg").exists():
            return (
                "WSL passes no GPU into Linux here (/dev/dxg is missing). Update WSL ('wsl --update') and the "
                "graphics driver of Windows."
            )
    else:
        nodes = _device_nodes(system, "dri", "renderD*")
        if not nodes and not _on_pci_bus(system, "0x03"):
            return "This computer shows no Intel GPU; GPUs of other makers are not supported by OpenVINO."
        if not nodes and _in_container(system):
            return (
                "The computer has an Intel GPU, but this container was started without it. Start the container with "
                "'--device /dev/dri' and '--group-add' with the number of the host's 'render' group."
            )
        if not nodes:
            return (
                "There is an Intel GPU, but no render node /dev/dri/renderD*: the kernel driver (i915 or xe) is not "
                "loaded. Update the kernel, and see 'sudo dmesg | grep -E \"i915|xe\"'."
            )
        if not any(system.readable(node) for node in nodes):
            return _no_permission(system, "GPU", f"/dev/dri/{nodes[0].name}")
    if not _has_library(system, "libOpenCL.so.1*") or not _has_intel_opencl(system):
        return (
            "Intel's compute runtime is not installed, through which OpenVINO reaches an Intel GPU. Install the "
            "packages ocl-icd-libopencl1 and intel-opencl-icd (or intel-compute-runtime), then restart ComfyUI."
        )
    return (
        "The Intel GPU and its compute runtime are here, yet OpenVINO does not list it. Update intel-opencl-icd and "
        "the kernel; 'clinfo' must show the GPU."
    )


def _diagnose_npu_windows(system: System) -> str:
    if any((system.root / "System32/DriverStore/FileRepository").glob("npu*.inf_*")):
        return (
            "An NPU driver is installed, yet OpenVINO does not list the NPU: the driver is too old for this OpenVINO, "
            f"or the NPU is switched off. Install the current driver ({_WINDOWS_DRIVER}), and look for "
            "'Intel(R) AI Boost' in the Device Manager."
        )
    return (
        "Windows has no Intel NPU driver: either the processor has no NPU (Intel Core Ultra has one), or the driver is "
        f"missing. Install it from {_WINDOWS_DRIVER}; without an NPU choose GPU, CPU or AUTO."
    )


def _why_no_npu_node(system: System) -> str:
    if _in_wsl(system):
        return (
            "WSL does not pass the NPU into Linux, nor do containers that run on it. Run ComfyUI on Windows "
            "itself; within WSL choose GPU, CPU or AUTO."
        )
    is_on_bus = _on_pci_bus(system, "0x1200")
    if _in_container(system):
        if is_on_bus:
            return (
                "The computer has an Intel NPU, but this container was started without it. Start the container with "
                "'--device /dev/accel/accel0' and '--group-add' with the number of the host's 'render' group "
                "('stat -c %g /dev/accel/accel0')."
            )
        return (
            "This container runs on a computer that shows no Intel NPU (no node /dev/accel, none on the PCI bus). Run "
            "it on a computer with Intel Core Ultra and '--device /dev/accel/accel0', or choose GPU, CPU or AUTO."
        )
    if not is_on_bus:
        return (
            "This computer shows no Intel NPU on its PCI bus. Intel Core Ultra processors have one; there it may be "
            "switched off in the BIOS or hidden by a virtual machine. Otherwise choose GPU, CPU or AUTO."
        )
    kernel = _kernel_version(system)
    if (system.root / "sys/module/intel_vpu").exists():
        return (
            "The NPU is on the PCI bus and its kernel driver intel_vpu is loaded, but it made no node /dev/accel: "
            f"mostly the firmware is missing. Install intel-fw-npu ({_LINUX_DRIVER}), restart, and see "
            "'sudo dmesg | grep intel_vpu'."
        )
    if kernel and kernel < (6, 8):
        return (
            f"The NPU is on the PCI bus, but Linux {kernel[0]}.{kernel[1]} is too old for its driver intel_vpu. "
            "Install kernel 6.8 or newer."
        )
    return (
        "The NPU is on the PCI bus, but its kernel driver intel_vpu is not loaded. Load it: 'sudo modprobe intel_vpu' "
        "(part of Linux 6.8 and newer)."
    )


def _no_permission(system: System, device: str, node: str) -> str:
    if _in_container(system):
        return (
            f"The {device} is here, but this process may not open {node}. Start the container with '--group-add' and "
            f"the number that 'stat -c %g {node}' prints."
        )
    return (
        f"The {device} is here, but you may not open {node}. Add yourself to the group 'render' "
        f"('sudo usermod -a -G render $USER'), log out and in again; 'ls -l {node}' must show that group."
    )


def _device_nodes(system: System, folder: str, pattern: str) -> list[Path]:
    """Nodes in /dev/<folder>, less those that sysfs says are another maker's: AMD's NPU is /dev/accel/accel0 too."""
    kind = {"accel": "accel", "dri": "drm"}[folder]
    nodes = sorted((system.root / "dev" / folder).glob(pattern))
    return [n for n in nodes if _text(system.root / "sys/class" / kind / n.name / "device/vendor") in ("", _INTEL)]


def _on_pci_bus(system: System, pci_class: str) -> bool:
    """pci_class: start of the class code: 0x1200 processing accelerator, 0x03 display controller."""
    return any(
        _text(device / "vendor") == _INTEL and _text(device / "class").startswith(pci_class)
        for device in (system.root / "sys/bus/pci/devices").glob("*")
    )


def _in_wsl(system: System) -> bool:
    return "microsoft" in _text(system.root / "proc/version").lower()


def _in_container(system: System) -> bool:
    return any((system.root / mark).exists() for mark in (".dockerenv", "run/.containerenv", "run/systemd/container"))


def _kernel_version(system: System) -> tuple[int, int] | None:
    found = re.search(r"Linux version (\d+)\.(\d+)", _text(system.root / "proc/version"))
    return (int(found[1]), int(found[2])) if found else None


def _has_library(system: System, *patterns: str) -> bool:
    folders = [*(system.root / folder for folder in _LIBRARY_FOLDERS), *system.library_folders]
    return any(next(folder.glob(pattern), None) for folder in folders for pattern in patterns)


def _has_intel_opencl(system: System) -> bool:
    vendors = system.root / "etc/OpenCL/vendors"
    return any("intel" in icd.name or "libigdrcl" in _text(icd) for icd in vendors.glob("*.icd"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
