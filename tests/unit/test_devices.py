"""Devices: what is offered, what is there, what a submodel gets, and whether a user is told why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from ovpack.ov_backends import devices
from ovpack.ov_backends.errors import DeviceError, PlanError
from ovpack.ov_backends.npu_diagnosis import System, diagnose_gpu, diagnose_npu
from ovpack.ov_backends.plan import POLICIES

PACK = Path(__file__).parents[2]
PROPERTIES = {
    ("CPU", "FULL_DEVICE_NAME"): "Intel(R) Core(TM) Ultra 7 258V",
    ("CPU", "DEVICE_ARCHITECTURE"): "intel64",
    ("CPU", "OPTIMIZATION_CAPABILITIES"): ["INT8", "FP32", "BF16"],
    ("GPU.0", "FULL_DEVICE_NAME"): "Intel(R) Arc(TM) 140V GPU (iGPU)",
    ("GPU.1", "FULL_DEVICE_NAME"): "Intel(R) Arc(TM) B580 Graphics (dGPU)",
    ("NPU", "FULL_DEVICE_NAME"): "Intel(R) AI Boost",
    ("NPU", "DEVICE_ARCHITECTURE"): "4000",
    ("NPU", "NPU_DRIVER_VERSION"): 1004023,
    ("NPU", "NPU_COMPILER_VERSION"): (8 << 16) + 4,
    ("NPU", "NPU_COMPILER_TYPE"): "PLUGIN",
}


@dataclass
class FakeCore:
    """The two members of openvino.Core that the module uses."""

    available_devices: list[str]
    properties: dict[tuple[str, str], object] = field(default_factory=lambda: dict(PROPERTIES))

    def get_property(self, device: str, key: str) -> object:
        if (device, key) not in self.properties:
            raise RuntimeError(f"Unsupported configuration key: {key}")
        return self.properties[device, key]


UseCore = Callable[..., FakeCore]


@pytest.fixture(autouse=True)
def no_emulation(monkeypatch):
    monkeypatch.delenv("OVNPU_NPU_EMULATION", raising=False)
    monkeypatch.setattr(devices, "_seen", set())


@pytest.fixture
def use_core(monkeypatch) -> UseCore:
    def use(*names: str) -> FakeCore:
        fake = FakeCore(list(names))
        monkeypatch.setattr(devices, "core", lambda: fake)
        return fake

    return use


@pytest.fixture
def emulation(monkeypatch):
    monkeypatch.setenv("OVNPU_NPU_EMULATION", "1")


def here(monkeypatch, system: System) -> None:
    monkeypatch.setattr(System, "here", classmethod(lambda cls: system))


# What a widget offers


def test_importing_the_module_loads_no_heavy_package_and_offers_the_choices():
    code = (
        "import sys; from ov_backends import devices; devices.device_choices(); "
        "print([m for m in ('openvino', 'torch', 'numpy', 'comfy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PACK, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("present", [("CPU",), ("CPU", "GPU"), ("CPU", "GPU.0", "GPU.1", "NPU")], ids="-".join)
def test_the_choices_are_the_same_on_every_machine(use_core, present):
    use_core(*present)
    devices.list_devices()
    assert devices.device_choices() == ["AUTO", "CPU", "GPU", "NPU", "GPU.0", "GPU.1", "GPU.2", "GPU.3"]


def test_a_device_beyond_the_usual_names_is_offered_once_it_was_seen(use_core):
    use_core("CPU", "GPU.0", "GPU.4")
    assert "GPU.4" not in devices.device_choices()
    devices.list_devices()
    assert devices.device_choices()[-1] == "GPU.4"


# What is there


def test_devices_are_listed_with_name_architecture_and_driver(use_core):
    use_core("CPU", "NPU")
    npu = devices.list_devices()[1]
    assert npu == devices.DeviceInfo("NPU", "Intel(R) AI Boost", "4000", "1004023", is_emulated=False)
    assert npu.label == "NPU"


@pytest.mark.parametrize("error", [RuntimeError("no driver"), TypeError("unknown type"), ValueError("bad utf-8")])
def test_a_property_that_cannot_be_read_does_not_hide_the_device(use_core, monkeypatch, error):
    fake = use_core("CPU", "GPU")

    def fail(device, key):
        raise error

    monkeypatch.setattr(fake, "get_property", fail)
    assert [info.name for info in devices.list_devices()] == ["CPU", "GPU"]
    assert devices.list_devices()[1] == devices.DeviceInfo("GPU", "", "", "", is_emulated=False)


def test_the_emulated_npu_is_listed_and_cannot_be_mistaken_for_a_real_one(use_core, emulation):
    use_core("CPU")
    npu = devices.list_devices()[-1]
    assert (npu.name, npu.label, npu.is_emulated) == ("NPU", "NPU (emulated on CPU)", True)
    assert [devices.label(name) for name in ("CPU", "NPU")] == ["CPU", "NPU (emulated on CPU)"]


def test_emulation_hides_a_real_npu(use_core, emulation):
    use_core("CPU", "NPU")
    assert [info.label for info in devices.list_devices()] == ["CPU", "NPU (emulated on CPU)"]


@pytest.mark.parametrize("value, expected", [("1", True), ("0", False), ("", False)])
def test_emulation_is_read_when_it_is_asked_for(monkeypatch, value, expected):
    monkeypatch.setenv("OVNPU_NPU_EMULATION", value)
    assert devices.emulates_npu() is expected


@pytest.mark.parametrize("device, base, npu", [("GPU.1", "GPU", False), ("NPU", "NPU", True), ("NPU.0", "NPU", True)])
def test_a_numbered_device_belongs_to_its_family(device, base, npu):
    assert devices.base_name(device) == base
    assert devices.is_npu(device) is npu


def test_versions_name_openvino_python_system_and_each_driver(use_core):
    use_core("CPU", "NPU")
    found = devices.versions()
    assert {"openvino", "python", "os"} <= found.keys()
    assert found["driver NPU"] == "1004023"
    assert "driver CPU" not in found


# What a blob depends on


def test_identity_of_an_npu_holds_driver_and_compiler(use_core):
    use_core("CPU", "NPU")
    found = devices.identity("NPU")
    assert (found["architecture"], found["driver"], found["compiler"]) == ("4000", "1004023", "PLUGIN 8.4")


@pytest.mark.parametrize(
    "key, value, changed",
    [
        ("NPU_DRIVER_VERSION", 1005000, "driver"),
        ("NPU_COMPILER_VERSION", (8 << 16) + 5, "compiler"),
        ("NPU_COMPILER_TYPE", "DRIVER", "compiler"),
        ("DEVICE_ARCHITECTURE", "5010", "architecture"),
    ],
)
def test_an_update_changes_the_identity_in_one_place(use_core, key, value, changed):
    fake = use_core("CPU", "NPU")
    before = devices.identity("NPU")
    fake.properties["NPU", key] = value
    now = devices.identity("NPU")
    assert [part for part in now if now[part] != before[part]] == [changed]


def test_identity_of_the_cpu_holds_its_instruction_sets_in_any_order(use_core):
    fake = use_core("CPU")
    before = devices.identity("CPU")
    assert (before["capabilities"], before["compiler"]) == ("BF16 FP32 INT8", "")
    fake.properties["CPU", "OPTIMIZATION_CAPABILITIES"] = ["BF16", "INT8", "FP32"]
    assert devices.identity("CPU") == before


def test_a_blob_of_the_emulated_npu_is_neither_the_cpus_nor_a_real_npus(use_core, emulation, monkeypatch):
    use_core("CPU", "NPU")
    emulated = devices.identity("NPU")
    assert (emulated["device"], emulated["architecture"]) == ("NPU", "emulated")
    assert emulated["full_name"] == PROPERTIES["CPU", "FULL_DEVICE_NAME"]
    assert emulated["capabilities"] == "BF16 FP32 INT8"
    assert emulated != devices.identity("CPU")
    monkeypatch.delenv("OVNPU_NPU_EMULATION")
    assert emulated != devices.identity("NPU")


# Which device a submodel gets

ALL = ("CPU", "GPU.0", "GPU.1", "NPU")


@pytest.mark.parametrize(
    "present, requested, submodel, device",
    [
        (ALL, "AUTO", "unet", "NPU"),
        (ALL, "AUTO", "text_encoder", "GPU"),
        (ALL, "AUTO", "vae_decoder", "GPU"),
        (ALL, "AUTO", "vae_encoder", "GPU"),
        (("CPU", "GPU"), "AUTO", "unet", "GPU"),
        (("CPU", "NPU"), "AUTO", "vae_decoder", "CPU"),
        (("CPU",), "AUTO", "unet", "CPU"),
        (ALL, "NPU", "vae_decoder", "NPU"),
        (ALL, "GPU", "unet", "GPU"),
        (ALL, "GPU.1", "unet", "GPU.1"),
        (("CPU", "GPU"), "GPU.0", "unet", "GPU.0"),
        (("CPU",), "cpu", "unet", "CPU"),
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_present_device_is_taken_without_remark(use_core, present, requested, submodel, device, policy):
    use_core(*present)
    assert devices.resolve(requested, submodel, policy) == devices.Resolution(requested, device, "")


@pytest.mark.parametrize(
    "present, requested, submodel, device",
    [
        (("CPU", "GPU"), "NPU", "unet", "GPU"),
        (("CPU",), "NPU", "unet", "CPU"),
        (("CPU", "GPU.0", "GPU.1"), "NPU", "vae_decoder", "GPU"),
        (("CPU", "NPU"), "GPU", "unet", "CPU"),  # after GPU comes CPU, not back to NPU
        (("CPU", "GPU.0", "GPU.1"), "GPU.3", "unet", "GPU"),
        (("CPU", "GPU"), "TPU", "vae_encoder", "GPU"),
    ],
)
@pytest.mark.parametrize("policy", ["warn", "allow"])
def test_a_missing_device_falls_to_the_next_with_the_reason(use_core, present, requested, submodel, device, policy):
    use_core(*present)
    got = devices.resolve(requested, submodel, policy)
    assert (got.requested, got.device) == (requested, device)
    assert got.reason.startswith(f"{submodel} runs on {device} instead of {requested}. ")
    assert got.reason.endswith(devices.why_missing(requested))


def test_a_missing_device_with_policy_error_names_device_reason_and_remedy(use_core, monkeypatch):
    use_core("CPU", "GPU")
    here(monkeypatch, System("darwin", Path("/")))
    with pytest.raises(DeviceError) as raised:
        devices.resolve("NPU", "unet", "error")
    assert str(raised.value) == (
        "unet was to run on NPU, which is not available. Intel NPUs need Windows or Linux, and this is 'darwin'. "
        "Choose CPU or AUTO. To run on another device instead, set the fallback policy to warn or allow; "
        "present are CPU, GPU."
    )


def test_a_fallback_onto_the_emulated_npu_says_emulated(use_core, emulation):
    use_core("CPU")
    got = devices.resolve("NPU.1", "unet", "warn")
    assert got.device == "NPU"
    assert "runs on NPU (emulated on CPU) instead of NPU.1" in got.reason


@pytest.mark.parametrize("submodel, policy", [("unett", "warn"), ("unet", "maybe")])
def test_a_misspelt_submodel_or_policy_is_a_plan_error(use_core, submodel, policy):
    use_core("CPU")
    with pytest.raises(PlanError, match="there are"):
        devices.resolve("AUTO", submodel, policy)


def test_no_vae_goes_to_the_npu_unasked():
    assert "NPU" not in devices.PREFERENCE["vae_decoder"] + devices.PREFERENCE["vae_encoder"]


def test_a_missing_number_names_the_ones_that_exist(use_core):
    use_core(*ALL)
    assert devices.why_missing("GPU.2") == (
        "There is no GPU.2 here; OpenVINO sees GPU.0 (Intel(R) Arc(TM) 140V GPU (iGPU)), "
        "GPU.1 (Intel(R) Arc(TM) B580 Graphics (dGPU)). Choose one of these."
    )


def test_an_unknown_device_lists_what_is_there(use_core):
    use_core("CPU")
    why = devices.why_missing("TPU")
    assert "'TPU'" in why and "CPU (Intel(R) Core(TM) Ultra 7 258V)" in why


def test_a_present_device_is_not_missing(use_core):
    use_core(*ALL)
    assert [devices.why_missing(name) for name in (*ALL, "GPU")] == [""] * 5


# What is given to OpenVINO


def test_the_emulation_needs_its_properties_and_nothing_else_does(use_core, emulation, monkeypatch):
    use_core("CPU")
    assert devices.resolve("NPU", "unet", "error").properties["NPUW_DEVICES"] == "CPU"
    assert devices.compile_properties("CPU") == {}
    monkeypatch.delenv("OVNPU_NPU_EMULATION")
    assert devices.compile_properties("NPU") == {}


def test_the_installed_openvino_lists_a_cpu_that_can_be_identified():
    info = next(info for info in devices.list_devices() if info.name == "CPU")
    assert info.full_name
    assert "FP32" in devices.identity("CPU")["capabilities"]


def test_the_emulated_npu_of_the_installed_openvino_computes(emulation):
    import openvino as ov
    from openvino import opset13 as op

    x = op.parameter([1, 4], np.float32)
    compiled = devices.core().compile_model(ov.Model([op.relu(x)], [x]), "NPU", devices.compile_properties("NPU"))
    assert compiled.get_property("EXECUTION_DEVICES") in ("NPU", ["NPU"])
    np.testing.assert_array_equal(compiled(np.array([[-1, 2, -3, 4]], np.float32))[0], [[0, 2, 0, 4]])


# Errors of the plugins


@pytest.mark.parametrize(
    "text, says",
    [
        ("Exception from x.cpp:1:\nCannot load libopenvino_intel_npu_compiler_loader.so: no", "intel-driver-compiler"),
        ("StaticAllocation pass failed: Failed to statically allocate DDR", "does not fit into the memory"),
        ("Failed to statically allocate NN_CMX", "smaller image"),
        ("to_shape was called on a dynamic shape.", "every dimension fixed"),
        ("Unsupported operation MaxPool_3 with type MaxPool", "driver (now 1004023) with its compiler is older"),
        ("Can't import network: Blob is missing NPU metadata!", "must be compiled again"),
        ("The blob is missing the NPU metadata!", "must be compiled again"),
        ("No backend registered during model import", "must be compiled again"),
        ("Unexpected end of ORC input stream", "must be compiled again"),
        ("No available backend", "does not reach the driver"),
        ("libOpenCL.so.1: cannot open shared object file", "intel-opencl-icd"),
        ("L0 zeFence result: ZE_RESULT_ERROR_DEVICE_LOST, code 0x70000001 - device hung", "modprobe intel_vpu"),
        ("result code 0x70000001", "hung or was reset"),
        ("ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, code 0x70000003", "not enough memory"),
        ("ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS", "group 'render'"),
        ("ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, code 0x78000003", "Update the driver of NPU (now 1004023)"),
        (
            "zeGraphSetArgumentValue result: ZE_RESULT_ERROR_INVALID_ARGUMENT, code 0x78000004",
            "clear this model's cache",
        ),
    ],
)
def test_a_known_plugin_error_becomes_advice_and_keeps_the_original(use_core, text, says):
    use_core("CPU", "NPU")
    explained = devices.explain_device_error(RuntimeError(text), "NPU")
    assert explained.startswith("NPU: ")
    assert says in explained
    assert "{" not in explained
    assert explained.split("(OpenVINO: ")[1].rstrip(")") in text


def test_an_error_that_hides_a_missing_npu_is_explained_by_what_is_missing(use_core, monkeypatch):
    use_core("CPU")
    here(monkeypatch, System("darwin", Path("/")))
    explained = devices.explain_device_error(
        RuntimeError("Cannot load libopenvino_intel_npu_compiler_loader.so"), "NPU"
    )
    assert "need Windows or Linux" in explained


def test_an_error_on_the_emulated_npu_says_emulated(use_core, emulation):
    use_core("CPU")
    explained = devices.explain_device_error(RuntimeError("No backend registered during model import"), "NPU")
    assert explained.startswith("NPU (emulated on CPU): the cached blob")


def test_an_unknown_error_passes_verbatim_and_short():
    assert devices.explain_device_error(RuntimeError("odd {thing}\nsecond line"), "NPU") == "odd {thing}\nsecond line"
    assert devices.explain_device_error(RuntimeError("x" * 1000), "GPU") == "x" * 400
    assert devices.explain_device_error(MemoryError(), "CPU") == "MemoryError"


# Why there is no NPU: folder trees that look like the machine in question


def tree(root: Path, *files: str, **texts: str) -> Path:
    """Empty files, and files with a text: the key's double underscores separate folders."""
    for name, text in [*((file, "") for file in files), *((k.replace("__", "/"), v) for k, v in texts.items())]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def pci(root: Path, name: str, pci_class: str, vendor: str = "0x8086") -> None:
    tree(root, **{f"sys__bus__pci__devices__{name}__class": pci_class + "\n"})
    tree(root, **{f"sys__bus__pci__devices__{name}__vendor": vendor + "\n"})


