"""What rewrites of a model gain on an NPU, by the estimate of Intel's own compiler, without an NPU.

    python benchmarks/npu/estimate.py model.xml --shape sample=[1,4,64,64] --rewrites split-geglu,fold-scales
    python benchmarks/npu/estimate.py model.xml --block 'input_blocks\\.1\\.1[./]' ...     one block: seconds

Needs a compiler: python -m ov_backends preflight --setup. Estimates do not depend on what else the machine does; they
are kept in the pack's cache folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

PACK = Path(__file__).parents[2]
sys.path.insert(0, str(PACK))

import openvino as ov  # noqa: E402
from blocks import cut_block, make_static  # noqa: E402

from ov_backends.commands.options import add_shape  # noqa: E402
from ov_backends.compiler.cache import CompileCache, default_limit_bytes, default_root  # noqa: E402
from ov_backends.compiler.npu_compilers import require_compiler  # noqa: E402
from ov_backends.compiler.npu_platforms import DEFAULT, Platform, find_platforms  # noqa: E402
from ov_backends.compiler.npu_trace import Schedule  # noqa: E402
from ov_backends.errors import OVNPUError  # noqa: E402
from ov_backends.graph.rewrite import REWRITES, ExactRewrite, rewrite  # noqa: E402
from ov_backends.preflight import preflight  # noqa: E402
from ov_backends.tensors import parse_shapes  # noqa: E402

TYPES = 12


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        _compare(options)
    except (OVNPUError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _compare(options: argparse.Namespace) -> None:
    model = make_static(ov.Core().read_model(options.model), parse_shapes(" ".join(options.shape)))
    if options.block:
        model = cut_block(model, options.block)
    names = [name for name in options.rewrites.split(",") if name]
    changed = rewrite(model, names)
    for platform in find_platforms(options.platform):
        before = None if options.only_after else _show("before", model, platform, options)
        if not names:
            continue
        after = _show(f"after {places(changed.places)}", changed.model, platform, options)
        if before and after:
            print(f"{after.latency_s / before.latency_s - 1:+.1%}")


def places(counts: dict[str, int]) -> str:
    """Which rewrites were applied, at how many places."""
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def _show(title: str, model: ov.Model, platform: Platform, options: argparse.Namespace) -> Schedule | None:
    cache = CompileCache(default_root(), default_limit_bytes())
    found = preflight(
        model,
        platform,
        require_compiler(),
        cache,
        tiles=options.tiles,
        parameters=options.parameters,
        patience=0,
        progress=lambda text: None,
    )
    if found.result is None:
        print(f"{platform}, {title}: does not compile. {found.refusal}")
        return None
    schedule = found.result.schedule
    engines = ", ".join(f"{engine} {1e3 * busy:.2f}" for engine, busy in schedule.busy_s.items())
    print(f"{platform}, {found.result.tiles} tiles, {title}: {1e3 * schedule.latency_s:.3f} ms; busy: {engines}")
    for one in schedule.types[:TYPES]:
        print(f"  {1e3 * one.seconds:9.3f} ms  {one.layers:4d}  {one.engine:<6} {one.type}")
    return schedule


def _parser() -> argparse.ArgumentParser:
    exact = [name for name, one in REWRITES.items() if isinstance(one, ExactRewrite)]
    nearly = [name for name in REWRITES if name not in exact]
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        epilog=f"exact: {', '.join(exact)}; approximate: {', '.join(nearly)}",
    )
    parser.add_argument("model", type=Path, help="IR, float or quantized")
    add_shape(parser)
    parser.add_argument("--block", default="", metavar="REGEX", help="only the operators whose name matches")
    parser.add_argument("--rewrites", default="", metavar="A,B", help="applied in this order; without: the model alone")
    parser.add_argument("--platform", default=DEFAULT, help=f"default {DEFAULT}; several after commas, or all")
    parser.add_argument("--tiles", type=int, default=0, metavar="N", help="compute tiles; default: all of the platform")
    parser.add_argument("--parameters", default="", help="of the compiler's own, as in NPU_COMPILATION_MODE_PARAMS")
    parser.add_argument("--only-after", action="store_true", help="leave out the estimate without rewrites")
    return parser


if __name__ == "__main__":
    sys.exit(main())
