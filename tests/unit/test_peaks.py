"""What a device can do at most: published figures with their source, a CPU that is measured, and the roofline."""

from __future__ import annotations

import re

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from ovpack.ov_backends import devices, peaks
from ovpack.ov_backends.cpu_speed import measure_bandwidth, measure_macs, product
from ovpack.ov_backends.devices import DeviceInfo
from ovpack.ov_backends.errors import ShapeError
from ovpack.ov_backends.peaks import (
    DevicePeak,
    Theory,
    arithmetic,
    compare_with_peak,
    device_peak,
    ideal_seconds,
)
from ovpack.ov_backends.public_peaks import PUBLIC, public_peak

FIVE_TOPS = DevicePeak("a device", "int8", 2.5e12, 50e9, "made up")


def theory(macs: int, least: int, most: int, measured_s: float) -> Theory:
    return Theory(FIVE_TOPS, macs, least, most, measured_s)


# The roofline


def test_one_gmac_on_five_tops_takes_0_4_ms():
    assert ideal_seconds(10**9, 0, FIVE_TOPS) == pytest.approx(0.4e-3)


def test_the_slower_of_arithmetic_and_memory_is_the_bound():
    assert ideal_seconds(10**9, 5 * 10**6, FIVE_TOPS) == pytest.approx(0.4e-3)
    assert ideal_seconds(10**9, 50 * 10**6, FIVE_TOPS) == pytest.approx(1e-3)
    assert not theory(10**9, 5 * 10**6, 0, 1).is_bound_by_memory
    assert theory(10**9, 50 * 10**6, 0, 1).is_bound_by_memory


def test_the_roof_bends_at_the_ridge():
    assert FIVE_TOPS.ridge == 50
    assert FIVE_TOPS.attainable(25) == pytest.approx(2.5e12 / 2)
    assert FIVE_TOPS.attainable(50) == FIVE_TOPS.attainable(5000) == 2.5e12


def test_utilisation_is_the_ideal_share_of_the_measured_time():
    found = theory(10**9, 10**7, 10**8, 4e-3)
    assert found.macs_used == pytest.approx(0.1) and found.memory_used == pytest.approx(0.05)
    assert found.ideal_s == pytest.approx(0.4e-3) and found.unfused_s == pytest.approx(2e-3)
    assert not found.is_small and theory(10**6, 1, 1, 1).is_small
    text = found.text()
    for part in (
        "1 GMAC",
        "10 MB",
        "0.400 ms (arithmetic is the limit",
        "10.0 times that",
        "10.0% of the MACs",
        "5 TOPS",
    ):
        assert part in text, text
    assert found.as_json()["bound"] == "arithmetic" and found.as_json()["peak"]["name"] == "a device"


def test_a_model_faster_than_its_memory_is_said_to_stay_in_the_caches():
    assert "140.0% of the bandwidth, more than the memory gives" in theory(10**6, 7 * 10**6, 10**7, 1e-4).text()
    assert "caches" not in theory(10**6, 10**6, 10**7, 1e-4).text()


# Published figures


@pytest.mark.parametrize(
    ("device", "architecture", "name", "tops"),
    [
        ("NPU", "3720", "Meteor Lake", 11.5),
        ("NPU", "4000", "Lunar Lake", 48),
        ("NPU", "5010", "Panther Lake", 50),
        ("GPU", "GPU: vendor=0x8086 arch=v12.71.4", "Meteor Lake", 18),
        ("GPU.0", "GPU: vendor=0x8086 arch=v20.4.4", "Lunar Lake", 67),
        ("GPU", "GPU: vendor=0x8086 arch=v30.0.4", "Panther Lake", 120),
    ],
)
def test_devices_are_found_by_their_architecture(device, architecture, name, tops):
    row = public_peak(device, architecture)
    assert name in row.name and row.int8.value == tops


@pytest.mark.parametrize(
    ("device", "architecture"),
    [
        ("NPU", "5020"),
        ("NPU", "6010"),
        ("NPU", ""),
        ("GPU", "GPU: vendor=0x8086 arch=v20.1.0"),
        ("GPU", "GPU: vendor=0x8086 arch=v12.70.4"),
        ("GPU", "GPU: vendor=0x8086 arch=v12.74.4"),
        ("GPU", "GPU: vendor=0x8086 arch=v30.1.0"),
        ("GPU", "GPU: vendor=0x8086 arch=v30.3.0"),
        ("CPU", "intel64"),
    ],
)
def test_nothing_is_said_of_devices_that_are_not_known(device, architecture):
    assert public_peak(device, architecture) is None


@pytest.mark.parametrize("row", PUBLIC.values(), ids=PUBLIC)
def test_every_figure_names_its_source_and_is_plausible(row):
    for figure in (row.int8, row.fp16, row.memory):
        is_place = bool(re.search(r"\w\.(com|it|pt)/\S+", figure.source))
        assert is_place != figure.is_estimate and str(figure).startswith("estimate: ") == figure.is_estimate, figure
    assert row.int8.value == 2 * row.fp16.value
    # two bytes for each transfer of each of 128 / 16 channels, in MT/s
    assert row.memory.value * 1000 / 16 in (7467, 8533, 9600)