def with_npu(root: Path) -> None:
    pci(root, "0b.0", "0x120000")


def with_node(root: Path) -> None:
    with_npu(root)
    tree(root, "dev/accel/accel0", **{"sys__class__accel__accel0__device__vendor": "0x8086\n"})


def with_driver(root: Path) -> None:
    with_node(root)
    tree(root, "usr/lib/x86_64-linux-gnu/libze_intel_npu.so.1.16.0")


def linux(root: Path, may_open: bool = True) -> System:
    if not (root / "proc/version").exists():
        tree(root, proc__version="Linux version 6.11.0-generic (gcc 13)")
    return System("linux", root, readable=lambda path: may_open)


def wsl(root: Path) -> System:
    tree(root, ".dockerenv", proc__version="Linux version 5.15.167.4-microsoft-standard-WSL2")
    return linux(root)


def container_with_npu_outside(root: Path) -> System:
    with_npu(root)
    return linux(tree(root, ".dockerenv"))


def container_without_npu(root: Path) -> System:
    return linux(tree(root, "run/.containerenv"))


def nothing_on_the_bus(root: Path) -> System:
    pci(root, "00.0", "0x060000")
    return linux(root)


def npu_of_another_maker(root: Path) -> System:
    pci(root, "0b.0", "0x120000", vendor="0x1022")
    return linux(tree(root, "dev/accel/accel0", **{"sys__class__accel__accel0__device__vendor": "0x1022\n"}))


