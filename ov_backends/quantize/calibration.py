"""Recorded inputs of a submodel, kept for quantizing it: made by real sampling, re-used by every size and device."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..compiler.cache import entry_key
from ..errors import CalibrationError
from .gate import Sample
from .scope import CONDITIONING

if TYPE_CHECKING:
    import numpy as np
    import torch

log = logging.getLogger("ovnpu")

T = TypeVar("T")

FOLDER = "calibration"
MANIFEST = "manifest.json"
WANTED = 40
"""Samples of a set: enough for stable ranges of a UNet, and still a minute's work to quantize with."""


MOST = 3 * WANTED
"""Samples of a larger set that one quantization uses, spread over all its runs."""
FEW_RUNS = 4
"""Prompts differ in the values they bring about: a set of fewer runs does not stand for all of them."""
PROMPT_INPUTS = CONDITIONING - {"timestep_embedding"}


class Recorder:
    """Keeps about `wanted` rows of calls spread evenly over a run whose length is not known beforehand.

    Every call is kept, with all its rows (cond and uncond), until there are twice as many as wanted; then every second
    call goes and from there on every second one is taken, and so on.
    """

    def __init__(self, wanted: int = WANTED):
        self.wanted = wanted
        self._calls = self._seen = 0
        self._stride = 1
        self._kept: list[list[Sample]] = []

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Take one call: inputs by name, [batch, ...]; each row becomes a sample of [1, ...] float32."""
        import torch

        rows = len(next(iter(inputs.values())))
        if self._calls % self._stride == 0:
            arrays = {name: t.detach().to("cpu", torch.float32).contiguous().numpy() for name, t in inputs.items()}
            self._kept.append(
                [{name: array[row : row + 1].copy() for name, array in arrays.items()} for row in range(rows)]
            )
        self._calls += 1
        self._seen += rows
        if sum(map(len, self._kept)) >= 2 * self.wanted and len(self._kept) > 1:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    @property
    def is_empty(self) -> bool:
        return not self._kept

    @property
    def progress(self) -> str:
        return f"recording calibration {min(self._seen, self.wanted)}/{self.wanted}"

    def samples(self) -> list[Sample]:
        """At most `wanted`, from calls evenly spread over the run."""
        rows = max((len(call) for call in self._kept), default=1)
        calls = spread(self._kept, max(1, self.wanted // rows))
        return [row for call in calls for row in call][: self.wanted]


class CalibrationSet:
    """The samples recorded so far for one model, one file for each recorded run below `root`/calibration/<key>.

    identity: the submodel and its weights, as in the IR's identity: another LoRA is another model. Files are only
    added, so processes may record side by side.
    """

    def __init__(self, root: Path, identity: Mapping[str, str]):
        self.identity = {name: identity[name] for name in ("submodel", "model", "weights")}
        self.path = root / FOLDER / entry_key(self.identity)

    @property
    def files(self) -> list[Path]:
        return sorted(self.path.glob("*.safetensors"))

    @property
    def is_complete(self) -> bool:
        """Whether it stands for what the model will be given, as far as one can tell."""
        return len(self.files) >= FEW_RUNS and self.count >= WANTED

    @property
    def used(self) -> list[Path]:
        """The files to quantize with.

        What was recorded by the way counts once the set is complete: to quantize after each run would take too long.
        """
        if self.is_complete:
            return self.files
        about = self._about()
        return [file for file in self.files if not about.get(file.name, {}).get("by_the_way")]

    @property
    def digest(self) -> str:
        """Stands for the calls to quantize with, in an identity; "" while there are none."""
        names = " ".join(file.stem for file in self.used)
        return hashlib.sha256(names.encode()).hexdigest()[:16] if names else ""

    @property
    def count(self) -> int:
        """Number of samples; damaged files count nothing."""
        return sum(int(about.get("samples", 0)) for about in self._about().values())

    def has_prompt_of(self, samples: Sequence[Sample]) -> bool:
        """Whether a run with the same prompts is in the set; never where a model has no such inputs."""
        prompts = _prompts(samples)
        return prompts != "" and any(about.get("prompts") == prompts for about in self._about().values())

    def add(self, samples: Sequence[Sample], about: str, by_the_way: bool = False) -> int:
        """Keep the samples of one run; `about` says which. Returns how many were kept.

        by_the_way: nothing waits for it. Samples with NaN or infinity are left out with a warning. Raises
        OSError when the disk is full or read-only.
        """
        import numpy as np
        from safetensors.numpy import save

        whole = [s for s in samples if all(np.isfinite(array).all() for array in s.values())]
        if len(whole) < len(samples):
            log.warning(
                "%d of %d recorded calls hold NaN or infinity; left out.", len(samples) - len(whole), len(samples)
            )
        if not whole:
            return 0
        tensors = {f"{i:04d}/{name}": array for i, sample in enumerate(whole) for name, array in sample.items()}
        made = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        told = {"about": about, "made": made, "samples": str(len(whole)), "prompts": _prompts(whole)}
        data = save(tensors, {**self.identity, **told, "by_the_way": "yes" if by_the_way else ""})
        name = hashlib.sha256(data).hexdigest()[:16]
        self.path.mkdir(parents=True, exist_ok=True)
        _write(self.path / f"{name}.safetensors", data)
        self._write_manifest()
        return len(whole)

    def samples(self, wanted: int | None = None) -> list[Sample]:
        """All to quantize with, or `wanted` of them spread over the runs.

        CalibrationError for damaged or foreign files.
        """
        found = [sample for file in self.used for sample in self._read(file)]
        return spread(found, wanted) if wanted else found

    def _read(self, file: Path) -> list[Sample]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, "numpy") as opened:
                about = opened.metadata() or {}
                tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118  not a dict
        except (OSError, SafetensorError) as error:
            raise CalibrationError(
                f"The calibration file {file} is damaged ({error}). Delete it and record again."
            ) from error
        for name, mine in self.identity.items():
            if (theirs := about.get(name, "not given")) != mine:
                raise CalibrationError(
                    f"The calibration file {file} was recorded with another model ({name} {theirs} instead of {mine}). "
                    "Delete it and record again with this model."
                )
        rows: dict[str, dict[str, np.ndarray]] = {}
        for key, array in tensors.items():
            row, _, name = key.partition("/")
            rows.setdefault(row, {})[name] = array
        return [rows[row] for row in sorted(rows)]

    def _about(self) -> dict[str, dict[str, str]]:
        """What each readable file says of itself."""
        from safetensors import SafetensorError, safe_open

        found = {}
        for file in self.files:
            with contextlib.suppress(OSError, SafetensorError), safe_open(file, "numpy") as opened:
                found[file.name] = opened.metadata() or {}
        return found

    def _write_manifest(self) -> None:
        """For people and tools; the safetensors files alone decide."""
        runs = {
            name: {key: about.get(key, "") for key in ("about", "made", "samples")}
            for name, about in self._about().items()
        }
        text = json.dumps({"schema": 1, "identity": self.identity, "runs": runs}, indent=1, ensure_ascii=False)
        _write(self.path / MANIFEST, text.encode("utf-8"))


def _prompts(samples: Sequence[Sample]) -> str:
    """Stands for what the calls were told to draw, whatever the noise; "" where the model has no such inputs."""
    told = {array.tobytes() for sample in samples for name, array in sample.items() if name in PROMPT_INPUTS}
    return hashlib.sha256(b"".join(sorted(told))).hexdigest()[:16] if told else ""


def spread(items: Sequence[T], wanted: int) -> list[T]:
    """`wanted` of `items`, evenly spaced, the first and the last among them (of one alone the first)."""
    if len(items) <= wanted:
        return list(items)
    last = len(items) - 1
    return [items[round(i * last / max(1, wanted - 1))] for i in range(wanted)]


def _write(path: Path, data: bytes) -> None:
    """In place at once, or not at all."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
