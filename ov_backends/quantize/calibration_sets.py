"""The calibration sets on disk, for who looks after them: what was recorded of which model, when, and how large."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .calibration import FOLDER, MANIFEST


@dataclass(frozen=True)
class RecordedSet:
    """One model's set. identity: submodel, model, weights; runs: about, made and samples of each, oldest first.

    Both are empty where the manifest is damaged; the set is then of no use to anyone who cannot name its model.
    """

    path: Path
    identity: dict[str, str]
    runs: list[dict[str, str]]
    size_bytes: int

    @property
    def samples(self) -> int:
        return sum(int(run.get("samples") or 0) for run in self.runs)

    @property
    def last_made(self) -> str:
        return self.runs[-1].get("made", "") if self.runs else ""


def recorded_sets(root: Path) -> list[RecordedSet]:
    """Every set below the cache folder `root`, the last one recorded to first."""
    folders = [folder for folder in (root / FOLDER).glob("*") if folder.is_dir()]
    return sorted(map(_read, folders), key=lambda found: found.last_made, reverse=True)


def _read(folder: Path) -> RecordedSet:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        identity, runs = dict(manifest["identity"]), list(manifest["runs"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        identity, runs = {}, []
    size = sum(file.stat().st_size for file in folder.glob("*") if file.is_file())
    return RecordedSet(folder, identity, sorted(runs, key=lambda run: run.get("made", "")), size)