def old_kernel(root: Path) -> System:
    with_npu(root)
    return linux(tree(root, proc__version="Linux version 6.5.0-28-generic (gcc)"))


def module_not_loaded(root: Path) -> System:
    with_npu(root)
    return linux(root)


def firmware_missing(root: Path) -> System:
    with_npu(root)
    return linux(tree(root, "sys/module/intel_vpu/refcnt"))


def no_permission(root: Path) -> System:
    with_driver(root)
    return linux(root, may_open=False)


def no_permission_in_container(root: Path) -> System:
    with_driver(root)
    return linux(tree(root, ".dockerenv"), may_open=False)


def no_user_space_driver(root: Path) -> System:
    with_node(root)
    return linux(root)


def no_level_zero_loader(root: Path) -> System:
    with_driver(root)
    return linux(root)


def no_npu_compiler(root: Path) -> System:
    with_driver(root)
    return linux(tree(root, "usr/lib/x86_64-linux-gnu/libze_loader.so.1"))


def mismatch(root: Path) -> System:
    no_npu_compiler(root)
    return linux(tree(root, "usr/lib/x86_64-linux-gnu/libnpu_driver_compiler.so"))


def windows_with_driver(root: Path) -> System:
    return System("win32", tree(root, "System32/DriverStore/FileRepository/npu.inf_amd64_1a2b/npu_kmd.sys"))


