"""INT8 without preparations: the first run records in floating point and quantizes at its end, the next is INT8."""

from __future__ import annotations

import pytest
import torch
from ovpack.ov_backends.compiler.ir import Source
from ovpack.ov_backends.errors import FallbackError
from ovpack.ov_backends.plan import SubmodelPlan
from ovpack.ov_backends.quantize import cached
from ovpack.ov_backends.quantize.calibration import CalibrationSet
from ovpack.ov_backends.quantize.int8 import Options
from ovpack.ov_backends.report import RunReport
from ovpack.ov_backends.runtime.store import SubmodelStore
from ovpack.ov_backends.runtime.submodel import Submodel
from quantizable import EMBEDDING, SOURCE, WIDTH, one_run, samples

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("clean_environment")]


@pytest.fixture
def make(cache):
    def make(precision: str = "int8", device: str = "CPU", policy: str = "warn") -> Submodel:
        return Submodel(SOURCE, SubmodelPlan(device, precision), policy, cache)

    return make


def test_the_first_run_records_the_second_is_int8(make):
    submodel, texts = make(), []
    first, report = one_run(submodel, texts=texts)
    assert report.precision == "fp32" and "recording calibration 12/40" in texts
    assert any(text.startswith("Quantizing the UNet") for text in texts)
    assert any("no recorded calls yet" in notice for notice in report.notices)
    assert report.quantize_s > 0 and report.quantization["used"] and report.quantization["samples"] == 12
    second, report = one_run(submodel)
    assert report.precision == "int8" and submodel.activity == ""
    assert report.quantization["gate"]["passed"] and report.quantize_s == 0
    assert "int8 (cosine to the float model at least 0.99" in report.line()
    # that one prompt does not stand for all is not hidden
    assert any("12 recorded calls; other prompts may lose accuracy" in notice for notice in report.notices)
    similarity = torch.nn.functional.cosine_similarity(first.flatten(), second.flatten(), dim=0)
    assert 0.99 <= similarity < 1


def test_the_next_process_and_other_sizes_use_what_was_made(make, monkeypatch):
    one_run(make())
    monkeypatch.setattr(cached, "quantize", None)
    for size in (8, 12):
        _, report = one_run(make(), size=size)
        assert report.precision == "int8" and report.quantize_s == 0 and report.convert_s == 0


def test_calls_that_are_recorded_on_purpose_count_at_once(make, cache):
    submodel = make()
    one_run(submodel)
    CalibrationSet(cache.root, SOURCE.identity).add(samples(5), "NPU Calibrate")
    _, report = one_run(submodel)
    assert report.precision == "int8" and report.quantization["samples"] == 17 and report.quantize_s > 0


def test_the_first_prompts_are_recorded_by_the_way_and_then_all_count(make, cache):
    submodel, calibration = make(), CalibrationSet(cache.root, SOURCE.identity)
    for run in (1, 2, 3):
        _, report = one_run(submodel, calls=5 + run)
        assert len(calibration.files) == run and len(calibration.used) == 1
        assert report.precision == ("fp32" if run == 1 else "int8") and (report.quantize_s > 0) == (run == 1)
    _, report = one_run(submodel, calls=9)
    assert report.quantize_s > 0 and report.quantization["samples"] == 2 * (6 + 7 + 8 + 9)
    _, report = one_run(submodel, calls=10)
    assert report.precision == "int8" and report.notices == [] and len(calibration.files) == 4
    assert report.quantize_s == 0


@pytest.mark.parametrize("precision", ["int8-weights", "int4-weights"])
def test_weights_only_needs_no_recording(make, precision, monkeypatch):
    monkeypatch.setattr(cached, "Options", lambda: Options(group_size=16))
    _, report = one_run(make(precision))
    assert report.precision == precision and report.quantization["samples"] == 0
    assert "not measured" in report.line() and report.notices == []


def test_auto_on_the_npu_is_int8_for_the_unet_only(make, emulated_npu, cache):
    submodel = make("auto", "NPU")
    assert one_run(submodel)[1].precision == "fp16"
    _, report = one_run(submodel)
    assert (report.actual_device, report.precision) == ("NPU (emulated on CPU)", "int8")
    vae = Submodel(Source("vae_decoder", "b" * 32, "Net", SOURCE.convert), SubmodelPlan("NPU"), "warn", cache)
    assert one_run(vae)[1].precision == "fp16" and one_run(vae)[1].precision == "fp16"


def test_a_model_that_fails_the_gate_stays_in_float_and_says_so_once_and_for_all(make, monkeypatch):
    monkeypatch.setattr(cached, "Options", lambda: Options(limit=0.9999999, rounds=1))
    one_run(make())
    _, report = one_run(make())
    assert report.precision == "fp32" and not report.quantization["used"]
    (notice,) = report.notices
    assert notice.startswith("The UNet stays in floating point: int8 reached a cosine of only 0.9")
    with pytest.raises(FallbackError, match="stays in floating point"):
        one_run(make(policy="error"))
    monkeypatch.setattr(cached, "quantize", None)
    assert one_run(make())[1].precision == "fp32"


def test_too_few_calls_wait_for_more(make):
    submodel = make()
    one_run(submodel, calls=1)
    _, report = one_run(submodel, calls=1)
    assert report.quantization["samples"] == 4
    assert one_run(submodel, calls=1)[1].precision == "int8"


def test_a_cancelled_run_records_nothing(make, cache):
    submodel, report = make(), RunReport().submodel("unet", "CPU")
    submodel.start_run()
    submodel.run({"sample": torch.zeros(1, 4, 8, 8), EMBEDDING: torch.zeros(1, WIDTH)}, report, lambda text: None)
    one_run(submodel)
    assert CalibrationSet(cache.root, SOURCE.identity).count == 12


def test_a_cache_that_cannot_be_written_leaves_the_run_in_float(make, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CalibrationSet, "add", full)
    submodel = make()
    _, report = one_run(submodel)
    assert any("could not be kept: No space left" in notice for notice in report.notices)
    assert one_run(submodel)[1].precision == "fp32"


def test_a_disk_that_fills_up_while_quantizing_costs_the_next_process_its_time_only(make, cache, monkeypatch):
    whole = cached._save

    def full(quantized, about, folder):
        whole(quantized, about, folder)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cached, "_save", full)
    submodel = make()
    _, report = one_run(submodel)
    assert report.quantization["used"]
    assert one_run(submodel)[1].precision == "int8"
    (kept,) = [entry for entry in cache.entries() if entry.manifest["kind"] == "ir"]
    assert "quantization" not in kept.manifest["identity"] and not list((cache.root / "tmp").iterdir())


def test_what_stops_quantizing_leaves_the_run_its_image(make, monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr("nncf.quantize", fail)
    submodel = make()
    output, report = one_run(submodel)
    assert torch.isfinite(output).all() and not report.quantization["used"]
    assert any("not enough memory to quantize the UNet" in notice for notice in report.notices)
    assert one_run(submodel)[1].precision == "fp32"


def test_the_store_takes_a_grown_set_into_account(cache):
    store = SubmodelStore(cache)
    plan = SubmodelPlan("CPU", "int8")
    one_run(store.get(SOURCE, plan, "warn"))
    assert one_run(store.get(SOURCE, plan, "warn"))[1].precision == "int8"
