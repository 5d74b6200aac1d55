"""What Intel's NPU compiler says while it works: its version, its warnings, and why it gave up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

_LINE = re.compile(r"^\[(\w+)\] [\d:.]+ \[([^\]]*)\] +(.*)$", flags=re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_VERSION = re.compile(r"Compiler Properties: ID: ([^,\n]+), Version: ([\d.]+)")
_TILES = re.compile(r"^ *DPU groups = (\d+)", flags=re.MULTILINE)
_FAILED = re.compile(r"^ovnpu failed: (\w+): (.*)", flags=re.MULTILINE | re.DOTALL)
_SHAVE_UNKNOWN = re.compile(r"following SHAVE operations are unsupported by VPUNN.*?: \[(.*?)\]")
_NO_DURATION = re.compile(r"^Task (.*?) has duration 0 ns")
_INVALID_COST = re.compile(r"There are (\d+) tasks with invalid cost")
# They are about the missing device, or about internals that say nothing of the estimate.
_IRRELEVANT = ("No driver is found", "Debatching is not supported", "start_barrier_sync_dma")
MOST_WARNINGS = 8


def plain(log: str) -> str:
    """The log without colours, with line ends of one kind."""
    return _COLOUR.sub("", log).replace("\r\n", "\n")


def compiler_version(log: str) -> str:
    """ "8.4 (2026.5.0-...)": version and build; "" if the compiler did not come so far."""
    found = _VERSION.search(log)
    return f"{found[2]} ({found[1]})" if found else ""


def tiles(log: str) -> int:
    """For how many tiles it compiled; 0 if it did not come so far."""
    found = _TILES.search(log)
    return int(found[1]) if found else 0


def was_started(log: str) -> bool:
    """Whether our program spoke: without that, Wine itself did not start."""
    return "ovnpu " in log


def is_done(log: str) -> bool:
    return bool(re.search(r"^ovnpu done", log, flags=re.MULTILINE))


def failure(log: str) -> tuple[str, str]:
    """The step that failed ("read", "compile", ...) and what was said about it; ("", "") if nothing failed."""
    found = _FAILED.search(log)
    if not found:
        return "", ""
    step, text = found.groups()
    return step, f"{text.strip()}\n{errors(log)}".strip()


def errors(log: str) -> str:
    """What it said at its level ERROR, a line each."""
    return "\n".join(text.strip() for level, _, text in _lines(log) if level == "ERROR")


def warnings(log: str) -> tuple[str, ...]:
    """What the compiler itself says about its estimate, in plain words where they are known; each once."""
    said: Counter[str] = Counter()
    without_duration = 0
    for level, _, text in _lines(log):
        if level != "WARNING" or any(word in text for word in _IRRELEVANT):
            continue
        if _NO_DURATION.match(text):
            without_duration += 1
        else:
            said[_explain(text.strip())] += 1
    if without_duration:
        said[f"{without_duration} tasks are counted as taking no time"] += 1
    return tuple(f"{text} ({count} times)" if count > 1 else text for text, count in said.most_common(MOST_WARNINGS))


def last_lines(log: str, most: int = 5) -> str:
    """The end of the log: what a crash leaves behind, without registers and stacks."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    crash = next((index for index, line in enumerate(lines) if line.startswith("Unhandled exception")), len(lines))
    return "\n".join(lines[:crash][-most:])[-1000:]


def _lines(log: str) -> Iterator[tuple[str, str, str]]:
    """Level, part of the compiler, text."""
    return (found.groups() for found in _LINE.finditer(log))  # type: ignore[misc]


def _explain(text: str) -> str:
    if found := _SHAVE_UNKNOWN.search(text):
        return f"the energy model does not know these SHAVE kernels: {found[1]}"
    if found := _INVALID_COST.search(text):
        return f"{found[1]} tasks have a cost that the cost model could not give; their time is made up"
    if "VPUNN" in text:
        return "the cost model has no figure for some way to split a layer, so another one may have been chosen"
    return text[:200]