def windows_without_driver(root: Path) -> System:
    return System("win32", tree(root, "System32/DriverStore/FileRepository/usb.inf_amd64_1a2b/usb.sys"))


def macos(root: Path) -> System:
    return System("darwin", root)


NPU_CASES = {
    wsl: "WSL does not pass the NPU into Linux",
    container_with_npu_outside: "--device /dev/accel/accel0' and '--group-add'",
    container_without_npu: "This container runs on a computer that shows no Intel NPU",
    nothing_on_the_bus: "no Intel NPU on its PCI bus",
    npu_of_another_maker: "no Intel NPU on its PCI bus",
    old_kernel: "Linux 6.5 is too old",
    module_not_loaded: "sudo modprobe intel_vpu",
    firmware_missing: "Install intel-fw-npu",
    no_permission: "usermod -a -G render",
    no_permission_in_container: "'--group-add' and the number that 'stat -c %g /dev/accel/accel0'",
    no_user_space_driver: "intel-level-zero-npu, intel-driver-compiler-npu and intel-fw-npu",
    no_level_zero_loader: "libze1 or level-zero",
    no_npu_compiler: "no compiler for it",
    mismatch: "driver and OpenVINO do not fit together",
    windows_with_driver: "too old for this OpenVINO",
    windows_without_driver: "Windows has no Intel NPU driver",
    macos: "need Windows or Linux",
}


