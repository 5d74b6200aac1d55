"""Four questions on real models, each with evidence from that model, and what to do."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops
from ovpack.ov_backends import devices
from ovpack.ov_backends.bench import Benchmark, Concurrent, compile_for
from ovpack.ov_backends.diagnosis import (
    Diagnosis,
    Step,
    diagnose,
    inputs_copied,
    operators_elsewhere,
    recommend,
    shapes_open,
    work_serial,
)
from ovpack.ov_backends.layer_times import LayerTime, LayerTimes, time_layers
from ovpack.ov_backends.memory import Memory
from ovpack.ov_backends.peaks import DevicePeak, Theory
from ovpack.ov_backends.race import Timing
from test_figure import small_cnn

PEAK = DevicePeak("a device", "int8", 2.5e12, 50e9, "made up")
NO_TIMES = LayerTimes(())


def quiet(text: str) -> None:
    pass


def profiled(model: ov.Model) -> tuple[ov.CompiledModel, LayerTimes]:
    compiled, _ = compile_for(model, "CPU", "fp32", "LATENCY", quiet, PERF_COUNT="YES")
    shapes = {port.get_any_name(): port.get_shape() for port in model.inputs}
    return compiled, time_layers(model, compiled, {n: np.ones(s, np.float32) for n, s in shapes.items()}, quiet)


def steady(seconds: float) -> Timing:
    return Timing(seconds, (), (seconds,) * 5, "stable")


def measured(one_s: float, many_s: float, requests: int = 2, theory: Theory | None = None) -> Benchmark:
    many = Concurrent(requests, steady(many_s))
    return Benchmark("m", "CPU", "fp32", "", 0.0, steady(one_s), many, Memory(0, 0, 0), theory)


@pytest.fixture(scope="module")
def cnn() -> SimpleNamespace:
    model = small_cnn()
    compiled, times = profiled(model)
    return SimpleNamespace(model=model, compiled=compiled, times=times)


# Operators off the device


def test_a_model_that_runs_whole_on_its_device_is_counted(cnn):
    step = operators_elsewhere(cnn.model, cnn.compiled, "CPU", cnn.times)
    assert step.verdict == "no" and "EXECUTION_DEVICES CPU" in step.evidence
    assert f"all {devices_operators(cnn.model)} operators run there" in step.evidence


def devices_operators(model: ov.Model) -> int:
    return sum(node.get_type_name() not in ("Parameter", "Constant", "Result") for node in model.get_ops())


def test_what_ran_elsewhere_is_named_with_its_crossings(core):
    """The GPU of this core has no Tanh; the compiled model says that it ran on both."""
    x = ops.parameter([1, 8], ov.Type.f32, name="x")
    model = ov.Model([ops.exp(ops.tanh(ops.exp(x), name="curve"))], [x])
    core.lacks = frozenset({"Tanh"})
    compiled = SimpleNamespace(get_property=lambda key: ["GPU.0", "CPU"])
    step = operators_elsewhere(model, compiled, "GPU", NO_TIMES)
    assert step.verdict == "yes" and step.advice
    assert "1 run on CPU: Tanh 'curve'; 2 crossings" in step.evidence


def test_a_plugin_that_does_not_answer_is_not_taken_for_a_yes(core):
    core.refuses["GPU"] = "no compiler"
    compiled = SimpleNamespace(get_property=lambda key: ["GPU.0", "CPU"])
    step = operators_elsewhere(small_cnn(), compiled, "GPU", NO_TIMES)
    assert step.verdict == "unknown" and "GPU.0, CPU" in step.evidence


def test_slow_generic_code_on_the_device_counts_too(cnn):
    layers = [
        LayerTime("a", "a", "Convolution", "jit_avx2_f32", 0.9, 1, 1),
        LayerTime("b", "fast enough", "Split", "ref_f32", 0.01, 0, 1),
        LayerTime("c", "odd", "Bucketize", "ref_any_f32", 0.09, 0, 1),
    ]
    step = operators_elsewhere(cnn.model, cnn.compiled, "CPU", LayerTimes(tuple(layers)))
    assert step.verdict == "yes" and "10% of the time is generic code: Bucketize 'odd', Split" in step.evidence


def test_the_engines_of_an_npu_are_told(cnn):
    layers = [
        LayerTime(str(n), str(n), "x", engine, 0.25, 0, 0) for n, engine in enumerate(("DPU", "Shave", "DPU", "DMA"))
    ]
    step = operators_elsewhere(cnn.model, cnn.compiled, "CPU", LayerTimes(tuple(layers)))
    assert step.verdict == "no" and "DPU 50%, Shave 25%, DMA 25%" in step.evidence


# Inputs


def test_inputs_that_are_read_where_they_are_cost_nothing(cnn):
    step = inputs_copied(cnn.compiled, {"x": np.ones((1, 3, 64, 64), np.float32)}, NO_TIMES)
    assert step.verdict == "no" and "all 1 inputs are read where they are" in step.evidence


@pytest.mark.parametrize(
    ("tensor", "evidence"),
    [
        (np.ones((1, 3, 64, 64)), "'x' is float64, and the model takes float32"),
        (np.ones((1, 64, 64, 3), np.float32).transpose(0, 3, 1, 2), "'x' does not lie in memory in the order"),
        (torch.ones(1, 3, 64, 64, dtype=torch.bfloat16), "'x' is bfloat16"),
        (torch.ones(1, 3, 64, 128)[..., ::2], "'x' does not lie in memory"),
    ],
    ids=["type", "layout", "torch type", "torch gaps"],
)
def test_inputs_that_must_be_copied_are_named_with_the_reason(cnn, tensor, evidence):
    step = inputs_copied(cnn.compiled, {"x": tensor}, NO_TIMES)
    assert step.verdict == "yes" and evidence in step.evidence and step.advice


def test_a_change_of_layout_right_after_the_input_is_found_in_the_executed_graph():
    """The convolution wants channels last, and its input is large beside its work."""
    x = ops.parameter([1, 16, 256, 256], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    weights = ops.constant(np.ones((16, 16, 1, 1), np.float32))
    model = ov.Model([ops.convolution(x, weights, [8, 8], [0, 0], [0, 0], [1, 1])], [x], "wide")
    compiled, times = profiled(model)
    step = inputs_copied(compiled, {"x": np.ones((1, 16, 256, 256), np.float32)}, times)
    reorders = [layer for layer in times.layers if layer.type == "Reorder"]
    share = sum(layer.seconds for layer in reorders) / times.seconds
    assert f"at inputs and outputs take {share:.1%} of the time" in step.evidence
    assert step.verdict == ("yes" if share >= 0.05 else "no")


# Open sizes


def test_open_sizes_are_named():
    x, y = (ops.parameter(shape, ov.Type.f32, name=name) for name, shape in (("x", [1, -1]), ("y", [1, 4])))
    for port in (x, y):
        port.output(0).set_names({port.get_friendly_name()})
    step = shapes_open(ov.Model([ops.add(x, y)], [x, y]))
    assert step.verdict == "yes" and "1 of 3 ports: 'x' [1,?]" in step.evidence and step.advice
    assert shapes_open(small_cnn()).verdict == "no"


# Serial work


def test_a_device_that_gains_by_several_requests_waits_for_the_program():
    step = work_serial(measured(10e-3, 5e-3), outside_s=0.1e-3)
    assert step.verdict == "yes" and "2 requests at a time give 2.00 times" in step.evidence
    assert "Keep 2 requests under way" in step.advice


def test_time_around_the_inference_is_set_against_the_time_inside():
    step = work_serial(measured(10e-3, 10e-3), outside_s=10e-3)
    assert step.verdict == "yes" and "10.0 ms inside OpenVINO and 10.0 ms around it (50%)" in step.evidence
    assert work_serial(measured(10e-3, 10e-3), outside_s=0.2e-3).verdict == "no"


def test_what_was_not_measured_is_not_denied():
    step = work_serial(measured(10e-3, 10e-3), None)
    assert step.verdict == "unknown" and "was not measured" in step.evidence


# What to do


@pytest.mark.parametrize(
    ("macs", "least_bytes", "measured_s", "words"),
    [
        (10**6, 10**4, 1e-4, "Compare with the CPU, which may win. With 1 million MACs"),
        (10**9, 10**6, 0.5e-3, "80% of what the arithmetic allows; only a lower precision"),
        (10**9, 10**8, 2.5e-3, "80% of what the memory allows; only weights in fewer bits"),
        (10**9, 10**6, 20e-3, "so neither is the limit"),
        (10**9, 10**6, 2e-3, "at best it would be 5.0 times as fast"),
    ],
    ids=["small", "arithmetic", "memory", "neither", "between"],
)
def test_the_recommendation_follows_from_the_figures(macs, least_bytes, measured_s, words):
    assert words in recommend(Theory(PEAK, macs, least_bytes, least_bytes, measured_s), "NPU")


def test_a_small_model_on_the_cpu_is_not_sent_to_the_cpu():
    text = recommend(Theory(PEAK, 10**6, 10**4, 10**4, 1e-4), "CPU")
    assert text.startswith("No other device will gain much. With 1 million MACs")


def test_measured_devices_win_over_theory():
    small = Theory(PEAK, 10**6, 10**4, 10**4, 1e-4)
    text = recommend(small, "NPU", {"NPU": 1e-4, "CPU": 5e-5})
    assert text.startswith("Run it on CPU, the fastest measured (NPU 0.100 ms, CPU 0.050 ms).")
    assert "the model is small" in text
    assert "not known" in recommend(None, "GPU")


def test_a_whole_diagnosis_reads_in_order_and_says_where_to_begin(cnn):
    theory = Theory(PEAK, 10**9, 10**6, 10**6, 20e-3)
    found = diagnose(
        cnn.model, cnn.compiled, "CPU", {"x": np.ones((1, 3, 64, 64))}, measured(20e-3, 19e-3, theory=theory), cnn.times
    )
    assert [step.question.split()[0] for step in found.steps] == ["Operators", "Inputs", "Open", "Device"]
    assert [step.verdict for step in found.steps] == ["no", "yes", "no", "unknown"]
    assert found.first is found.steps[1]
    lines = found.text().splitlines()
    assert lines[1].startswith("2. Inputs copied at each call? yes: 'x' is float64") and " -> " in lines[1]
    assert lines[4].startswith("Recommendation: ")
    assert found.as_json()["steps"][1]["verdict"] == "yes"
    assert Diagnosis((Step("Q?", "no", "e"),), "r").first is None


def test_the_emulated_npu_answers_too(emulated_npu):
    model = small_cnn()
    compiled, _ = compile_for(model, "NPU", "fp16", "LATENCY", quiet, PERF_COUNT="YES")
    times = time_layers(model, compiled, {"x": np.ones((1, 3, 64, 64), np.float32)}, quiet)
    step = operators_elsewhere(model, compiled, "NPU", times)
    assert step.question.startswith("Operators off NPU (emulated on CPU), or") and step.verdict == "no"
    assert devices.label("NPU") in step.question
