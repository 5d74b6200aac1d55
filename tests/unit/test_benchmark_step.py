"""How the benchmarks run their sides, and what step.py makes of the measurements."""

from __future__ import annotations

import os

import precision
import pytest
import step
from sampling import Clock, Options
from sides import Ready, Result, Run, cosine
from step import SIDES, shortfalls
from workers import SideFailed, measure

HARDWARE = {
    "cpu": "A CPU",
    "cores": "2 cores",
    "memory_bytes": 2**34,
    "capabilities": "BF16 FP32 INT8",
    "instructions": "AVX512",
    "versions": {"openvino": "1", "torch": "2", "comfyui": "3"},
}
REPORT = {"seconds": {"convert": 1, "compile": 2, "import": 0}, "cache": {"state": "miss", "reason": "new"}}


def result(name: str, step_s: list[float], openvino_s: float = 0.0, around_s: float = 0.1) -> Result:
    """Rounds of one step each, with `around_s` outside of the UNet call."""
    import numpy as np

    side = next(side for side in SIDES if side.name == name)
    runs = [
        Run(s + around_s, [s], s, openvino_s, calls=1, latent=np.ones((1, 4, 2, 2)), peak_bytes=10**9) for s in step_s
    ]
    return Result(side, Ready(1.0, REPORT, HARDWARE), runs, 2 * 10**9)


def test_speed_up_pairs_the_rounds():
    """The machine became twice as slow in the second round; the ratio did not."""
    assert result("fp32", [1.0, 2.0]).speed_up(result("torch", [3.0, 6.0])) == 3.0


def test_overhead_leaves_out_openvino_and_the_samplers_own_time():
    stock, fp32 = result("torch", [7.0]), result("fp32", [4.0], openvino_s=3.9)
    assert fp32.overhead(stock) == pytest.approx(0.1 / 4.1)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([result("torch", [7.0]), result("fp32", [4.0], 3.99), result("bf16", [2.0], 1.99)], []),
        ([result("torch", [7.0]), result("fp32", [4.0], 3.99)], []),
        (
            [result("torch", [6.0]), result("fp32", [4.0], 3.99), result("bf16", [2.0], 1.8)],
            [
                "fp32: 1.50 times as fast as torch, the goal is 1.7",
                "bf16: 9.5% of a step outside OpenVINO, the goal is 2%",
            ],
        ),
    ],
    ids=["all hold", "no BF16 here", "missed"],
)
def test_shortfalls_are_named(results, expected):
    assert shortfalls(results) == expected


def test_table_has_a_line_for_each_side_and_a_header():
    lines = step.table([result("torch", [7.0]), result("fp32", [4.0], 3.99)]).splitlines()
    assert [line[:24].strip() for line in lines] == ["", "KSampler, torch fp32", "NPU KSampler, CPU fp32"]
    assert {len(line.split("  ")[-1]) for line in lines[1:]} == {len("1.000000000")}


def test_json_says_what_was_not_measured():
    results = [result("torch", [7.0]), result("fp32", [4.0], 3.99)]
    written = step.as_json(results, Options(512, 3, "pytorch"), [])
    assert written["not_measured"] == ["bf16"]
    assert written["sides"]["fp32"]["speed_up"] == 1.75


def test_each_precision_is_held_against_those_it_has_to_beat():
    sides = {side.name: side for side in precision.SIDES}

    def took(name: str, step_s: float) -> Result:
        return Result(sides[name], Ready(1.0, REPORT, HARDWARE), [Run(step_s, [step_s], step_s, 0.0, 1, None)])

    measured = [took("torch", 8.0), took("fp32", 4.0), took("int8", 2.0), took("int8-weights", 4.0)]
    assert precision.shortfalls(measured) == [
        "int8: 2.00 times as fast as fp32, the goal is 2.3",
        "int8: 4.00 times as fast as torch, the goal is 4.8",
    ]
    fast = [took("torch", 8.0), took("fp32", 4.0), took("bf16", 2.0), took("int8", 1.6)]
    assert precision.shortfalls(fast) == ["int8: 1.25 times as fast as bf16, the goal is 1.4"]


@pytest.mark.parametrize("calls_a_step", [1, 2], ids=["both halves at once", "one after the other"])
def test_steps_last_from_one_unet_call_to_the_next(calls_a_step):
    clock = Clock()
    clock.starts = [10.0 + i / calls_a_step for i in range(3 * calls_a_step)]
    clock.sampled = 13.5
    assert clock.steps(3) == pytest.approx([1.0, 1.0, 1.5])


def test_cosine_of_opposite_latents_is_minus_one():
    import numpy as np

    a = np.arange(1, 9, dtype=np.float32)
    assert cosine(a, -a) == pytest.approx(-1)


class Counting:
    """A bench whose steps last as many seconds as it has run."""

    def __init__(self, side, options: dict):
        if side.name in options["broken"]:
            raise ValueError("no such model")
        self.side, self.options, self.runs = side, options, 0

    def ready(self) -> Ready:
        return Ready(0.5, {}, HARDWARE | {"capabilities": self.options["capabilities"]} if self.side.precision else {})

    def run(self) -> Run:
        if self.side.name in self.options["dying"]:
            os._exit(3)
        self.runs += 1
        return Run(self.runs, [self.runs], self.runs, 0.0, calls=os.getpid(), latent=None)


def options(**given) -> dict:
    return {"broken": (), "dying": (), "capabilities": "FP32"} | given


def test_sides_take_turns_in_processes_of_their_own(capfd):
    results = measure(SIDES, Counting, options(), rounds=2)
    assert [result.side.name for result in results] == ["torch", "fp32"]
    assert [[run.step_s for run in result.runs] for result in results] == [[[1], [2]]] * 2
    assert len({os.getpid(), *(run.calls for result in results for run in result.runs)}) == 3
    assert all(result.peak_bytes > 10**6 for result in results)
    said = capfd.readouterr().out.splitlines()
    assert said[2] == "NPU KSampler, CPU bf16: not measured, this CPU has no BF16 arithmetic"
    titles = [side.title for side in SIDES[:2]]
    rounds = [f"round {number} of 2: {title}: {number:.3f} s" for number in (1, 2) for title in titles]
    assert said[3:] == rounds


@pytest.mark.parametrize(
    ("given", "message"),
    [({"broken": ("fp32",)}, "ValueError: no such model"), ({"dying": ("torch",)}, "its process ended, code 3.")],
    ids=["traceback", "ended"],
)
def test_a_side_that_fails_says_which_and_why(given, message):
    with pytest.raises(SideFailed, match=message):
        measure(SIDES, Counting, options(**given), rounds=1)
