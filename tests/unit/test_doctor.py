"""Each symptom is made, and the doctor must name its cause."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from ovpack.ov_backends import doctor
from ovpack.ov_backends.__main__ import main
from ovpack.ov_backends.compiler.compile import compile_cached
from small_models import WIDTH, dense_input, dense_model, dense_order


def fixed_model(rows: int = 1) -> ov.Model:
    model = dense_model()
    model.reshape([rows, WIDTH])
    return model


@pytest.fixture
def patient(cache, clean_environment):
    """A healthy one on the CPU."""
    return doctor.Patient("CPU", cache, fixed_model(), {"x": dense_input()}, dense_order(), lambda text: None)


def problems(findings: Any) -> list[str]:
    return [str(finding) for finding in findings if finding.severity == "problem"]


def test_a_healthy_model_has_no_problem_and_every_symptom_was_looked_into(patient):
    findings = doctor.examine(patient)
    assert problems(findings) == []
    assert {finding.symptom for finding in findings} == {
        "device missing", "device hardly used", "latency high and CPU full", "very slow first run", "memory grows",
        "packages conflict",
    }  # fmt: skip


def test_a_missing_device_is_explained(patient):
    (found,) = problems(doctor.device_missing(replace(patient, device="NPU")))
    assert "there is no NPU" in found and "->" in found


def test_operators_that_fall_back_are_listed(patient, core):
    core.lacks = frozenset({"Tanh"})
    (found,) = problems(doctor.device_hardly_used(replace(patient, device="GPU")))
    assert "1 of 2 operators run on the CPU (1 Tanh), with 1 changes of device" in found


def test_a_device_that_refuses_the_model_is_a_problem_and_not_an_error(patient, core):
    core.refuses = {"GPU": "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"}
    found = problems(doctor.examine(replace(patient, device="GPU")))
    assert any("there is not enough memory for this model" in text for text in found), found


def test_open_dimensions_keep_a_model_from_the_npu(patient, emulated_npu):
    sick = replace(patient, device="NPU", model=dense_model())
    assert "open dimensions in x" in problems(doctor.device_hardly_used(sick))[0]


def test_a_busy_cpu_under_another_device_is_a_problem(patient, core, monkeypatch):
    """The GPU of this test computes on the CPU, as a device does whose operators fell back."""
    monkeypatch.setattr(doctor, "BUSY_CPU", 0.0)
    assert problems(doctor.latency_high_and_cpu_full(patient)) == []
    found = problems(doctor.latency_high_and_cpu_full(replace(patient, device="GPU")))
    assert "CPU cores busy, though it runs on GPU" in found[0]


def test_the_state_of_the_cache_is_told(patient):
    assert any("not in the cache: new" in f.found for f in doctor.first_run_slow(patient))
    compile_cached(dense_order(), patient.cache, lambda text: None)
    assert any("is in the cache" in f.found for f in doctor.first_run_slow(patient))


def test_a_full_disk_and_a_full_cache_are_seen(patient, monkeypatch):
    monkeypatch.setattr(doctor, "FREE_BYTES", 10**18)
    assert "GB free for the cache" in problems(doctor.first_run_slow(patient))[0]
    compile_cached(dense_order(), patient.cache, lambda text: None)
    patient.cache.limit_bytes = 1
    assert any("cache is nearly full" in f.found for f in doctor.first_run_slow(patient))


def test_infinity_in_the_output_is_a_problem(patient):
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    model = ov.Model([ops.log(x)], [x], "log")
    sick = replace(patient, model=model, inputs={"x": np.zeros((1, 4), np.float32)})
    assert "NaN or infinity" in problems(doctor.wrong_output(sick))[0]


def test_an_ambiguous_layout_and_a_quantized_model_are_noted(patient):
    x = ops.parameter([1, 3, 3, 3], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    low, high = ops.constant(np.float32(-1)), ops.constant(np.float32(1))
    model = ov.Model([ops.fake_quantize(x, low, high, low, high, 256)], [x], "quantized")
    sick = replace(patient, model=model, inputs={"x": np.zeros((1, 3, 3, 3), np.float32)})
    notes = [finding.found for finding in doctor.wrong_output(sick) if finding.severity == "note"]
    assert "layout unknown" in notes[0] and "is quantized (FakeQuantize" in notes[1]


def test_sizes_without_limit_are_noted(patient):
    sick = replace(patient, model=dense_model())
    assert any("no upper limit for the size of x" in f.found for f in doctor.memory_grows(sick))


def test_memory_that_grows_is_a_problem(patient, monkeypatch):
    monkeypatch.setattr(doctor, "GROWTH_BYTES", -(10**12))
    assert "MB more after 30 equal inferences" in problems(doctor.memory_grows(patient))[0]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"openvino-genai": "2025.4.0"}, "openvino-genai 2025.4.0 was built for another openvino than 2026.4.1"),
        ({"onnxruntime-openvino": "1.20"}, "brings OpenVINO libraries of its own"),
        ({"openvino-genai": "2026.4.1.0"}, ""),
    ],
)
def test_packages_that_do_not_fit_are_named(patient, other, said):
    found = problems(doctor.packages_conflict(patient, lambda name: {"openvino": "2026.4.1", **other}.get(name, "")))
    assert (said in found[0]) if said else not found


def test_the_command_ends_with_1_when_something_was_found(tmp_path, clean_environment, monkeypatch, capsys):
    monkeypatch.setenv("OVNPU_CACHE_DIR", str(tmp_path / "cache"))
    ov.save_model(fixed_model(), tmp_path / "dense.xml")
    assert main(["doctor", str(tmp_path / "dense.xml"), "--device", "CPU", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == 0
    assert main(["doctor", str(tmp_path / "dense.xml"), "--device", "NPU"]) == 1
    assert "[problem] device missing: there is no NPU" in capsys.readouterr().out