@pytest.mark.parametrize("machine", NPU_CASES, ids=lambda machine: machine.__name__)
def test_a_missing_npu_is_explained_by_what_the_machine_lacks(tmp_path, machine):
    assert NPU_CASES[machine] in diagnose_npu(machine(tmp_path))


def test_every_cause_has_a_message_of_its_own(tmp_path):
    messages = {diagnose_npu(case(tmp_path / case.__name__)) for case in NPU_CASES if case is not npu_of_another_maker}
    assert len(messages) == len(NPU_CASES) - 1


@pytest.mark.parametrize("library", ["libze_intel_vpu.so.1", "libze_intel_npu.so"])
def test_the_driver_is_found_under_both_names_and_in_folders_of_its_own(tmp_path, library):
    with_node(tmp_path)
    own = tree(tmp_path / "env lib", library, "libze_loader.so.1.24.1", "libnpu_driver_compiler.so")
    system = linux(tmp_path)
    assert "user-space" in diagnose_npu(system)
    assert "do not fit together" in diagnose_npu(System("linux", tmp_path, lambda path: True, (own,)))


def test_why_missing_asks_the_machine_at_hand(use_core, monkeypatch, tmp_path):
    use_core("CPU")
    here(monkeypatch, no_permission(tmp_path))
    assert "usermod -a -G render" in devices.why_missing("NPU")


