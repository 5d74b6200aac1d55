"""Recorded calls: spread over a run, kept by model, added up, and refused when they are not this model's."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from ovpack.ov_backends.compiler.cache import CompileCache
from ovpack.ov_backends.errors import CalibrationError
from ovpack.ov_backends.quantize.calibration import MANIFEST, CalibrationSet, Recorder, spread

IDENTITY = {"submodel": "unet", "model": "Net", "weights": "a" * 32, "conversion": "1"}


def rows(*values: float) -> list[dict[str, np.ndarray]]:
    return [{"x": np.full((1, 2), value, np.float32)} for value in values]


def values(samples) -> list[float]:
    return [float(sample["x"][0, 0]) for sample in samples]


def record(calls: int, batch: int = 2, wanted: int = 8) -> Recorder:
    recorder = Recorder(wanted)
    for call in range(calls):
        recorder({"x": torch.arange(call * batch, (call + 1) * batch).float()[:, None].expand(batch, 2)})
    return recorder


@pytest.mark.parametrize(("calls", "kept"), [(1, 2), (4, 8), (5, 8), (20, 8), (1000, 8)])
def test_a_run_of_any_length_gives_samples_spread_over_all_of_it(calls, kept):
    found = values(record(calls).samples())
    assert len(found) == kept and found[0] == 0
    gaps = np.diff(found)
    # rows come in pairs, cond and uncond: no part of the run is left out
    assert 2 * calls - 1 - found[-1] <= max(gaps) and max(gaps) <= 3.5 * max(1, 2 * calls / kept)


def test_both_halves_of_guidance_are_recorded():
    for calls in (4, 20, 100):
        halves = {int(value) % 2 for value in values(record(calls).samples())}
        assert halves == {0, 1}, calls


def test_a_sample_is_one_row_and_does_not_change_later():
    recorder, tensor = Recorder(), torch.ones(2, 2, dtype=torch.float64)
    recorder({"x": tensor})
    tensor.zero_()
    first, second = recorder.samples()
    assert first["x"].shape == (1, 2) and first["x"].dtype == np.float32 and second["x"].tolist() == [[1, 1]]
    assert recorder.progress == "recording calibration 2/40"


def test_runs_add_up_and_are_found_by_the_next_process(tmp_path):
    assert CalibrationSet(tmp_path, IDENTITY).digest == ""
    assert CalibrationSet(tmp_path, IDENTITY).add(rows(1, 2, 3), "first") == 3
    digest = CalibrationSet(tmp_path, IDENTITY).digest
    CalibrationSet(tmp_path, IDENTITY).add(rows(4), "ein Stern, größer")
    again = CalibrationSet(tmp_path, IDENTITY)
    assert sorted(values(again.samples())) == [1, 2, 3, 4] and again.count == 4
    assert again.digest not in ("", digest)
    manifest = json.loads((again.path / MANIFEST).read_text(encoding="utf-8"))
    assert manifest["identity"]["weights"] == "a" * 32
    assert {run["about"] for run in manifest["runs"].values()} == {"first", "ein Stern, größer"}
    assert CompileCache(tmp_path, 0).discard(again.path), "as 'cache remove' does"
    assert again.count == 0 and again.samples() == []


def test_another_lora_has_a_set_of_its_own(tmp_path):
    CalibrationSet(tmp_path, IDENTITY).add(rows(1), "")
    other = CalibrationSet(tmp_path, {**IDENTITY, "weights": "b" * 32})
    assert other.samples() == [] and other.count == 0


def test_samples_of_another_model_are_refused_by_name(tmp_path):
    mine, other = (CalibrationSet(tmp_path, {**IDENTITY, "weights": letter * 32}) for letter in "ab")
    other.add(rows(1), "")
    mine.path.mkdir(parents=True)
    (mine.path / "moved.safetensors").write_bytes(other.files[0].read_bytes())
    with pytest.raises(CalibrationError, match=r"moved\.safetensors was recorded with another model \(weights bbb"):
        mine.samples()


@pytest.mark.parametrize("content", [b"", b"garbage" * 100])
def test_a_damaged_file_is_named(tmp_path, content):
    mine = CalibrationSet(tmp_path, IDENTITY)
    mine.add(rows(1), "")
    (mine.path / "bad.safetensors").write_bytes(content)
    assert mine.count == 1
    with pytest.raises(CalibrationError, match=r"bad\.safetensors is damaged"):
        mine.samples()


def test_nan_is_left_out_and_said(tmp_path, caplog):
    mine = CalibrationSet(tmp_path, IDENTITY)
    assert mine.add(rows(1, np.nan, np.inf), "") == 1 and values(mine.samples()) == [1]
    assert "2 of 3 recorded calls hold NaN or infinity" in caplog.text
    assert mine.add(rows(np.nan), "") == 0


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    mine = CalibrationSet(tmp_path, IDENTITY)

    def full(self, data):
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        mine.add(rows(1), "")
    assert list(mine.path.iterdir()) == []


def test_spread_keeps_both_ends():
    assert spread(list(range(10)), 4) == [0, 3, 6, 9] and spread([1], 4) == [1]
