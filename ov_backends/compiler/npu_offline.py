"""Intel's real NPU compiler without an NPU: whether a model compiles for a generation, and the schedule it gets.

The compiler runs in a process of its own, which may crash, spin or take too long without harm to this one.
"""

from __future__ import annotations

import gzip
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..convert.save import save_ir
from ..graph.fingerprint import graph_hash
from ..progress import Progress
from . import npu_log
from .cache import STALE_S, CacheMiss, CompileCache, Entry
from .npu_compilers import NpuCompiler
from .npu_messages import Refusal, crash, explain
from .npu_platforms import Platform
from .npu_process import Ended, run_watched
from .npu_trace import Schedule, read_schedule

if TYPE_CHECKING:
    import openvino as ov

log = logging.getLogger("ovnpu")

KIND = "preflight"
"""Of these results in the cache."""
FORM = "2"
"""Raise it when what is kept changes."""
TRACE, ABOUT = "trace.json.gz", "about.json"
DEFAULT_TIMEOUT_S = 1800.0

WEIGHTS = {".xml": ".bin", ".pdmodel": ".pdiparams"}
"""Main file -> the file of the same name that holds its weights."""

_WRITTEN_TRACE = "compileTimeScheduleTrace.json"
_TRACE_END = b'"displayTimeUnit": "ns"\n}'
_STARTS = 4
"""Wine's server may be ending just as a program starts; then the start fails, and succeeds the next time."""
PATIENCE = 1.0
_LEAST_PATIENCE_S = 30.0
"""After the schedule the compiler still writes the program, weights and all: more than half as long for 0.7 GB of them.
It is given this part of its time up to the schedule, and no less than so many seconds; some spin without an end."""


@dataclass(frozen=True)
class OfflineOrder:
    """What to compile, for what.

    model: at the sizes to compile for. files: those that it was read from, the main one first, which the compiler
    then reads itself, so that weights are on disk once; without them `model` is written for it. parameters: of the
    compiler's own (NPU_COMPILATION_MODE_PARAMS). tiles: 0 leaves the number to the compiler.
    """

    model: ov.Model
    platform: Platform
    tiles: int = 0
    files: tuple[Path, ...] = ()
    parameters: str = ""

    def identity(self, compiler: NpuCompiler) -> dict[str, str]:
        """All that the result depends on. Weights count by their shape: other values take the same time."""
        return {
            "submodel": "model",
            "model": f"graph {graph_hash(self.model)}",
            "device": f"NPU {self.platform.number}",
            "tiles": str(self.tiles),
            "parameters": self.parameters,
            "compiler": compiler.stamp,
            "form": FORM,
        }

    @property
    def arguments(self) -> list[str]:
        ports = enumerate(self.model.inputs)
        shapes = [f"{index}=[{','.join(map(str, port.get_shape()))}]" for index, port in ports if len(port.get_shape())]
        tiles = [f"NPU_TILES={self.tiles}"] if self.tiles else []
        return [
            *(shapes if self.files else []),
            "NPU_COMPILER_TYPE=PLUGIN",
            f"NPU_PLATFORM={self.platform.number}",
            "LOG_LEVEL=LOG_INFO",
            *tiles,
            f"NPU_COMPILATION_MODE_PARAMS=enable-schedule-trace=true {self.parameters}".strip(),
        ]


@dataclass(frozen=True)
class OfflineResult:
    """What the compiler made of a model.

    compiler: its version. tiles: compiled for. is_complete: whether it also wrote the program for the NPU within the
    time that `patience` gave it; the schedule is whole in any case. trace: the schedule as the compiler wrote it,
    gzipped. is_cached: from an earlier run, whose seconds and memory these are.
    """

    compiler: str
    tiles: int
    seconds: float
    peak_bytes: int
    warnings: tuple[str, ...]
    is_complete: bool
    patience: float
    schedule: Schedule
    trace: bytes
    is_cached: bool = False


def compile_offline(
    order: OfflineOrder,
    compiler: NpuCompiler,
    cache: CompileCache,
    progress: Progress,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    patience: float = PATIENCE,
) -> OfflineResult | Refusal:
    """Compile `order`, or find the result in the cache; a refusal, a crash and a timeout are results too, not kept.

    patience: for which part of the time up to the schedule the compiler may go on to write the program; 0 ends it as
    soon as the schedule is there, which is enough to compare two graphs and saves a third of the time.
    """
    identity = order.identity(compiler)
    text = f"Compiling {order.model.get_friendly_name()} for {order.platform} without an NPU"
    with cache.making(KIND, identity, lambda: progress(f"Waiting for another process: {text}")):
        found = cache.find(KIND, identity)
        if isinstance(found, Entry):
            kept = _from_entry(found)
            if kept.is_complete or kept.patience >= patience:
                return kept
        result = _compile(order, compiler, cache.root, lambda s: progress(f"{text}, {s:.0f} s"), timeout_s, patience)
        if isinstance(result, OfflineResult):
            _keep(cache, identity, result, str(found) if isinstance(found, CacheMiss) else "the program was wanted too")
        return result


