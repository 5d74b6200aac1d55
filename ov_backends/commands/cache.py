"""Show, shrink or empty the cache of converted, quantized and compiled models."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from ..compiler.cache import CompileCache, Entry, default_limit_bytes, default_root
from ..errors import UseError
from .options import FELL_SHORT, Output, megabytes

if TYPE_CHECKING:
    from ..progress import Progress

HELP = "list, remove or clear what is kept on disk"
EXAMPLE = "cache list"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=_ACTIONS,
        metavar="ACTION",
        help="list: every entry and why it was made; size: how much it holds; remove: one entry; clear: all of them",
    )
    parser.add_argument("key", nargs="?", default="", metavar="KEY", help="an entry's key, or the start of it")
    parser.add_argument("--yes", action="store_true", help="clear: do it; without this nothing is removed")


def run(options: argparse.Namespace, progress: Progress) -> Output:
    return _ACTIONS[options.action](CompileCache(default_root(), default_limit_bytes()), options)


def _list(cache: CompileCache, options: argparse.Namespace) -> Output:
    rows = [_row(entry) for entry in reversed(cache.entries())]
    lines = [f"{cache.root}: {len(rows)} entries, the last used first"]
    for row in rows:
        size = megabytes(row["bytes"])
        lines.append(f"{row['key'][:12]}  {row['kind']:<5}{size:>12}  {row['last_use']}  {row['what']}")
        lines.append(f"{'':14}made because: {row['why']}, in {row['seconds']:.1f} s")
    return Output("\n".join(lines), {"root": str(cache.root), "entries": rows})


def _size(cache: CompileCache, options: argparse.Namespace) -> Output:
    entries = cache.entries()
    held = sum(entry.manifest["bytes"] for entry in entries)
    text = f"{cache.root}: {megabytes(held)} in {len(entries)} entries; the limit is {megabytes(cache.limit_bytes)}"
    data = {"root": str(cache.root), "bytes": held, "entries": len(entries), "limit_bytes": cache.limit_bytes}
    return Output(text, data)


def _remove(cache: CompileCache, options: argparse.Namespace) -> Output:
    if not options.key:
        raise UseError("Which entry? 'cache list' shows the keys: cache remove KEY")
    found = [entry for entry in cache.entries() if entry.path.name.startswith(options.key)]
    if len(found) != 1:
        raise UseError(
            f"{len(found)} entries of {cache.root} have a key that begins with '{options.key}'; one is needed. "
            "'cache list' shows the keys."
        )
    return _removed(cache, found)


def _clear(cache: CompileCache, options: argparse.Namespace) -> Output:
    entries = cache.entries()
    if not options.yes:
        raise UseError(f"This would remove all {len(entries)} entries of {cache.root}; if you mean it, add --yes.")
    return _removed(cache, entries)


def _removed(cache: CompileCache, entries: list[Entry]) -> Output:
    gone = [entry for entry in entries if cache.discard(entry.path)]
    freed = sum(entry.manifest["bytes"] for entry in gone)
    text = f"Removed {len(gone)} of {len(entries)} entries, {megabytes(freed)}"
    if len(gone) < len(entries):
        text += "; the others are held open by another program"
    data = {"removed": [entry.path.name for entry in gone], "bytes": freed}
    return Output(text, data, FELL_SHORT if len(gone) < len(entries) else 0)


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


_ACTIONS = {"list": _list, "size": _size, "remove": _remove, "clear": _clear}