def test_the_diagnosis_of_this_machine_is_one_or_two_sentences():
    for message in (diagnose_npu(System.here()), diagnose_gpu(System.here())):
        assert 20 < len(message) < 400


# Why there is no GPU


def with_gpu_node(root: Path) -> None:
    pci(root, "02.0", "0x030000")
    tree(root, "dev/dri/renderD128")


def no_gpu(root: Path) -> System:
    return linux(root)


def gpu_of_another_maker(root: Path) -> System:
    pci(root, "01.0", "0x030000", vendor="0x10de")
    return linux(tree(root, "dev/dri/renderD128", **{"sys__class__drm__renderD128__device__vendor": "0x10de\n"}))


def gpu_outside_container(root: Path) -> System:
    pci(root, "02.0", "0x038000")
    return linux(tree(root, ".dockerenv"))


def no_render_node(root: Path) -> System:
    pci(root, "02.0", "0x030000")
    return linux(root)


def no_gpu_permission(root: Path) -> System:
    with_gpu_node(root)
    return linux(root, may_open=False)


def no_opencl_loader(root: Path) -> System:
    with_gpu_node(root)
    return linux(tree(root, "etc/OpenCL/vendors/intel.icd"))


def opencl_of_another_maker(root: Path) -> System:
    with_gpu_node(root)
    return linux(tree(root, "usr/lib64/libOpenCL.so.1", "etc/OpenCL/vendors/nvidia.icd"))


def gpu_complete(root: Path) -> System:
    with_gpu_node(root)
    return linux(tree(root, "usr/lib64/libOpenCL.so.1", "etc/OpenCL/vendors/intel.icd"))


def wsl_with_gpu(root: Path) -> System:
    tree(root, "dev/dxg")
    return wsl(root)


GPU_CASES = {
    no_gpu: "shows no Intel GPU",
    gpu_of_another_maker: "shows no Intel GPU",
    gpu_outside_container: "--device /dev/dri",
    no_render_node: "no render node",
    no_gpu_permission: "usermod -a -G render",
    no_opencl_loader: "compute runtime is not installed",
    opencl_of_another_maker: "compute runtime is not installed",
    gpu_complete: "'clinfo' must show the GPU",
    wsl: "wsl --update",
    wsl_with_gpu: "compute runtime is not installed",
    windows_without_driver: "graphics driver from intel.com",
    macos: "needs Windows or Linux",
}


@pytest.mark.parametrize("machine", GPU_CASES, ids=lambda machine: machine.__name__)
def test_a_missing_gpu_is_explained_by_what_the_machine_lacks(tmp_path, machine):
    assert GPU_CASES[machine] in diagnose_gpu(machine(tmp_path))
