"""The report tells the whole truth: to people in a line, to programs in JSON."""

from __future__ import annotations

import json
import logging
from collections import Counter

import pytest
from ovpack.ov_backends.report import FallenOperator, RunReport, SubmodelReport

VERSIONS = {"openvino": "2026.4.1", "driver NPU": "1004023"}


@pytest.fixture
def run() -> RunReport:
    """A UNet on an NPU that lacks two operators, after a call on torch; a decoder that was in memory."""
    run = RunReport()
    decoder = run.submodel("vae_decoder", "AUTO")
    decoder.actual_device, decoder.precision = "CPU", "fp32"
    decoder.cache_state, decoder.cache_reason, decoder.openvino_calls = "hit", "in memory", 1
    decoder.call_ms = [812.0]
    unet = run.submodel("unet", "NPU")
    unet.actual_device, unet.precision, unet.operators = "NPU, CPU", "fp16", {"NPU": 900, "CPU": 2}
    unet.fallback = [FallenOperator("a", "Tanh", "CPU"), FallenOperator("b", "Tanh", "CPU")]
    unet.device_switches = 4
    unet.cache_state, unet.cache_reason = "miss", "driver changed: 3917 -> 4023"
    unet.convert_s, unet.compile_s, unet.import_s = 3.25, 48.1234, 0.0
    unet.conversions = unet.compilations = 1
    unet.first_ms, unet.call_ms, unet.outside_ms = 330.1234, [100.0, 900.0, 101.0], [1.0, 3.0, 2.0]
    unet.openvino_calls = 4
    unet.torch_reasons["ControlNet or T2I-Adapter"] += 2
    return run


def test_two_model_files_in_one_run_are_reported_apart():
    run = RunReport()
    for file in ("a.onnx", "b.onnx"):
        run.submodel("model", "CPU", file).openvino_calls = 1
    run.submodel("model", "CPU", "a.onnx").openvino_calls = 3
    run.submodel("unet", "CPU")
    assert list(run.as_json(VERSIONS)["submodels"]) == ["unet", "model a.onnx", "model b.onnx"]
    assert "model a.onnx: 3 calls on OpenVINO" in run.line() and "| model b.onnx |" in run.markdown()


def test_the_json_has_the_schema_that_is_promised(run):
    whole = json.loads(json.dumps(run.as_json(VERSIONS)))
    assert list(whole) == ["schema", "submodels", "seconds_total", "versions"]
    assert (whole["schema"], whole["versions"]) == (1, VERSIONS)
    assert isinstance(whole["seconds_total"], float)
    assert list(whole["submodels"]) == ["unet", "vae_decoder"], "in the order of SUBMODELS"
    assert whole["submodels"]["unet"] == {
        "requested_device": "NPU",
        "actual_device": "NPU, CPU",
        "precision": "fp16",
        "operators": {"NPU": 900, "CPU": 2},
        "fallback": [{"name": "a", "type": "Tanh", "device": "CPU"}, {"name": "b", "type": "Tanh", "device": "CPU"}],
        "device_switches": 4,
        "cache": {"state": "miss", "reason": "driver changed: 3917 -> 4023"},
        "seconds": {"convert": 3.25, "quantize": 0.0, "compile": 48.123, "import": 0.0},
        "counters": {"conversions": 1, "compilations": 1},
        "first_ms": 330.123,
        "steady_ms": 101.0,
        "outside_openvino_ms": 2.0,
        "calls": {"openvino": 4, "torch": 2},
        "torch_reasons": ["ControlNet or T2I-Adapter (2 calls)"],
        "notices": [],
    }


def test_a_submodel_that_never_ran_has_the_same_keys(run):
    run.submodel("text_encoder", "GPU").torch_reasons["no tokens"] += 1
    submodels = run.as_json(VERSIONS)["submodels"]
    assert submodels["text_encoder"].keys() == submodels["unet"].keys()
    assert (submodels["text_encoder"]["first_ms"], submodels["text_encoder"]["steady_ms"]) == (None, None)


def test_the_line_says_where_it_ran_what_fell_back_and_what_it_cost(run):
    unet, decoder = run.line().splitlines()
    assert unet == (
        "UNet: NPU, CPU fp16, fell back: 2 Tanh, cache miss (driver changed: 3917 -> 4023), prepared in 51.4 s, "
        "first 330 ms, then 101 ms a call, 4 calls on OpenVINO, 2 on torch: ControlNet or T2I-Adapter (2)"
    )
    assert decoder == (
        "VAE decoder: CPU fp32, no fallback, cache hit (in memory), prepared in 0.0 s, then 812 ms a call, "
        "1 calls on OpenVINO"
    )


@pytest.mark.parametrize(
    "requested, actual, is_told",
    [("GPU", "CPU", True), ("GPU", "GPU.1", False), ("AUTO", "CPU", False), ("NPU", "NPU (emulated on CPU)", False)],
)
def test_the_line_says_when_it_ran_elsewhere_than_asked(requested, actual, is_told):
    line = SubmodelReport("unet", requested, actual_device=actual).line()
    assert actual in line and (f"(asked: {requested})" in line) == is_told


def test_a_submodel_that_only_ran_on_torch_claims_no_device():
    report = SubmodelReport("unet", "NPU", torch_reasons=Counter({"injected code": 3}))
    assert report.line() == "UNet: 0 calls on OpenVINO, 3 on torch: injected code (3)"


def test_the_markdown_is_one_table_with_notices_and_reasons_below(run):
    run.submodel("unet", "NPU").notice("It got warm.", "warn")
    lines = run.markdown().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:4]]
    assert {len(row) for row in cells} == {8}
    assert cells[2][:4] == ["UNet", "NPU, CPU", "fp16", "2"] and cells[2][5:] == ["330.1", "101.0", "4 / 2"]
    assert cells[3][5:] == ["-", "812.0", "1 / 0"]
    assert lines[4:] == ["- UNet: It got warm.", "- UNet: 2 calls on torch: ControlNet or T2I-Adapter"]


def test_warn_shows_and_logs_a_notice_once(caplog):
    run = RunReport()
    for _ in range(2):
        run.submodel("unet", "NPU").notice("unet runs on CPU instead of NPU.", "warn")
    assert run.notices == ["UNet: unet runs on CPU instead of NPU."]
    assert run.line().startswith("UNet: unet runs on CPU instead of NPU.\n")
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_allow_keeps_a_notice_for_the_full_report_only(caplog):
    run = RunReport()
    run.submodel("unet", "NPU").notice("unet runs on CPU instead of NPU.", "allow")
    assert run.notices == [] and "instead of" not in run.line() and caplog.records == []
    assert run.as_json({})["submodels"]["unet"]["notices"] == ["unet runs on CPU instead of NPU."]
    assert "instead of" in run.markdown()


def test_steady_is_the_median_so_that_one_slow_call_does_not_count():
    assert SubmodelReport("unet", "CPU", call_ms=[10.0, 11.0, 5000.0]).steady_ms == 11.0
    assert SubmodelReport("unet", "CPU").steady_ms is None
