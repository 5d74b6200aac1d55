"""Show, shrink or empty what is kept on disk: converted, quantized and compiled models, and calibration sets."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..compiler.cache import CompileCache, Entry, default_limit_bytes, default_root
from ..errors import UseError
from ..quantize.calibration_sets import RecordedSet, recorded_sets
from .options import FELL_SHORT, Output, megabytes

if TYPE_CHECKING:
    from ..progress import Progress

NAMED, ABOUT = 3, 60
"""Runs named in the list, and letters of each."""

HELP = "list, remove or clear what is kept on disk"
EXAMPLE = "cache list"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=_ACTIONS,
        metavar="ACTION",
        help="list: every entry and why it was made, every calibration set; size: how much they hold; remove: one of "
        "them; clear: all entries",
    )
    parser.add_argument("key", nargs="?", default="", metavar="KEY", help="of an entry or a set, or the start of it")
    parser.add_argument(
        "--calibration", action="store_true", help="clear: the calibration sets too; they must then be recorded again"
    )
    parser.add_argument("--yes", action="store_true", help="clear: do it; without this nothing is removed")


def run(options: argparse.Namespace, progress: Progress) -> Output:
    return _ACTIONS[options.action](CompileCache(default_root(), default_limit_bytes()), options)


def _list(cache: CompileCache, options: argparse.Namespace) -> Output:
    rows = [_row(entry) for entry in reversed(cache.entries())]
    sets = [_set_row(found) for found in recorded_sets(cache.root)]
    lines = [f"{cache.root}: {len(rows)} entries, the last used first"]
    for row in rows:
        size = megabytes(row["bytes"])
        lines.append(f"{row['key'][:12]}  {row['kind']:<5}{size:>12}  {row['last_use']}  {row['what']}")
        lines.append(f"{'':14}made because: {row['why']}, in {row['seconds']:.1f} s")
    lines.append(f"{len(sets)} calibration sets, the last recorded first")
    for row in sets:
        size = megabytes(row["bytes"])
        lines.append(f"{row['key'][:12]}  {'calib':<5}{size:>12}  {row['last_made']}  {row['what']}")
        lines.append(f"{'':14}{row['samples']} calls of {len(row['runs'])} runs: {_named(row['runs'])}")
    return Output("\n".join(lines), {"root": str(cache.root), "entries": rows, "calibration": sets})


def _size(cache: CompileCache, options: argparse.Namespace) -> Output:
    entries, sets = cache.entries(), recorded_sets(cache.root)
    held = sum(entry.manifest["bytes"] for entry in entries)
    recorded = sum(found.size_bytes for found in sets)
    text = (
        f"{cache.root}: {megabytes(held)} in {len(entries)} entries; the limit is {megabytes(cache.limit_bytes)}. "
        f"Beside them {megabytes(recorded)} in {len(sets)} calibration sets, which have no limit"
    )
    data = {"root": str(cache.root), "bytes": held, "entries": len(entries), "limit_bytes": cache.limit_bytes}
    return Output(text, {**data, "calibration_bytes": recorded, "calibration_sets": len(sets)})


def _remove(cache: CompileCache, options: argparse.Namespace) -> Output:
    if not options.key:
        raise UseError("Which entry? 'cache list' shows the keys: cache remove KEY")
    sizes = {path: size for path, size in _all(cache).items() if path.name.startswith(options.key)}
    if len(sizes) != 1:
        raise UseError(
            f"{len(sizes)} entries of {cache.root} have a key that begins with '{options.key}'; one is needed. "
            "'cache list' shows the keys."
        )
    return _removed(cache, sizes)


def _clear(cache: CompileCache, options: argparse.Namespace) -> Output:
    sizes = _all(cache) if options.calibration else _entries(cache)
    if not options.yes:
        sets = ", calibration sets among them," if options.calibration else ""
        raise UseError(f"This would remove all {len(sizes)} entries{sets} of {cache.root}; if you mean it, add --yes.")
    return _removed(cache, sizes)


def _entries(cache: CompileCache) -> dict[Path, int]:
    """Folder and bytes of each."""
    return {entry.path: entry.manifest["bytes"] for entry in cache.entries()}


def _all(cache: CompileCache) -> dict[Path, int]:
    return _entries(cache) | {found.path: found.size_bytes for found in recorded_sets(cache.root)}


def _removed(cache: CompileCache, sizes: dict[Path, int]) -> Output:
    gone = [path for path in sizes if cache.discard(path)]
    freed = sum(sizes[path] for path in gone)
    text = f"Removed {len(gone)} of {len(sizes)} entries, {megabytes(freed)}"
    if len(gone) < len(sizes):
        text += "; the others are held open by another program"
    data = {"removed": [path.name for path in gone], "bytes": freed}
    return Output(text, data, FELL_SHORT if len(gone) < len(sizes) else 0)


def _row(entry: Entry) -> dict:
    """One entry for the list; manifests of older versions may lack what is only told, not used."""
    identity = entry.manifest["identity"]
    told = [identity.get(name, "") for name in ("submodel", "model", "device", "precision", "shape")]
    return {
        "key": entry.path.name,
        "kind": entry.manifest["kind"],
        "bytes": entry.manifest["bytes"],
        "what": " ".join(text for text in told if text),
        "why": entry.manifest.get("why", "") or "new",
        "seconds": entry.manifest.get("seconds", 0.0),
        "last_use": time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_use)),
        "identity": identity,
    }


def _set_row(found: RecordedSet) -> dict:
    told = [found.identity.get(name, "") for name in ("submodel", "model")]
    return {
        "key": found.path.name,
        "bytes": found.size_bytes,
        "what": " ".join(text for text in told if text) or "of an unknown model: its manifest is missing or damaged",
        "samples": found.samples,
        "last_made": found.last_made[:16].replace("T", " "),
        "identity": found.identity,
        "runs": found.runs,
    }


def _named(runs: list[dict[str, str]]) -> str:
    """What the last runs were about; a prompt may be long."""
    abouts = [run.get("about", "") or "not said" for run in reversed(runs)]
    short = [about if len(about) <= ABOUT else about[: ABOUT - 3] + "..." for about in abouts[:NAMED]]
    return "; ".join([*short, *(["..."] if len(abouts) > NAMED else [])])


_ACTIONS = {"list": _list, "size": _size, "remove": _remove, "clear": _clear}
