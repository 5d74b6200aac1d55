"""Seconds per sampling step of Stable Diffusion 1.5's size on the CPU: stock KSampler (torch) against NPU KSampler.

    python benchmarks/step.py --comfyui PATH        (about 10 minutes on 2 cores; 24 GB of memory)

Every side has a process of its own, so that its peak memory is its own, and they take turns (A B C A B C ...), so that
a machine that becomes slower or faster meanwhile meets all alike. Exit code 0 if the goals hold, 1 if not, 2 if a side
failed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sampling import Options, Sampling, parser, prepared
from sides import STOCK, Result, Side, conditions_line, hardware_line, hardware_of, preparation_line, table
from workers import SideFailed, measure, say

MAX_OVERHEAD = 0.02
"""Largest part of a step that the pack's own code may take."""
SIDES = (
    STOCK,
    Side("fp32", "NPU KSampler, CPU fp32", "fp32", 1.7),
    Side("bf16", "NPU KSampler, CPU bf16", "bf16", 3.0),
)


def shortfalls(results: Sequence[Result]) -> list[str]:
    """Which goals are missed, and by how much; a side that this CPU cannot run counts neither way."""
    stock, missed = results[0], []
    for result in results[1:]:
        ratio, overhead = result.speed_up(stock), result.overhead(stock)
        if ratio < result.side.goal:
            missed.append(f"{result.side.name}: {ratio:.2f} times as fast as torch, the goal is {result.side.goal}")
        if overhead > MAX_OVERHEAD:
            missed.append(
                f"{result.side.name}: {overhead:.1%} of a step outside OpenVINO, the goal is {MAX_OVERHEAD:.0%}"
            )
    return missed


def as_json(results: Sequence[Result], options: Options, missed: Sequence[str]) -> dict[str, Any]:
    sides = {result.side.name: result.as_json(results[0]) for result in results}
    return {
        "schema": 1,
        "options": asdict(options),
        "hardware": hardware_of(results),
        "sides": sides,
        "not_measured": [side.name for side in SIDES if side.name not in sides],
        "missed": list(missed),
    }


def main(arguments: Sequence[str]) -> int:
    given = parser("Seconds per sampling step: stock KSampler against NPU KSampler.", 3, 3).parse_args(arguments)
    with prepared(given) as options:
        try:
            results = measure(SIDES, Sampling, options, given.rounds)
        except SideFailed as error:
            say(str(error))
            return 2
    missed = shortfalls(results)
    say()
    say(hardware_line(results))
    say(conditions_line(results, options))
    say(table(results))
    for result in results[1:]:
        say(preparation_line(result))
    say("Goals missed: " + "; ".join(missed) if missed else "All goals hold.")
    if given.json:
        text = json.dumps(as_json(results, options, missed), indent=1)
        Path(given.json).write_text(text, encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
