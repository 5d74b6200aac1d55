"""A process for every side of a benchmark, and their turns.

Each has its own, so that its peak memory is its own, and while one computes the others sleep.
"""

from __future__ import annotations

import multiprocessing
import platform
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

from sides import Ready, Result, Run, Side, hardware_of, has_bf16

POLL_S = 0.05


class Bench(Protocol):
    """What a side's process makes from its side and the options, and then runs."""

    def ready(self) -> Ready:
        """Run once."""

    def run(self) -> Run: ...


class SideFailed(RuntimeError):
    """A side's process failed; the text has its traceback."""


def measure(sides: Sequence[Side], bench: Callable[[Side, Any], Bench], options: object, rounds: int) -> list[Result]:
    """Warm every side up, one after the other; then `rounds` times a run of each in turn.

    bench: a class or function of a module that the processes can import; it is called in each with its side and
    `options`. A bf16 side comes after one that names the hardware, and is left out where that has no BF16. Raises
    SideFailed.
    """
    with ExitStack() as ending:
        workers: list[Worker] = []
        results: list[Result] = []
        for side in sides:
            if side.precision == "bf16" and not has_bf16(hardware_of(results)):
                say(f"{side.title}: not measured, this CPU has no BF16 arithmetic")
                continue
            say(f"{side.title}: making the model, then one run to warm up")
            workers.append(Worker(side, bench, options))
            ending.callback(workers[-1].end)
            ready, _ = workers[-1].receive()
            results.append(Result(side, ready))
        for number in range(rounds):
            for worker, result in zip(workers, results, strict=True):
                run, peak_bytes = worker.ask("run")
                result.runs.append(replace(run, peak_bytes=peak_bytes))
                steps = " ".join(f"{step:.3f}" for step in run.step_s)
                say(f"round {number + 1} of {rounds}: {result.side.title}: {steps} s")
        for worker, result in zip(workers, results, strict=True):
            result.peak_bytes, _ = worker.ask("end")
        return results


class Worker:
    """The parent's end of a side's process."""

    def __init__(self, side: Side, bench: Callable[[Side, Any], Bench], options: object):
        context = multiprocessing.get_context("spawn")
        self.side = side
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, side, bench, options), daemon=True)
        self._process.start()
        theirs.close()

    def receive(self) -> tuple[Any, int]:
        """The next answer, and the most memory in bytes that the process held while it was waited for."""
        import psutil

        watched, peak_bytes = psutil.Process(self._process.pid), 0
        try:
            while not self._connection.poll(POLL_S):
                peak_bytes = max(peak_bytes, watched.memory_info().rss)
            answer = self._connection.recv()
        except (EOFError, psutil.NoSuchProcess) as error:
            self._process.join()
            raise SideFailed(f"{self.side.title}: its process ended, code {self._process.exitcode}.") from error
        if isinstance(answer, str):
            raise SideFailed(f"{self.side.title}:\n{answer}")
        return answer, peak_bytes

    def ask(self, what: str) -> tuple[Any, int]:
        self._connection.send(what)
        return self.receive()

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def serve(connection: Connection, side: Side, bench: Callable[[Side, Any], Bench], options: object) -> None:
    """A side's process: a model, then a sampling run for every "run" that arrives; a traceback as text if it fails."""
    try:
        made = bench(side, options)
        connection.send(made.ready())
        while connection.recv() == "run":
            connection.send(made.run())
        connection.send(_peak_bytes())
    except Exception:  # whatever it is, the parent shows it
        connection.send(traceback.format_exc())


def say(text: str = "") -> None:
    print(text, flush=True)


def _peak_bytes() -> int:
    """Most memory that this process ever held, as the operating system counts it."""
    if platform.system() == "Windows":
        import psutil

        return psutil.Process().memory_info().peak_wset
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024
