"""torch weights -> IR on disk, by way of the cache."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .. import devices
from ..convert.trace import CONVERSION_VERSION
from ..plan import TITLES
from ..progress import Progress, with_heartbeat
from .cache import CompileCache, Entry

if TYPE_CHECKING:
    import openvino as ov
    import torch

log = logging.getLogger("ovnpu")

XML, BIN = "model.xml", "model.bin"


@dataclass(frozen=True)
class Source:
    """Where a submodel's IR comes from.

    weights: hash of all tensors as they are now, LoRA included; architecture: what else shapes the graph;
    convert: makes the dynamic IR, called only when the cache has none; compress_to_fp16: how its weights are kept.
    """

    submodel: str
    weights: str
    architecture: str
    convert: Callable[[], ov.Model]
    compress_to_fp16: bool = True

    @property
    def identity(self) -> dict[str, str]:
        return {
            "submodel": self.submodel,
            # not "architecture": that is the device's, and a blob's identity holds both
            "model": self.architecture,
            "weights": self.weights,
            "conversion": CONVERSION_VERSION,
        }


@dataclass(frozen=True)
class WeightsFile:
    """The weights of an IR on disk; digest: of its bytes."""

    path: Path
    digest: str


@dataclass(frozen=True)
class IR:
    """An IR, mostly dynamic and FP16; `read` gives a fresh model each time, which may be reshaped."""

    identity: Mapping[str, str]
    read: Callable[[], ov.Model]
    reason: str
    convert_s: float
    entry: Entry | None = None

    @property
    def is_readable(self) -> bool:
        """False once someone has emptied the cache folder."""
        return self.entry is None or (self.entry.path / XML).exists()

    @property
    def weights(self) -> WeightsFile | None:
        """What a compiled blob may refer to instead of holding a copy; None if the IR was not kept."""
        if self.entry is None or BIN not in self.entry.manifest["files"]:
            return None
        return WeightsFile(self.entry.path / BIN, self.entry.manifest["files"][BIN]["sha256"])


def hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """A hash of names, dtypes, shapes and values; as fast as the cores allow (SHA-256, one tensor a thread).

    CPUs have instructions for SHA-256 (every one with an NPU does); with them it takes half the time of BLAKE2b.
    """
    import torch

    def one(item: tuple[str, torch.Tensor]) -> bytes:
        name, tensor = item
        digest = hashlib.sha256(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # as bytes: numpy has no bfloat16
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.digest()

    with ThreadPoolExecutor() as pool:
        digests = pool.map(one, sorted(tensors.items()))
        return hashlib.sha256(b"".join(digests)).hexdigest()[:32]


def short_hash(text: str) -> str:
    """16 hex digits that stand for `text` in an identity."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_or_convert(source: Source, cache: CompileCache, progress: Progress) -> IR:
    """The IR of `source` from the cache, or converted and kept there."""
    title = TITLES[source.submodel]
    identity = source.identity
    with cache.making("ir", identity, lambda: progress(f"Waiting for another process to convert the {title}")):
        found = cache.find("ir", identity)
        if isinstance(found, Entry):
            return _from_entry(found, "", 0.0)
        started = time.monotonic()
        model = with_heartbeat(source.convert, f"Converting the {title} to OpenVINO, once for these weights", progress)
        seconds = time.monotonic() - started
        try:
            write = partial(_save, model, source.compress_to_fp16)
            entry = cache.store("ir", identity, write, str(found), seconds)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
            log.warning("The converted %s could not be kept in %s: %s", title, cache.root, reason)
            return IR(identity, model.clone, f"{found}; not kept: {reason}", seconds)
    return _from_entry(entry, str(found), seconds)


def _save(model: ov.Model, compress_to_fp16: bool, folder: Path) -> None:
    import openvino as ov

    ov.save_model(model, folder / XML, compress_to_fp16=compress_to_fp16)


def _from_entry(entry: Entry, reason: str, convert_s: float) -> IR:
    path = entry.path / XML
    return IR(entry.manifest["identity"], lambda: devices.core().read_model(path), reason, convert_s, entry)
