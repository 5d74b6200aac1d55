"""Compile a model for an NPU that is not here: does it fit, how long would it take, which engine runs which layer.

Uses Intel's own compiler. Where OpenVINO brings none (Linux), `preflight --setup` gets it once: a download of 85 MB,
0.9 GB in the cache folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..compiler.cache import CompileCache, default_limit_bytes, default_root
from ..compiler.npu_compilers import HOW_TO_GET_ONE, NpuCompiler, find_compiler, require_compiler
from ..compiler.npu_offline import DEFAULT_TIMEOUT_S
from ..compiler.npu_operators import write_table
from ..compiler.npu_platforms import ALL, DEFAULT, Platform, check_tiles, find_platforms
from ..compiler.npu_setup import set_up
from ..errors import UseError
from ..graph.npu_support import DATA, operator_support, predict
from ..preflight import CAUTION, Preflight, preflight, write_trace
from ..runtime.model_file import model_files
from .options import DONE, FELL_SHORT, Output, add_model, add_shape, open_model

if TYPE_CHECKING:
    import openvino as ov

    from ..progress import Progress

HELP = "compile for an NPU that is not here: speed, engines, what does not fit"
EXAMPLE = "preflight model.onnx --platform 'Lunar Lake' --shape bytes=[1,2048]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, nargs="?", default="")
    add_shape(parser)
    parser.add_argument(
        "--platform",
        default="",
        metavar="P",
        help="3720, 4000, 5010, 5020, 6010, or a product: 'Meteor Lake', 'Lunar Lake', 'Panther Lake'; several after "
        f"commas, or all; default {DEFAULT}",
    )
    parser.add_argument("--tiles", type=int, default=0, metavar="N", help="compute tiles; default: all of the platform")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the schedule, for ui.perfetto.dev (.json, .gz)"
    )
    parser.add_argument(
        "--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="S", help="seconds for one platform; default 1800"
    )
    parser.add_argument("--setup", action="store_true", help="get the compiler, if there is none, and stop")
    parser.add_argument(
        "--operators",
        nargs="?",
        type=Path,
        const=DATA,
        metavar="FILE",
        help="compile every operator by itself and write the table of what each platform takes; minutes",
    )


def run(options: argparse.Namespace, progress: Progress) -> Output:
    if options.setup:
        return _set_up(progress)
    if options.operators:
        return _operators(options, progress)
    if not options.model:
        raise UseError("Which model? preflight MODEL; or --setup to get the compiler.")
    platforms = find_platforms(options.platform or DEFAULT)
    for platform in platforms:
        check_tiles(platform, options.tiles)
    model = open_model(options.model, options.shape, progress, "NPU")
    compiler = find_compiler()
    if compiler is None:
        return _predicted(model, platforms)
    results = [_one(model, platform, compiler, options, progress) for platform in platforms]
    text = "\n\n".join([one.text() for one in results] + ([CAUTION] if any(one.compiles for one in results) else []))
    code = DONE if all(one.compiles for one in results) else FELL_SHORT
    return Output(text, {"model": options.model, "results": [one.as_json() for one in results]}, code)


def _set_up(progress: Progress) -> Output:
    found = find_compiler()
    if found is None or found.kind == "wine":
        set_up(progress)
        found = require_compiler()
    return Output(
        f"The NPU compiler is ready: {found} ({found.where})", {"kind": found.kind, "where": str(found.where)}
    )


def _operators(options: argparse.Namespace, progress: Progress) -> Output:
    platforms = find_platforms(options.platform) if options.platform else ALL
    cache = CompileCache(default_root(), default_limit_bytes())
    counts = write_table(options.operators, platforms, require_compiler(), cache, progress)
    lines = [f"NPU {number}: {taken} of {tried} are taken" for number, (taken, tried) in counts.items()]
    return Output("\n".join([*lines, f"Written to {options.operators}"]), {"platforms": counts})


def _one(
    model: ov.Model, platform: Platform, compiler: NpuCompiler, options: argparse.Namespace, progress: Progress
) -> Preflight:
    path = Path(options.model)
    one = preflight(
        model,
        platform,
        compiler,
        CompileCache(default_root(), default_limit_bytes()),
        tiles=options.tiles,
        files=model_files(path) if path.exists() else (),
        timeout_s=options.timeout,
        progress=progress,
    )
    if options.trace and one.result:
        write_trace(one.result, _trace_file(options.trace, platform, options.platform))
    return one


def _trace_file(file: Path, platform: Platform, asked: str) -> Path:
    """Of several platforms each has a file of its own."""
    if len(find_platforms(asked or DEFAULT)) == 1:
        return file
    endings = "".join(file.suffixes[-2:]) if file.suffix == ".gz" else file.suffix
    return file.with_name(f"{file.name.removesuffix(endings)}-{platform.number}{endings}")


def _predicted(model: ov.Model, platforms: Sequence[Platform]) -> Output:
    """Without a compiler: how to get one, and what the table of operators says."""
    advice = f"There is no NPU compiler here yet. Get Intel's own, which needs no NPU, with: {HOW_TO_GET_ONE}"
    tables = [table for platform in platforms if (table := operator_support(platform.number))]
    predictions = [predict(model, table) for table in tables]
    text = "\n".join([advice, *(prediction.text() for prediction in predictions)])
    return Output(text, {"advice": advice, "predictions": [one.as_json() for one in predictions]}, FELL_SHORT)
