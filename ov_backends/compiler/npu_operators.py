"""Makes the table of operators that the NPU takes: each is compiled by itself, in each type of number."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CompileError
from ..graph.npu_support import NO, Support
from ..progress import Progress, log_progress
from .cache import CompileCache
from .npu_compilers import NpuCompiler
from .npu_messages import Refusal
from .npu_offline import OfflineOrder, OfflineResult, compile_offline
from .npu_platforms import Platform
from .npu_probes import probes
from .npu_setup import openvino_version
from .npu_trace import Schedule

if TYPE_CHECKING:
    import openvino as ov

LIMIT_S = 120.0
WORKERS = 2
_SURROUNDINGS = ("Parameter", "Result", "Schedule", "FakeQuantize")
"""Layers of a probe that are not the operator itself."""


def write_table(
    file: Path, platforms: Sequence[Platform], compiler: NpuCompiler, cache: CompileCache, progress: Progress
) -> dict[str, tuple[int, int]]:
    """Try every operator on each platform and write `file`; platforms that it holds besides stay as they are.

    Platform -> how many were taken, and how many tried. Minutes for each platform; what is cached is not done again.
    """
    kept = json.loads(file.read_text(encoding="utf-8"))["platforms"] if file.exists() else {}
    made: dict[str, dict[str, dict[str, str]]] = {}
    versions: set[str] = set()
    for platform in platforms:
        made[platform.number] = _try_all(platform, compiler, cache, progress, versions)
    table = {
        "openvino": openvino_version(),
        "compiler": ", ".join(sorted(versions)),
        "platforms": dict(sorted({**kept, **made}.items())),
    }
    try:
        file.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise CompileError(f"The table could not be written to {file}: {error.strerror}.") from error
    return {number: _count(operators) for number, operators in made.items()}


def try_one(operator: str, model: ov.Model, platform: Platform, compiler: NpuCompiler, cache: CompileCache) -> Support:
    """Compile the model of one probe, see `npu_probes`."""
    return _support(operator, _compile(model, platform, compiler, cache))


def _try_all(
    platform: Platform, compiler: NpuCompiler, cache: CompileCache, progress: Progress, versions: set[str]
) -> dict[str, dict[str, str]]:
    jobs = [(probe.variant, kind, *probe.model(kind)) for probe in probes() for kind in probe.kinds]
    done = 0

    def one(job: tuple[str, str, str, ov.Model]) -> tuple[str, str, str]:
        nonlocal done
        variant, kind, operator, model = job
        outcome = _compile(model, platform, compiler, cache)
        done += 1
        if isinstance(outcome, OfflineResult):
            versions.add(outcome.compiler)
        found = _support(operator, outcome)
        return f"{operator} {variant}".strip(), kind, found.engine or NO + found.why_not

    table: dict[str, dict[str, str]] = defaultdict(dict)
    with ThreadPoolExecutor(WORKERS) as pool:
        for operator, kind, entry in pool.map(one, jobs):
            progress(f"{platform}: {done} of {len(jobs)} operators tried, the last one {operator}")
            table[operator][kind] = entry
    return dict(table)


def _compile(
    model: ov.Model, platform: Platform, compiler: NpuCompiler, cache: CompileCache
) -> OfflineResult | Refusal:
    return compile_offline(OfflineOrder(model, platform), compiler, cache, log_progress, LIMIT_S, patience=0)


def _support(operator: str, outcome: OfflineResult | Refusal) -> Support:
    if isinstance(outcome, Refusal):
        return Support("", outcome.advice.partition(". ")[0])
    return Support(_engine(operator, outcome.schedule))


def _engine(operator: str, schedule: Schedule) -> str:
    """The engine that computes; data movement counts only where nothing else is done."""
    busy: dict[str, float] = defaultdict(float)
    for layer in schedule.layers:
        if layer.type not in _SURROUNDINGS or layer.type == operator:
            for engine, seconds in layer.busy_s.items():
                busy[engine] += seconds
    computing = {engine: busy[engine] for engine in ("DPU", "SHAVE") if engine in busy}
    if computing:
        return max(computing, key=lambda engine: computing[engine])
    return "DMA" if "DMA" in busy else "none"


def _count(operators: Mapping[str, Mapping[str, str]]) -> tuple[int, int]:
    entries = [entry for kinds in operators.values() for entry in kinds.values()]
    return sum(not entry.startswith(NO) for entry in entries), len(entries)