def _compile(
    order: OfflineOrder,
    compiler: NpuCompiler,
    root: Path,
    tick: Callable[[float], None],
    timeout_s: float,
    patience: float,
) -> OfflineResult | Refusal:
    with _work_folder(root) as folder:
        model = _hand_over(order, compiler, folder)
        output, trace = folder / "log.txt", folder / _WRITTEN_TRACE
        # the program also ends by itself, should this process be gone by then
        command = [*compiler.command, str(int(timeout_s) + 60), compiler.path(model), "-", *order.arguments]
        for _ in range(_STARTS):
            watch = _ScheduleWatch(trace, patience)
            ended = run_watched(command, folder, compiler.environment, output, timeout_s, tick, watch)
            said = npu_log.plain(output.read_text(encoding="utf-8", errors="replace"))
            if npu_log.was_started(said) or ended.why != "exit":
                break
        if not _is_whole(trace) or npu_log.failure(said)[0]:
            return _why_not(ended, said, order)
        return OfflineResult(
            compiler=npu_log.compiler_version(said),
            tiles=npu_log.tiles(said),
            seconds=ended.seconds,
            peak_bytes=ended.peak_bytes,
            warnings=npu_log.warnings(said),
            is_complete=npu_log.is_done(said),
            patience=patience,
            schedule=read_schedule(trace),
            trace=gzip.compress(trace.read_bytes(), compresslevel=5),
        )


class _ScheduleWatch:
    """Says when the compiler has given the schedule and has then had its time to finish."""

    def __init__(self, trace: Path, patience: float):
        self._trace, self._patience = trace, patience
        self._started, self._seen = time.monotonic(), 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self._seen:
            self._seen = now if _is_whole(self._trace) else 0.0
        if not self._seen:
            return False
        wait_s = self._patience and max(_LEAST_PATIENCE_S, self._patience * (self._seen - self._started))
        return now - self._seen >= wait_s


def _is_whole(trace: Path) -> bool:
    """Whether the compiler has written the schedule to its end."""
    try:
        with trace.open("rb") as file:
            file.seek(max(0, trace.stat().st_size - 64))
            return file.read().replace(b"\r", b"").rstrip().endswith(_TRACE_END)
    except OSError:
        return False


def _why_not(ended: Ended, said: str, order: OfflineOrder) -> Refusal:
    if ended.why == "timeout":
        advice = (
            f"The compiler was still at work after {ended.seconds:.0f} s and was ended; give it more time (--timeout), "
            "or a smaller model."
        )
        return Refusal("timeout", "", "", advice, npu_log.last_lines(said, 1))
    step, text = npu_log.failure(said)
    if step:
        return explain(step, text, order.platform, order.model)
    return crash(ended.code, npu_log.last_lines(said), order.platform, order.model)


@contextmanager
def _work_folder(root: Path) -> Iterator[Path]:
    """A folder of this run's own: the compiler writes its trace into the current folder under one name."""
    parent = root.absolute() / "npu_compiler" / "runs"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for remains in (old for old in parent.iterdir() if time.time() - old.stat().st_mtime > STALE_S):
            shutil.rmtree(remains, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=parent))
    except OSError:  # a cache that cannot be written to is no reason to stop
        folder = Path(tempfile.mkdtemp(prefix="ovnpu-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hand_over(order: OfflineOrder, compiler: NpuCompiler, folder: Path) -> Path:
    """The model's file as the compiler gets it. Under Wine a link with a plain name: it cannot open every one."""
    source = folder / "model"
    source.mkdir()
    if not order.files:
        save_ir(order.model, source / "model.xml")
        return source / "model.xml"
    main = order.files[0].absolute()
    if compiler.kind == "native":
        return main
    if main.is_dir():
        (source / "saved").symlink_to(main, target_is_directory=True)
        return source / "saved"
    for file in (file.absolute() for file in order.files):
        # the main file and the weights of an IR are called alike, others by the name that the main file knows them by
        is_own = file in (main, main.with_suffix(WEIGHTS.get(main.suffix.lower(), main.suffix)))
        name = Path(f"model{file.suffix.lower()}") if is_own else file.relative_to(main.parent)
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).symlink_to(file)
    return source / f"model{main.suffix.lower()}"


def _keep(cache: CompileCache, identity: dict[str, str], result: OfflineResult, why: str) -> None:
    """Store the result; a full or read-only disk costs the next run its time."""
    about = {
        "compiler": result.compiler,
        "tiles": result.tiles,
        "seconds": result.seconds,
        "peak_bytes": result.peak_bytes,
        "warnings": result.warnings,
        "is_complete": result.is_complete,
        "patience": result.patience,
    }

    def write(folder: Path) -> None:
        (folder / TRACE).write_bytes(result.trace)
        (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")

    try:
        cache.store(KIND, identity, write, why, result.seconds)
    except OSError as error:
        log.warning("The NPU compiler's answer could not be kept in %s: %s", cache.root, error)


def _from_entry(entry: Entry) -> OfflineResult:
    about = json.loads((entry.path / ABOUT).read_text(encoding="utf-8"))
    trace = (entry.path / TRACE).read_bytes()
    made = OfflineResult(**about, schedule=read_schedule(entry.path / TRACE), trace=trace)
    return replace(made, warnings=tuple(made.warnings), is_cached=True)
