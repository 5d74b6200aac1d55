"""Telling the user that something long is going on, and letting them stop it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

log = logging.getLogger("ovnpu")

T = TypeVar("T")

HEARTBEAT_S = 1.0
"""Seconds between two signs of life during one long step."""


class Progress(Protocol):
    """Shows `text`; raises (whatever the host uses to interrupt) when the user wants to stop."""

    def __call__(self, text: str) -> None: ...


def log_progress(text: str) -> None:
    """The progress for use without a user interface."""
    log.info(text)


def with_heartbeat(
    work: Callable[[], T],
    text: str,
    progress: Progress,
    state: Callable[[], str] = lambda: "",
    stop: Callable[[], None] = lambda: None,
) -> T:
    """Run `work` in a thread of its own while `progress` shows `text`, the `state` of the work and the seconds gone by.

    stop: asks the work to end early; called when `progress` raises. One OpenVINO or tracing call cannot be interrupted:
    it is waited for all the same and its result thrown away, so that nothing goes on in the background. A thread also
    starts outside torch's inference mode, which is per thread and in which nothing can be traced.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # handed to the waiting thread whatever it is
            failure.append(error)

    started = time.monotonic()
    worker = threading.Thread(target=run, name="ovnpu-work", daemon=True)
    progress(text)
    worker.start()
    try:
        while worker.is_alive():
            worker.join(HEARTBEAT_S)
            if worker.is_alive():
                progress(f"{text}{state()}, {time.monotonic() - started:.0f} s")
    except BaseException:
        stop()
        raise
    finally:
        worker.join()
    if failure:
        raise failure[0]
    return outcome[0]
