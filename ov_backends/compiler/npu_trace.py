"""The schedule that Intel's NPU compiler plans for one inference: every task, its engine, start and duration.

The compiler writes it as a Chrome trace (Trace Event Format), which Perfetto and chrome://tracing open. Times there are
in microseconds and come from Intel's cost model VPUNN.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..errors import CompileError

T = TypeVar("T", bound=Hashable)

ENGINES = {"DPU": "DPU", "Shave": "SHAVE", "DMA": "DMA"}
"""Category of a task in the trace -> what the engine is called: MAC arrays, vector processors, data movement."""

_OVERLAPS = {"DMA+DPU": "DMA-DPU overlap", "DMA+SHAVE": "DMA-SW overlap", "DPU+SHAVE": "SW-DPU overlap"}
_DURATIONS = {"DMA": "DMA duration", "DPU": "DPU duration", "SHAVE": "SW duration"}
NO_LAYER = "(the schedule itself)"
# layer?t_Type/what/the/compiler/made/cluster_0
_TASK = re.compile(r"^(.*?)\?t_(\w+)")


@dataclass(frozen=True)
class LayerSchedule:
    """A layer of the model in the schedule; several operators may be in it, by the name of one of them.

    seconds: time in which any of its tasks runs. busy_s: engine -> time in which that engine works at it. work_s: the
    same summed over all units that work side by side, so it can exceed the inference.
    """

    name: str
    type: str
    seconds: float
    busy_s: Mapping[str, float]
    work_s: Mapping[str, float]

    @property
    def engine(self) -> str:
        """The one that works at it longest."""
        return max(self.busy_s, key=lambda name: self.busy_s[name])


@dataclass(frozen=True)
class TypeSchedule:
    """All layers of one type on one engine; seconds: time in which it works at any of them; layers: their number."""

    engine: str
    type: str
    seconds: float
    work_s: float
    layers: int


@dataclass(frozen=True)
class Schedule:
    """One inference as planned. Times in seconds.

    busy_s: engine -> time in which at least one of its units works. overlap_s: "DMA+DPU", ... -> time in which both
    do. work_s: engine -> work summed over its units. units: engine -> how many work. layers, types: longest first.
    """

    latency_s: float
    frequency_hz: float
    busy_s: Mapping[str, float]
    overlap_s: Mapping[str, float]
    idle_s: float
    work_s: Mapping[str, float]
    units: Mapping[str, int]
    layers: tuple[LayerSchedule, ...]
    types: tuple[TypeSchedule, ...]

    def share(self, engine: str) -> float:
        """Part of the inference in which `engine` works, 0 to 1."""
        return self.busy_s[engine] / self.latency_s if self.latency_s else 0.0

    def as_json(self) -> dict:
        layers = [{**asdict(layer), "engine": layer.engine} for layer in self.layers]
        return {**asdict(self), "layers": layers}


def read_schedule(file: Path) -> Schedule:
    """The schedule in `file` (.json or .json.gz); CompileError if it is damaged or of a kind that is not known."""
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as opened:
            trace = json.load(opened)
        statistics, tasks = trace["taskStatistics"], list(_tasks(trace["traceEvents"]))
        of_engine = {engine: [task for task in tasks if task.engine == engine] for engine in _DURATIONS}
        return Schedule(
            latency_s=statistics["total duration"] / 1e6,
            frequency_hz=float(trace.get("workpoint", {}).get("freq", 0)) * 1e6,
            busy_s={engine: statistics[key] / 1e6 for engine, key in _DURATIONS.items()},
            overlap_s={pair: statistics[key] / 1e6 for pair, key in _OVERLAPS.items()},
            idle_s=statistics["total idle"] / 1e6,
            work_s={engine: _work(found) for engine, found in of_engine.items()},
            units={engine: len({task.unit for task in found}) for engine, found in of_engine.items()},
            layers=_layers(tasks),
            types=_types(tasks),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CompileError(
            f"The schedule that the NPU compiler wrote ({file.name}) cannot be read: {type(error).__name__}: {error}. "
            "This pack knows the form of OpenVINO 2026.4; update the pack, or use that version."
        ) from error


class _Task(NamedTuple):
    """Times in seconds."""

    layer: str
    type: str
    engine: str
    unit: tuple[int, int]
    start: float
    end: float


def _tasks(events: list[dict]) -> Iterator[_Task]:
    """What the engines do; a DPU's variants are parts of a task that is listed as well, and layers are sums."""
    parts = {(e["pid"], e["tid"]) for e in events if e.get("name") == "thread_name" and "Variants" in e["args"]["name"]}
    for event in events:
        engine, unit = ENGINES.get(event.get("cat", "")), (event["pid"], event.get("tid", 0))
        if engine is None or unit in parts:
            continue
        found = _TASK.match(event["name"])
        # tasks that belong to no layer: descriptors that are fetched, barriers
        layer, kind = found.groups() if found else (NO_LAYER, "Schedule")
        yield _Task(layer, kind, engine, unit, event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)


def _layers(tasks: Iterable[_Task]) -> tuple[LayerSchedule, ...]:
    layers = []
    for (name, kind), found in _grouped(tasks, lambda task: (task.layer, task.type)):
        engines = dict(_grouped(found, lambda task: task.engine))
        busy = {engine: _union(of_it) for engine, of_it in engines.items()}
        work = {engine: _work(of_it) for engine, of_it in engines.items()}
        layers.append(LayerSchedule(name, kind, _union(found), busy, work))
    return tuple(sorted(layers, key=lambda layer: -layer.seconds))


def _types(tasks: Iterable[_Task]) -> tuple[TypeSchedule, ...]:
    types = [
        TypeSchedule(engine, kind, _union(found), _work(found), len({task.layer for task in found}))
        for (engine, kind), found in _grouped(tasks, lambda task: (task.engine, task.type))
    ]
    return tuple(sorted(types, key=lambda one: -one.seconds))


def _grouped(tasks: Iterable[_Task], key: Callable[[_Task], T]) -> Iterable[tuple[T, list[_Task]]]:
    groups: dict[T, list[_Task]] = defaultdict(list)
    for task in tasks:
        groups[key(task)].append(task)
    return groups.items()


def _work(tasks: Iterable[_Task]) -> float:
    return sum(task.end - task.start for task in tasks)


def _union(tasks: Iterable[_Task]) -> float:
    """Time in which at least one of them runs."""
    total = until = 0.0
    for task in sorted(tasks, key=lambda task: task.start):
        total += max(0.0, task.end - max(until, task.start))
        until = max(until, task.end)
    return total
