"""How much memory this process holds, before, after and at its highest in between."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from types import TracebackType

POLL_S = 0.02


@dataclass(frozen=True)
class Memory:
    """Resident set size of the process in bytes."""

    before: int
    after: int
    peak: int

    @property
    def added(self) -> int:
        """What is held now and was not before."""
        return self.after - self.before

    def as_json(self) -> dict:
        return {**asdict(self), "added": self.added}

    def __str__(self) -> str:
        before, after, peak = (f"{n / 1e6:.0f}" for n in (self.before, self.after, self.peak))
        return f"memory of the process in MB: {before} before, {after} after, {peak} at most"


class MemoryWatch:
    """Watches from `with` to its end; `memory` then, or at any time in between, says what was seen."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._stop = threading.Event()
        self._peak = 0
        self._before = self._look()
        self._watcher = threading.Thread(target=self._watch, name="ovnpu-memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._watcher.join()

    @property
    def memory(self) -> Memory:
        after = self._look()
        return Memory(self._before, after, self._peak)

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            self._look()

    def _look(self) -> int:
        now = self._process.memory_info().rss
        self._peak = max(self._peak, now)
        return now


def free_bytes() -> int:
    """What the machine has left, without what the system gives back when it is asked for."""
    import psutil

    return psutil.virtual_memory().available
