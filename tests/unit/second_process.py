"""Other processes that use the pack: real ones, talked to by lines on their standard input and output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

UNIT = Path(__file__).parent
_PREFIX = """
import sys
from pathlib import Path
import conftest
from ovpack.ov_backends.compiler.cache import CacheMiss, CompileCache, Entry

def say(text):
    print(text, flush=True)
"""


class SecondProcess:
    """Python that runs `code` with the pack importable as `ovpack`, `arguments` in sys.argv and `say` to print."""

    def __init__(self, code: str, *arguments: object):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(UNIT.parent), str(UNIT)]), "PYTHONUTF8": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PREFIX + code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
        )

    def __enter__(self) -> SecondProcess:
        return self

    def __exit__(self, *_exc) -> None:
        self.kill()

    def hear(self, expected: str) -> None:
        """Wait for the line `expected`, which must be the next one."""
        line = self.process.stdout.readline().rstrip("\n")
        assert line == expected, f"heard {line!r} instead of {expected!r}\n{self._errors_if_ended(line)}"

    def go_on(self) -> None:
        """Answer its `input()`."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self) -> list[str]:
        """Wait for its end; what it still said. It must end well."""
        out, errors = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, errors
        return out.splitlines()

    def kill(self) -> None:
        """End it at once, as a crash or the task manager would."""
        self.process.kill()
        self.process.communicate()

    def _errors_if_ended(self, line: str) -> str:
        return "" if line else self.process.communicate(timeout=240)[1]
