"""Content-addressed cache of IR, compiled blobs and what was measured, shared by processes and kept across runs.

Layout below the root: `<kind>/<key>/` holds an entry's files and `manifest.json`; `tmp/` what is being written;
`locks/` one file for each entry being made or removed, `leases/` one for each process that uses an entry.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("ovnpu")

MANIFEST = "manifest.json"
KINDS = ("ir", "blob", "trial", "preflight")
DEFAULT_LIMIT_GB = 20.0
STALE_S = 24 * 3600
"""Age in seconds after which an unfinished write is the remains of a process that died."""


@dataclass(frozen=True)
class CacheMiss:
    """Why an entry could not be used: what differs from the most similar one there is."""

    what: str
    before: str = ""
    now: str = ""

    def __str__(self) -> str:
        return f"{self.what} changed: {self.before} -> {self.now}" if self.before else self.what


@dataclass(frozen=True)
class Entry:
    """A complete, verified entry; `lease` keeps it from eviction for as long as this object lives."""

    path: Path
    manifest: dict
    lease: object | None = None
    last_use: float = 0.0
    """Seconds since the epoch; known of listed entries only."""


def default_root() -> Path:
    """OVNPU_CACHE_DIR, else the user's cache folder."""
    import platformdirs

    configured = os.environ.get("OVNPU_CACHE_DIR", "")
    return Path(configured) if configured else platformdirs.user_cache_path("ovnpu", appauthor=False)


def default_limit_bytes() -> int:
    """OVNPU_CACHE_LIMIT_GB (10^9 bytes), else DEFAULT_LIMIT_GB."""
    configured = os.environ.get("OVNPU_CACHE_LIMIT_GB", "")
    try:
        limit = int(float(configured or DEFAULT_LIMIT_GB) * 1e9)
    except (ValueError, OverflowError):  # OverflowError: "inf"
        limit = -1
    if limit < 0:
        log.warning("OVNPU_CACHE_LIMIT_GB=%r is not a size in GB; using %s GB.", configured, DEFAULT_LIMIT_GB)
        limit = int(DEFAULT_LIMIT_GB * 1e9)
    return limit


