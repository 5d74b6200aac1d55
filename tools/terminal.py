"""Plain terminal output: ASCII only, one line per stage, no escape codes. Standard library only."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

WIDTH = 100
HEARTBEAT_S = 30.0
POLL_S = 0.3
TAIL_BYTES = 65536


def ascii_only(text: str) -> str:
    """The text as every console can print it; Windows consoles may still use an old code page."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def say(text: str = "") -> None:
    print(ascii_only(text), flush=True)


class Progress:
    """One stage of work: one line rewritten in place on a terminal, else a line now and then."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self.label = label
        self._stream = stream or sys.stdout
        self._is_terminal = self._stream.isatty()
        self._started = self._shown = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def __enter__(self) -> Progress:
        self._started = self._shown = time.monotonic()
        self._write(f"{self.label} ...")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        outcome = "done" if kind is None else "failed"
        self._write(f"{self.label}: {outcome}, {self.elapsed_s:.0f} s", is_last=True)

    def update(self, detail: str = "") -> None:
        """Show how long the stage has taken and, if known, what it is doing."""
        now = time.monotonic()
        if now - self._shown < (1.0 if self._is_terminal else HEARTBEAT_S):
            return
        self._shown = now
        self._write(f"{self.label}: {self.elapsed_s:.0f} s  {detail.strip()}".rstrip())

    def _write(self, text: str, is_last: bool = False) -> None:
        text = ascii_only(text)[:WIDTH]
        if self._is_terminal:
            self._stream.write("\r" + text.ljust(WIDTH) + ("\n" if is_last else ""))
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that may still be written to; a progress bar's carriage returns end a line too."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line.rstrip() for line in text.replace("\r", "\n").split("\n")]
    return [line for line in lines if line][-count:]


class StageFailed(RuntimeError):
    """A command of the installation ended with an error; `tail` holds its last lines."""

    def __init__(self, label: str, code: int, log: Path) -> None:
        self.tail = last_lines(log, 15)
        super().__init__(f"{label}: the command ended with exit code {code}; its whole output is in {log}")


def run_stage(
    label: str,
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command with its output in a log file, showing its last line as progress.

    The command reads nothing from the terminal and is ended with us. A non-zero exit code raises StageFailed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with Progress(label) as progress:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
            )
            try:
                while process.poll() is None:
                    progress.update(next((line for line in reversed(last_lines(log, 20)) if "WARNING" not in line), ""))
                    time.sleep(POLL_S)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        if process.returncode:
            raise StageFailed(label, process.returncode, log)
