"""auto on the CPU: precisions are tried once, at the end of a run; the fastest that is exact enough is remembered."""

from __future__ import annotations

import numpy as np
import pytest
from ovpack.ov_backends.plan import SubmodelPlan
from ovpack.ov_backends.quantize.calibration import CalibrationSet
from ovpack.ov_backends.runtime import trial
from ovpack.ov_backends.runtime.submodel import Submodel
from ovpack.ov_backends.runtime.trial import Trial, Verdict, candidates
from quantizable import SOURCE, one_run

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("clean_environment")]


@pytest.fixture
def make(cache):
    return lambda: Submodel(SOURCE, SubmodelPlan("CPU"), "warn", cache)


@pytest.fixture
def tried(monkeypatch):
    """Set the precisions that are tried and, where given, what each seems to take."""

    def tried(*names: str, seconds: dict[str, float] | None = None, error: float = 0.0) -> None:
        monkeypatch.setattr(trial, "candidates", lambda submodel: list(names))
        if seconds is None:
            return

        def measure(self, ir, precision, samples, progress):
            rows = [[np.arange(4.0) * (1 - 2 * error * (precision != "fp32") * (np.arange(4) % 2))] for _ in samples]
            return seconds[precision], rows

        monkeypatch.setattr(Trial, "_measure", measure)

    return tried


def test_the_fastest_is_taken_from_the_next_run_on(make, tried, cache):
    tried("fp32", "int8", seconds={"fp32": 2.0, "int8": 0.5})
    texts: list[str] = []
    submodel = make()
    _, report = one_run(submodel, texts=texts)
    assert report.precision == "fp32"
    assert any(text.startswith("Quantizing the UNet to int8") for text in texts)
    assert "auto is int8 on this CPU, the fastest of fp32 2 s, int8 0.5 s a call (tried in" in report.line()
    _, report = one_run(submodel)
    assert report.precision == "int8" and report.quantize_s == 0
    # the run that was tried on serves as calibration, and another process remembers
    assert CalibrationSet(cache.root, SOURCE.identity).count >= 12
    tried("fp32", "nothing to be tried")
    assert one_run(make())[1].precision == "int8"


def test_fp32_stays_where_it_is_the_fastest(make, tried):
    tried("fp32", "int8", seconds={"fp32": 0.1, "int8": 0.5})
    submodel = make()
    one_run(submodel)
    _, report = one_run(submodel)
    assert report.precision == "fp32" and report.choice.startswith("auto is fp32 on this CPU")


def test_what_is_not_exact_enough_is_not_taken(make, tried):
    tried("fp32", "bf16", seconds={"fp32": 2.0, "bf16": 0.5}, error=0.3)
    submodel = make()
    one_run(submodel)
    _, report = one_run(submodel)
    assert report.precision == "fp32"
    assert "bf16: cosine 0.9" in report.choice and "0.99 is needed" in report.choice


def test_the_precisions_are_really_run(make, tried):
    tried("fp32", "int8")
    submodel = make()
    _, report = one_run(submodel)
    assert "int8 0.0" in report.choice and "fp32 0.0" in report.choice


def test_a_cpu_with_nothing_to_try_is_not_kept_waiting(make, tried):
    tried("fp32")
    submodel = make()
    texts: list[str] = []
    _, report = one_run(submodel, texts=texts)
    assert report.notices == [] and not any("Trying" in text for text in texts)
    assert report.choice == "auto is fp32 on this CPU, no other precision is faster here"


def test_a_cancelled_trial_leaves_no_verdict(make, tried):
    tried("fp32", "int8")
    submodel = make()

    class Cancelled(Exception):
        pass

    def cancel(text: str) -> None:
        if text.startswith("Trying the UNet in int8"):
            raise Cancelled

    with pytest.raises(Cancelled):
        one_run(submodel, progress=cancel)
    _, report = one_run(submodel)
    assert report.precision == "fp32" and "int8" in report.choice


def test_a_precision_that_fails_for_other_weights_is_left(make, cache, monkeypatch):
    submodel = make()
    assert submodel._trial is not None
    submodel._trial.verdict = Verdict("bf16", {"fp32": 2.0, "bf16": 1.0}, {}, 1.0)
    submodel.precision = "bf16"
    monkeypatch.setattr("ovpack.ov_backends.runtime.submodel.actual_precision", lambda model, planned: planned)
    monkeypatch.setattr("ovpack.ov_backends.runtime.submodel.parity", lambda *_: 0.5)
    _, report = one_run(submodel)
    assert report.precision == "fp32"
    assert any("bf16 gave other values than the CPU in fp32" in notice for notice in report.notices)


@pytest.mark.parametrize(
    ("capabilities", "speeds", "expected"),
    [
        ("FP32 INT8", {"fp32": 1.0, "int8": 1.1}, ["fp32"]),
        ("FP32 INT8", {"fp32": 1.0, "int8": 3.0}, ["fp32", "int8"]),
        ("FP32 BF16 INT8", {"fp32": 1.0, "bf16": 2.0, "int8": 2.2}, ["fp32", "bf16"]),
        ("FP32 FP16 INT8", {"fp32": 1.0, "fp16": 2.0, "int8": 4.0}, ["fp32", "fp16", "int8"]),
    ],
)
def test_only_what_the_cpu_is_fast_in_is_tried(monkeypatch, capabilities, speeds, expected):
    monkeypatch.setattr(trial.devices, "capabilities", lambda device: capabilities)
    monkeypatch.setattr(trial, "macs_of_this_cpu", speeds.__getitem__)
    assert candidates("unet") == expected
    assert candidates("vae_decoder") == [name for name in expected if name != "int8"]


def test_a_damaged_verdict_is_made_again(make, tried, cache):
    tried("fp32", "int8", seconds={"fp32": 2.0, "int8": 0.5})
    one_run(make())
    (entry,) = [e for e in cache.entries() if e.manifest["kind"] == "trial"]
    (entry.path / trial.VERDICT).write_text("{}", encoding="utf-8")
    assert Trial(SOURCE, cache).verdict is None
