"""Seconds per sampling step of Stable Diffusion 1.5's size on the CPU: stock KSampler (torch) against NPU KSampler.

    python benchmarks/step.py --comfyui PATH        (about 10 minutes on 2 cores; 24 GB of memory)

Every side has a process of its own, so that its peak memory is its own, and they take turns (A B C A B C ...), so that
a machine that becomes slower or faster meanwhile meets all alike. Exit code 0 if the goals hold, 1 if not, 2 if a side
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sampling import Options, Sampling
from sides import STOCK, Result, Side, hardware_line, hardware_of, preparation_line, table
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
    given = _parser().parse_args(arguments)
    if given.comfyui:
        os.environ["COMFYUI_PATH"] = given.comfyui
    options = Options(given.size, given.steps, given.attention)
    with tempfile.TemporaryDirectory(prefix="ovnpu-benchmark-", ignore_cleanup_errors=True) as folder:
        os.environ["OVNPU_CACHE_DIR"] = given.cache or folder
        try:
            results = measure(SIDES, Sampling, options, given.rounds)
        except SideFailed as error:
            say(str(error))
            return 2
    missed = shortfalls(results)
    say()
    say(hardware_line(results))
    say(
        f"Stable Diffusion 1.5's UNet, random weights, {options.size}x{options.size}, CFG, {options.steps} euler steps "
        f"({results[0].runs[0].calls} UNet calls), {given.rounds} rounds, torch attention: {options.attention}"
    )
    say(table(results))
    for result in results[1:]:
        say(preparation_line(result))
    say("Goals missed: " + "; ".join(missed) if missed else "All goals hold.")
    if given.json:
        text = json.dumps(as_json(results, options, missed), indent=1)
        Path(given.json).write_text(text, encoding="utf-8")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Seconds per sampling step: stock KSampler against NPU KSampler.")
    parser.add_argument("--comfyui", help="folder of ComfyUI that holds main.py; else COMFYUI_PATH")
    parser.add_argument("--size", type=int, default=512, help="edge of the square image in pixels")
    parser.add_argument("--steps", type=int, default=3, help="sampling steps of one run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument(
        "--attention",
        choices=("default", "pytorch"),
        default="default",
        help="of the stock side; default: as ComfyUI starts without options; pytorch: as with "
        "--use-pytorch-cross-attention, the faster one on a CPU",
    )
    parser.add_argument("--cache", help="compile cache to use and keep; else a new one, removed at the end")
    parser.add_argument("--json", help="file to write everything measured to")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
