"""What a model would do on an NPU that is not here: whether it compiles, how long it takes, on which engine."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .compiler.cache import CompileCache
from .compiler.npu_compilers import NpuCompiler
from .compiler.npu_messages import Refusal
from .compiler.npu_offline import DEFAULT_TIMEOUT_S, PATIENCE, OfflineOrder, OfflineResult, compile_offline
from .compiler.npu_platforms import Platform, check_tiles
from .peaks import Theory, compare_with, published_peak
from .progress import Progress, log_progress
from .quantize.scope import is_quantized
from .timing import milliseconds

if TYPE_CHECKING:
    import openvino as ov

MOST_LAYERS, MOST_TYPES = 10, 12
NAME_LENGTH = 80
CAUTION = (
    "The times are an estimate by Intel's cost model, part of the compiler: good for comparing two models on one "
    "platform, not a promise."
)


@dataclass(frozen=True)
class Preflight:
    """One model on one platform. Either `result` or `refusal` is there.

    precision: "int8" for a quantized model, else "fp16", the NPU's own. theory: the estimate beside the least time that
    the arrays and the memory need; None where nothing is published of the platform.
    """

    model: str
    platform: Platform
    precision: str
    compiler: str
    result: OfflineResult | None
    refusal: Refusal | None
    theory: Theory | None

    @property
    def compiles(self) -> bool:
        return self.result is not None

    def as_json(self) -> dict:
        data = {
            "model": self.model,
            "platform": self.platform.number,
            "products": self.platform.products,
            "precision": self.precision,
            "compiles": self.compiles,
            "compiler": self.compiler,
            "refusal": self.refusal.as_json() if self.refusal else None,
            "theory": self.theory.as_json() if self.theory else None,
        }
        if self.result is None:
            return data
        result = {k: v for k, v in asdict(self.result).items() if k not in ("trace", "schedule")}
        return {**data, **result, "compiler": self.compiler, "schedule": self.result.schedule.as_json()}

    def text(self) -> str:
        if self.result is None:
            said = (self.refusal.said.splitlines() if self.refusal else [])[:6]
            return "\n".join([f"{self.platform}: does not compile. {self.refusal}", *(f"  | {line}" for line in said)])
        lines = [self._headline(self.result), *self._engines(self.result), *self._tables(self.result)]
        lines += [f"  the compiler warns: {text}" for text in self.result.warnings]
        return "\n".join(lines)

    def _headline(self, result: OfflineResult) -> str:
        schedule = result.schedule
        origin = ", found in the cache" if result.is_cached else ""
        ended = "" if result.is_complete else "; ended after the schedule, before the program was written"
        cost = f"{result.seconds:.1f} s with {result.peak_bytes / 1e6:.0f} MB"
        return (
            f"{self.platform}, {result.tiles} tile{'s' * (result.tiles != 1)}, {self.precision}: compiles; about "
            f"{milliseconds(schedule.latency_s)} an inference at {schedule.frequency_hz / 1e6:.0f} MHz\n"
            f"  compiled in {cost} by {self.compiler}{origin}{ended}"
        )

    def _engines(self, result: OfflineResult) -> list[str]:
        schedule = result.schedule
        busy = ", ".join(f"{engine} {schedule.share(engine):.0%}" for engine in schedule.busy_s)
        both = ", ".join(f"{pair} {time / schedule.latency_s:.0%}" for pair, time in schedule.overlap_s.items())
        lines = [
            f"  engines at work: {busy}; at the same time: {both}; idle {schedule.idle_s / schedule.latency_s:.0%}"
        ]
        if self.theory:
            lines.append(f"  {_ideal(self.theory)}")
        return lines

    def _tables(self, result: OfflineResult) -> list[str]:
        schedule = result.schedule
        lines = ["  By engine and type of layer (time, share of the inference, layers):"]
        for one in schedule.types[:MOST_TYPES]:
            share = f"{milliseconds(one.seconds):>11}{one.seconds / schedule.latency_s:>7.1%}{one.layers:>6}"
            lines.append(f"  {share}  {one.engine:<6} {one.type}")
        lines.append(f"  The {MOST_LAYERS} layers that take longest (time, share, engine):")
        for layer in schedule.layers[:MOST_LAYERS]:
            share = f"{milliseconds(layer.seconds):>11}{layer.seconds / schedule.latency_s:>7.1%}"
            lines.append(f"  {share}  {layer.engine:<6} {layer.type} {_short(layer.name)}")
        return lines


def preflight(
    model: ov.Model,
    platform: Platform,
    compiler: NpuCompiler,
    cache: CompileCache,
    *,
    tiles: int = 0,
    files: Sequence[Path] = (),
    parameters: str = "",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    patience: float = PATIENCE,
    progress: Progress = log_progress,
) -> Preflight:
    """Compile `model`, whose shapes are static, for `platform` and read what the compiler plans.

    tiles: to compile for; 0: all of the platform's. files, parameters, timeout_s, patience: see `OfflineOrder` and
    `compile_offline`. A model that is refused is a result, not an error.
    """
    wanted = check_tiles(platform, tiles)
    order = OfflineOrder(model, platform, wanted, tuple(files), parameters)
    outcome = compile_offline(order, compiler, cache, progress, timeout_s, patience)
    # weights that alone are stored in few bits are widened before the arithmetic
    precision = "int8" if is_quantized(model).startswith("FakeQuantize") else "fp16"
    made = outcome if isinstance(outcome, OfflineResult) else None
    return Preflight(
        model=model.get_friendly_name(),
        platform=platform,
        precision=precision,
        compiler=f"Intel's NPU compiler {made.compiler}, {compiler}" if made else str(compiler),
        result=made,
        refusal=outcome if isinstance(outcome, Refusal) else None,
        theory=_theory(model, platform, precision, made) if made else None,
    )


def write_trace(result: OfflineResult, file: Path) -> None:
    """The schedule as a Chrome trace, which ui.perfetto.dev opens; gzipped if the name ends in .gz."""
    file.write_bytes(result.trace if file.suffix == ".gz" else gzip.decompress(result.trace))


def _theory(model: ov.Model, platform: Platform, precision: str, result: OfflineResult) -> Theory | None:
    peak = published_peak("NPU", platform.number, precision)
    if peak is None:
        return None
    if result.tiles != platform.tiles:
        part = result.tiles / platform.tiles
        name = f"{result.tiles} of the {platform.tiles} tiles of {peak.name}"
        peak = replace(peak, name=name, macs_per_second=part * peak.macs_per_second)
    return compare_with(peak, model, result.schedule.latency_s)


def _short(name: str) -> str:
    """The end of a name tells more than its beginning."""
    return name if len(name) <= NAME_LENGTH else f"...{name[3 - NAME_LENGTH :]}"


def _ideal(theory: Theory) -> str:
    limit = "memory" if theory.is_bound_by_memory else "arithmetic"
    return (
        f"ideal: {theory.macs / 1e9:.3g} GMAC and at least {theory.least_bytes / 1e6:.3g} MB need "
        f"{milliseconds(theory.ideal_s)} ({limit} is the limit); the estimate is "
        f"{theory.measured_s / theory.ideal_s:.1f} times that; {theory.peak.name}, "
        f"{2 * theory.peak.macs_per_second / 1e12:.3g} TOPS, {theory.peak.bytes_per_second / 1e9:.3g} GB/s"
    )
