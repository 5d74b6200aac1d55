"""Seconds per step and exactness of Stable Diffusion 1.5's UNet in each precision on the CPU; what INT8 costs to make.

    python benchmarks/precision.py --comfyui PATH        (about 40 minutes on 2 cores; 24 GB of memory)

First a run is recorded and the UNet quantized with it, then stock KSampler (torch) and NPU KSampler in each precision
take turns, all in one process on one model. Exit code 0 if the goals hold, 1 if not, 2 if a side failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from sampling import Options, Sampling, parser, prepared
from sides import COLUMNS, STOCK, Result, Side, conditions_line, hardware_line, hardware_of, has_bf16, table
from workers import say

SIDES = (
    STOCK,
    Side("fp32", "NPU KSampler, fp32", "fp32"),
    Side("bf16", "NPU KSampler, bf16", "bf16"),
    Side("int8", "NPU KSampler, int8", "int8"),
    Side("int8-weights", "NPU KSampler, w8", "int8-weights"),
)
GOALS = (("int8", "fp32", 2.3), ("int8", "bf16", 1.4), ("int8", "torch", 4.8))
"""(side, other side, how many times faster it must be)."""
SHOWN = tuple(column for column in COLUMNS if column.title in ("s per step", "min..max", "speed-up", "cosine"))


class Quantizing(NamedTuple):
    """What quantizing took. peak_bytes: most resident memory of the process meanwhile, ComfyUI's weights included."""

    samples: int
    recorded_s: float
    quantized_s: float
    peak_bytes: int
    text: str


def quantize(sampling: Sampling, steps: int) -> Quantizing:
    """Record a run of `steps` steps in floating point and quantize with it, as NPU Calibrate and a first run do."""
    from ovpack.nodes.seams.unet import source_of
    from ovpack.ov_backends.compiler.ir import load_or_convert
    from ovpack.ov_backends.memory import MemoryWatch
    from ovpack.ov_backends.quantize.calibration import Recorder
    from ovpack.ov_backends.runtime.quantization import Quantization
    from ovpack.ov_backends.runtime.store import store

    cache = store().cache
    started = time.perf_counter()
    sampling.of(SIDES[1], steps=steps).record(Recorder())
    source = source_of(sampling.model)
    recorded = time.perf_counter()
    store().release(source.weights)
    quantization = Quantization(source, "int8", cache)
    with MemoryWatch() as watch:
        quantization.choose(load_or_convert(source, cache, say), say)
    ended = time.perf_counter()
    assert quantization.result is not None
    text = quantization.result.reason or quantization.result.gate.text()
    return Quantizing(quantization.result.samples, recorded - started, ended - recorded, watch.memory.peak, text)


def measure(sampling: Sampling, rounds: int) -> list[Result]:
    """Warm every side up, then `rounds` times a run of each in turn."""
    turns: list[Sampling] = []
    results: list[Result] = []
    for side in SIDES:
        if side.precision == "bf16" and not has_bf16(hardware_of(results)):
            say(f"{side.title}: not measured, this CPU has no BF16 arithmetic")
            continue
        say(f"{side.title}: one run to warm up")
        turns.append(sampling.of(side))
        ready = turns[-1].ready()
        results.append(Result(side, ready))
        if side.precision and ready.report["precision"] != side.precision:
            raise RuntimeError(f"{side.title} ran in {ready.report['precision']}: {ready.report['notices']}")
    for number in range(rounds):
        for turn, result in zip(turns, results, strict=True):
            result.runs.append(turn.run())
            steps = " ".join(f"{step:.3f}" for step in result.runs[-1].step_s)
            say(f"round {number + 1} of {rounds}: {result.side.title}: {steps} s")
    return results


def shortfalls(results: Sequence[Result]) -> list[str]:
    """Which goals are missed, and by how much; a side that this CPU cannot run counts neither way."""
    by_name = {result.side.name: result for result in results}
    missed = []
    for name, other, goal in GOALS:
        if name in by_name and other in by_name:
            ratio = by_name[name].speed_up(by_name[other])
            if ratio < goal:
                missed.append(f"{name}: {ratio:.2f} times as fast as {other}, the goal is {goal}")
    return missed


def as_json(
    results: Sequence[Result], quantizing: Quantizing, options: Options, missed: Sequence[str]
) -> dict[str, Any]:
    return {
        "schema": 1,
        "options": asdict(options),
        "hardware": hardware_of(results),
        "quantizing": quantizing._asdict(),
        "sides": {result.side.name: result.as_json(results[0]) for result in results},
        "missed": list(missed),
    }


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("ovnpu").setLevel(logging.INFO)
    with prepared(given) as options:
        sampling = Sampling(STOCK, options)
        try:
            quantizing = quantize(sampling, given.calibration_steps)
            results = measure(sampling, given.rounds)
        except RuntimeError as error:
            say(str(error))
            return 2
    missed = shortfalls(results)
    say()
    say(hardware_line(results))
    say(conditions_line(results, options))
    say(table(results, SHOWN))
    say(
        f"Quantizing with {quantizing.samples} recorded calls took {quantizing.quantized_s:.0f} s and at most "
        f"{quantizing.peak_bytes / 1e9:.1f} GB, recording them {quantizing.recorded_s:.0f} s; {quantizing.text}"
    )
    say("Goals missed: " + "; ".join(missed) if missed else "All goals hold.")
    if given.json:
        text = json.dumps(as_json(results, quantizing, options, missed), indent=1)
        Path(given.json).write_text(text, encoding="utf-8")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    made = parser("Seconds per step and exactness of each precision on the CPU.", 2, 2)
    made.add_argument("--calibration-steps", type=int, default=4, help="steps of the run that is recorded")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
