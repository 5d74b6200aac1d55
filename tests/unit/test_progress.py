"""Long work shows that it lives, can be stopped, and never goes on behind the user's back."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from ovpack.ov_backends import progress
from ovpack.ov_backends.progress import with_heartbeat


@pytest.fixture(autouse=True)
def quick_heart(monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.01)


def test_the_result_comes_back_and_short_work_is_told_once():
    texts: list[str] = []
    assert with_heartbeat(lambda: 42, "Working", texts.append) == 42
    assert texts[0] == "Working"


def test_the_heartbeat_counts_the_seconds(monkeypatch):
    clock = iter([100.0, 101.2, 102.4, 163.4])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    texts, done = [], threading.Event()

    def note(text: str) -> None:
        texts.append(text)
        if len(texts) == 4:
            done.set()
            # the work is over before the next beat can ask the clock
            next(t for t in threading.enumerate() if t.name == "ovnpu-work").join()

    with_heartbeat(lambda: done.wait(30), "Compiling", note)
    assert texts == ["Compiling", "Compiling, 1 s", "Compiling, 2 s", "Compiling, 63 s"]


def test_the_heartbeat_tells_how_far_the_work_is():
    texts, done, steps = [], threading.Event(), iter(range(10))

    def note(text: str) -> None:
        texts.append(text)
        if len(texts) == 3:
            done.set()

    with_heartbeat(lambda: done.wait(30), "Quantizing", note, lambda: f", call {next(steps)}")
    assert texts[:3] == ["Quantizing", "Quantizing, call 0, 0 s", "Quantizing, call 1, 0 s"]


def test_work_that_can_end_early_is_asked_to():
    stopped = threading.Event()

    def cancel(text: str) -> None:
        if text.endswith(" s"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_heartbeat(lambda: stopped.wait(30), "Quantizing", cancel, stop=stopped.set)
    assert stopped.is_set()


def test_an_error_of_the_work_arrives_as_it_is():
    error = ValueError("what went wrong")

    def work():
        raise error

    with pytest.raises(ValueError) as caught:
        with_heartbeat(work, "Working", lambda text: None)
    assert caught.value is error


def test_stopping_waits_for_the_work_so_that_nothing_goes_on_in_the_background():
    beat, ended = threading.Event(), threading.Event()

    def work():
        assert beat.wait(30)
        ended.set()

    def stop(text: str) -> None:
        if text.endswith(" s"):
            beat.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_heartbeat(work, "Working", stop)
    assert ended.is_set()


def test_stopping_before_it_starts_starts_nothing():
    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_heartbeat(lambda: pytest.fail("started"), "Working", stop)


def test_work_runs_outside_comfyuis_inference_mode():
    with torch.inference_mode():
        assert with_heartbeat(torch.is_inference_mode_enabled, "Tracing", lambda text: None) is False