def entry_key(identity: Mapping[str, str]) -> str:
    """The name of the entry that holds what `identity` describes."""
    text = json.dumps(dict(identity), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class CompileCache:
    """Entries below `root`, at most `limit_bytes` of them; the least recently used go first."""

    def __init__(self, root: Path, limit_bytes: int):
        self.root, self.limit_bytes = root, limit_bytes

    def find(self, kind: str, identity: Mapping[str, str]) -> Entry | CacheMiss:
        """The entry for `identity`, verified, or why there is none. A damaged entry is removed."""
        path = self._path(kind, identity)
        if not path.exists():
            return self._explain(kind, identity)
        # before anything is read: from here on no other process evicts it
        lease = self._take_lease(path)
        try:
            manifest = _read_manifest(path)
            damage = _damage(path, manifest)
        except (OSError, ValueError) as error:
            manifest, damage = {}, f"{MANIFEST}: {getattr(error, 'strerror', None) or error}"
        if damage:
            del lease
            log.warning("The cached %s of the %s is damaged (%s); made again.", kind, identity["submodel"], damage)
            self.discard(path)
            return CacheMiss(f"corrupt: {damage}")
        with contextlib.suppress(OSError):
            os.utime(path / MANIFEST)
        return Entry(path, manifest, lease)

    def store(
        self, kind: str, identity: Mapping[str, str], write: Callable[[Path], None], why: str, seconds: float
    ) -> Entry:
        """Let `write(folder)` make the entry's files and put them in place at once; raises OSError when it cannot.

        why: the miss that made this necessary; seconds: what making it cost. Both are kept in the manifest.
        """
        path, temporary = self._path(kind, identity), self.root / "tmp" / uuid.uuid4().hex
        temporary.mkdir(parents=True)
        try:
            write(temporary)
            sizes = {f.name: f.stat().st_size for f in temporary.iterdir()}
            files = {name: {"bytes": size, "sha256": file_hash(temporary / name)} for name, size in sizes.items()}
            manifest = {
                "schema": 1,
                "kind": kind,
                "identity": dict(identity),
                "files": files,
                "bytes": sum(sizes.values()),
                "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "why": why,
                "seconds": round(seconds, 3),
            }
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self.discard(path)
            lease = self._take_lease(path)
            temporary.replace(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self.evict()
        return Entry(path, manifest, lease)

    @contextlib.contextmanager
    def making(self, kind: str, identity: Mapping[str, str], waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the right to make an entry, so that two processes do not do the same work.

        waiting: called about twice a second while another process has it. Without a writable root there is
        nothing to share, and no lock.
        """
        import filelock

        lock = None
        try:
            lock = filelock.FileLock(self._lock_path(self._path(kind, identity)))
            while not lock.is_locked:
                try:
                    lock.acquire(timeout=0.5)
                except filelock.Timeout:
                    waiting()
        except OSError as error:
            log.debug("No lock in %s: %s", self.root, error)
        try:
            yield
        finally:
            if lock is not None and lock.is_locked:
                lock.release()

    def discard(self, path: Path) -> bool:
        """Remove one entry: out of sight at once, then from disk. False if something holds it open."""
        grave = self.root / "tmp" / uuid.uuid4().hex
        try:
            grave.parent.mkdir(parents=True, exist_ok=True)
            path.replace(grave)
        except OSError as error:
            log.warning("Could not remove the cache entry %s: %s", path, error)
            return False
        shutil.rmtree(grave, ignore_errors=True)
        return True

    def entries(self) -> list[Entry]:
        """Every entry, least recently used first, not verified."""
        found = []
        for manifest in (m for kind in KINDS for m in (self.root / kind).glob(f"*/{MANIFEST}")):
            # another process may remove it meanwhile, or it may be damaged: then it is not an entry
            with contextlib.suppress(OSError, ValueError):
                last_use = manifest.stat().st_mtime
                found.append(Entry(manifest.parent, _read_manifest(manifest.parent), last_use=last_use))
        return sorted(found, key=lambda entry: entry.last_use)

    def evict(self) -> list[Entry]:
        """Remove least recently used entries until the limit holds; entries in use stay. Returns what went."""
        self._clear_remains()
        entries, gone = self.entries(), []
        total = sum(entry.manifest["bytes"] for entry in entries)
        for entry in entries:
            if total <= self.limit_bytes:
                break
            if not self._is_in_use(entry.path) and self.discard(entry.path):
                total -= entry.manifest["bytes"]
                gone.append(entry)
                identity = entry.manifest["identity"]
                log.info(
                    "Cache over its limit: removed the %s of the %s.", entry.path.parent.name, identity["submodel"]
                )
        return gone

    def _path(self, kind: str, identity: Mapping[str, str]) -> Path:
        return self.root / kind / entry_key(identity)

    def _lock_path(self, path: Path) -> Path:
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{path.parent.name}-{path.name}.lock"

    def _take_lease(self, path: Path):
        """A locked file that says "in use"; the operating system unlocks it when this process ends, however."""
        import filelock

        try:
            folder = self.root / "leases"
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"{path.parent.name}-{path.name}.{uuid.uuid4().hex}.lock"
            # not thread-local: whichever thread drops the last reference must release it
            lease = filelock.FileLock(file, thread_local=False)
            lease.acquire(timeout=0)
        except (OSError, filelock.Timeout) as error:
            log.debug("No lease in %s: %s", self.root, error)
            return None
        return lease

    def _is_in_use(self, path: Path) -> bool:
        return self._clear_leases(f"{path.parent.name}-{path.name}.*.lock") > 0

    def _clear_leases(self, pattern: str) -> int:
        """Remove the leases of processes that ended; the number of those that are held."""
        import filelock

        held = 0
        for file in (self.root / "leases").glob(pattern):
            try:
                with filelock.FileLock(file).acquire(timeout=0):
                    pass
            except (OSError, filelock.Timeout):
                held += 1
                continue
            with contextlib.suppress(OSError):
                file.unlink()
        return held

    def _clear_remains(self) -> None:
        """Remove what processes left behind that ended or were killed."""
        self._clear_leases("*.lock")
        for folder in (self.root / "tmp").glob("*"):
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime > STALE_S:
                    shutil.rmtree(folder, ignore_errors=True)

    def _explain(self, kind: str, identity: Mapping[str, str]) -> CacheMiss:
        """Compare with the most similar entry of the same submodel and model: what differs is the reason."""
        similar = []
        for entry in self.entries():
            other = entry.manifest["identity"]
            if entry.manifest["kind"] == kind and all(other.get(n) == identity[n] for n in ("submodel", "model")):
                differing = [n for n in identity if other.get(n, "") != identity[n]]
                similar.append((len(differing), -entry.last_use, differing, other))
        if not similar:
            return CacheMiss("new")
        _, _, names, other = min(similar, key=lambda s: s[:2])
        if not names:
            return CacheMiss("new")
        if "weights" in names:
            return CacheMiss("weights", other["weights"][:8], identity["weights"][:8])
        return CacheMiss(names[0], other.get(names[0]) or "nothing", identity[names[0]] or "nothing")


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> dict:
    """The manifest of the entry at `path`; ValueError if it is not one."""
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or not manifest.keys() >= {"kind", "identity", "files", "bytes"}:
        raise ValueError("not the manifest of an entry")
    return manifest


def _damage(path: Path, manifest: dict) -> str:
    """What is wrong with an entry's files, or ""."""
    try:
        for name, expected in manifest["files"].items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes instead of {expected['bytes']}"
            if file_hash(path / name) != expected["sha256"]:
                return f"{name} has other contents than were written"
    except (OSError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