def test_a_published_peak_is_turned_into_macs_and_says_where_it_is_from(monkeypatch, clean_environment):
    npu = DeviceInfo("NPU", "Intel(R) AI Boost", "4000", "", is_emulated=False)
    monkeypatch.setattr(devices, "list_devices", lambda: (npu,))
    found = device_peak("NPU", "int8")
    assert (found.macs_per_second, found.bytes_per_second) == pytest.approx((24e12, 136.528e9))
    assert device_peak("NPU", "fp16").macs_per_second == 12e12
    assert device_peak("NPU", "int4-weights").arithmetic == "fp16", "such weights are widened"
    assert ": 48 TOPS" in str(found) and "137 GB/s" in str(found) and "Tech Tour 2024" in str(found)


def test_an_estimated_peak_says_so(monkeypatch, clean_environment):
    gpu = DeviceInfo("GPU", "Arc", "GPU: vendor=0x8086 arch=v20.4.4", "", is_emulated=False)
    monkeypatch.setattr(devices, "list_devices", lambda: (gpu,))
    published, derived = device_peak("GPU", "int8"), device_peak("GPU", "fp16")
    assert ": 67 TOPS" in str(published) and not published.as_json()["is_estimate"]
    assert ": about 33.5 TOPS" in str(derived) and "(estimate: half of INT8" in str(derived)
    assert derived.as_json()["is_estimate"]


def test_there_is_no_theory_for_an_unknown_device(monkeypatch, clean_environment):
    gpu = DeviceInfo("GPU", "a card", "GPU: vendor=0x8086 arch=v20.1.0", "", is_emulated=False)
    monkeypatch.setattr(devices, "list_devices", lambda: (gpu,))
    x = ops.parameter([1, 4], ov.Type.f32)
    assert compare_with_peak(ov.Model([ops.abs(x)], [x]), "GPU", "fp16", 1.0) is None


def test_weights_in_few_bits_are_computed_with_in_what_the_device_has(monkeypatch):
    monkeypatch.setattr(devices, "capabilities", lambda device: "FP32 INT8")
    assert [arithmetic(p, "CPU") for p in ("fp32", "int8", "int8-weights")] == ["fp32", "int8", "fp32"]
    monkeypatch.setattr(devices, "capabilities", lambda device: "BF16 FP32 INT8")
    assert arithmetic("int4-weights", "CPU") == "bf16" and arithmetic("int4-weights", "NPU") == "fp16"


# Measured


@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_a_cpu_is_measured_by_a_product_that_runs_in_that_arithmetic(kind):
    size = (64, 512, 64)
    ticks = iter(np.cumsum([0.5, 0.25] * 100).tolist())
    found = measure_macs(kind, size, clock=lambda: next(ticks))
    assert found == 64 * 512 * 64 / 0.25, "the best of its runs"
    compiled = devices.core().compile_model(product(kind, size), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    layers = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    products = [i["runtimePrecision"].value for i in layers if i["layerType"].value in ("FullyConnected", "MatMul")]
    assert len(products) == 1 and products[0] in {"fp32": ("f32",), "int8": ("i8", "u8")}[kind]


def test_the_bandwidth_counts_what_is_read_and_what_is_written():
    ticks = iter(np.cumsum([0.5, 0.25] * 100).tolist())
    assert measure_bandwidth(2**20, clock=lambda: next(ticks)) == 2 * 2**20 / 0.25


def test_this_cpu_is_measured_once_in_a_process():
    peak = device_peak("CPU", "fp32")
    assert peak == device_peak("CPU", "fp32"), "a second measurement would differ"
    assert 1e8 < peak.macs_per_second < 1e14 and 1e8 < peak.bytes_per_second < 1e13
    assert "measured here" in peak.source


def test_a_model_is_compared_at_the_width_of_its_arithmetic(monkeypatch):
    monkeypatch.setattr(peaks, "device_peak", lambda *_: FIVE_TOPS)
    x = ops.parameter([1, 256], ov.Type.f32, name="x")
    weights = ops.constant(np.ones((256, 128), np.float32))
    model = ov.Model([ops.tanh(ops.matmul(x, weights, False, False))], [x])
    found = compare_with_peak(model, "CPU", "int8", 1e-3)
    assert found.macs == 256 * 128
    # weights at a byte each, in and out at the four of their ports
    assert found.least_bytes == 256 * 128 + 4 * (256 + 128)
    assert found.most_bytes == 256 * 128 + (256 + 128) + (128 + 128)


def test_open_sizes_have_no_theory(monkeypatch):
    monkeypatch.setattr(peaks, "device_peak", lambda *_: FIVE_TOPS)
    x = ops.parameter([-1, 4], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    with pytest.raises(ShapeError, match="'x'"):
        compare_with_peak(ov.Model([ops.abs(x)], [x]), "CPU", "fp32", 1.0)
