"""A compiler in a process of its own: watched, limited in time, and ended with all that it has started."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

POLL_S = 0.1
PROGRESS_S = 1.0
GRACE_S = 5.0
"""Seconds that an ended process is waited for."""


@dataclass(frozen=True)
class Ended:
    """How a process ended. code: its exit code, None if it was ended by us. seconds: it ran.

    peak_bytes: the most memory that it and its children held together, looked at every POLL_S.
    """

    why: Literal["exit", "enough", "timeout"]
    code: int | None
    seconds: float
    peak_bytes: int


def run_watched(
    command: Sequence[str | Path],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    limit_s: float,
    tick: Callable[[float], None] = lambda seconds: None,
    is_enough: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run `command` in `folder`, its output in the file `log`; whatever happens, nothing of it keeps running.

    tick: called about once a second with the seconds gone by; what it raises ends the process. is_enough: called as
    often; True ends the process, which has then given what it was started for.
    """
    import psutil

    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    peak, told = 0, started
    try:
        while True:
            with contextlib.suppress(psutil.Error):
                peak = max(peak, _memory(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(POLL_S)
                return Ended("exit", code, time.monotonic() - started, peak)
            now = time.monotonic()
            if now - told >= PROGRESS_S:
                told = now
                if is_enough():
                    return Ended("enough", None, now - started, peak)
                tick(now - started)
            if now - started > limit_s:
                return Ended("timeout", None, now - started, peak)
    finally:
        end_tree(process)


def end_tree(process: subprocess.Popen) -> None:
    """End a process and its children, if they still run, and wait for them."""
    import psutil

    if process.poll() is not None:
        return
    tree = []
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        tree = [*parent.children(recursive=True), parent]
    for member in tree:
        with contextlib.suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(tree, timeout=GRACE_S)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)


def _memory(pid: int) -> int:
    import psutil

    parent = psutil.Process(pid)
    total = parent.memory_info().rss
    for child in parent.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += child.memory_info().rss
    return total
