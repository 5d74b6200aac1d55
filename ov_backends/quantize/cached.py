"""Float IR -> quantized IR, by way of the cache."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import devices
from ..compiler.cache import CompileCache, Entry
from ..compiler.ir import IR, XML
from ..errors import CalibrationError, QuantizeError
from ..plan import TITLES
from ..progress import Progress
from .gate import Gate, Sample
from .int8 import Options, Quantized, quantize

if TYPE_CHECKING:
    import openvino as ov

log = logging.getLogger("ovnpu")

VERDICT = "quantization.json"
QUANTIZE_VERSION = "2"
"""Part of every quantized IR's key: raise it when a change here or in int8.py changes the result."""


@dataclass(frozen=True)
class QuantizedIR:
    """A quantized IR that may be used, or (ir None) why there is none.

    reason: for the user, "" if all went well; seconds: what making it cost now, 0 from the cache.
    """

    ir: IR | None
    precision: str
    gate: Gate = field(default_factory=Gate)
    kept_float: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    samples: int = 0
    reason: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "precision": self.precision,
            "used": self.ir is not None,
            "samples": self.samples,
            "text": self.gate.text(),
            "gate": self.gate.as_json(),
            "kept_float": self.kept_float,
            "unsupported": self.unsupported,
            "seconds": round(self.seconds, 3),
            "reason": self.reason,
        }


def load_or_quantize(
    ir: IR,
    precision: str,
    digest: str,
    samples: Callable[[], Sequence[Sample]],
    cache: CompileCache,
    progress: Progress,
    options: Options | None = None,
) -> QuantizedIR:
    """The quantized form of `ir` from the cache, or made with nncf and kept there, the failed ones too.

    digest: stands for what `samples()` returns, "" for none.
    """
    options = options or Options()
    submodel = ir.identity["submodel"]
    title = TITLES[submodel]
    identity = {**ir.identity, "quantization": f"{precision} {QUANTIZE_VERSION} {options}", "calibration": digest}
    with cache.making("ir", identity, lambda: progress(f"Waiting for another process to quantize the {title}")):
        found = cache.find("ir", identity)
        if isinstance(found, Entry):
            return _from_entry(found, 0.0)
        started = time.monotonic()
        try:
            rows = list(samples())
            quantized = quantize(ir.read(), precision, rows, options, progress, title=title)
        except (CalibrationError, QuantizeError) as error:
            return QuantizedIR(None, precision, reason=str(error))
        seconds = time.monotonic() - started
        about = _verdict(quantized, len(rows), title)
        try:
            entry = cache.store("ir", identity, lambda folder: _save(quantized, about, folder), str(found), seconds)
        except (OSError, RuntimeError) as error:
            log.warning("The quantized %s could not be kept in %s: %s", title, cache.root, error)
            model = quantized.model
            memory = IR(identity, model.clone, "not kept", seconds) if quantized.gate.passed else None
            return _outcome(memory, about, seconds)
    return _from_entry(entry, seconds)


def _verdict(quantized: Quantized, samples: int, title: str) -> dict[str, Any]:
    gate = quantized.gate
    reason = ""
    if not gate.passed:
        reason = (
            f"The {title} stays in floating point: {quantized.precision} reached a cosine of only {gate.worst:.4f} to "
            f"the float model, {gate.limit} is needed, with {len(gate.restored)} layers already kept in float."
        )
    return {
        "precision": quantized.precision,
        "gate": gate.as_json(),
        "kept_float": quantized.kept_float,
        "unsupported": quantized.unsupported,
        "samples": samples,
        "reason": reason,
    }


def _save(quantized: Quantized, about: dict[str, Any], folder: Path) -> None:
    import openvino as ov

    (folder / VERDICT).write_text(json.dumps(about, indent=1), encoding="utf-8")
    if quantized.gate.passed:
        # what is not quantized keeps the type it has: FP16 would round the ranges
        ov.save_model(quantized.model, folder / XML, compress_to_fp16=False)


def _from_entry(entry: Entry, seconds: float) -> QuantizedIR:
    about = json.loads((entry.path / VERDICT).read_text(encoding="utf-8"))
    path = entry.path / XML

    def read() -> ov.Model:
        return devices.core().read_model(path)

    usable = IR(entry.manifest["identity"], read, "", seconds, entry) if not about["reason"] else None
    return _outcome(usable, about, seconds)


def _outcome(ir: IR | None, about: Mapping[str, Any], seconds: float) -> QuantizedIR:
    return QuantizedIR(
        ir, about["precision"], Gate.from_json(about["gate"]), about["kept_float"], about["unsupported"],
        about["samples"], about["reason"], seconds,
    )  # fmt: skip
