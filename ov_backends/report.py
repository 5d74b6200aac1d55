"""What happened, as values: where each submodel ran, what fell back, what the cache did, what it cost."""

from __future__ import annotations

import logging
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .plan import SUBMODELS, TITLES

log = logging.getLogger("ovnpu")

SCHEMA = 1


@dataclass(frozen=True)
class FallenOperator:
    """An operator that does not run on the device asked for."""

    name: str
    type: str
    device: str


@dataclass
class SubmodelReport:
    """One submodel in one run."""

    name: str
    requested_device: str
    actual_device: str = ""
    precision: str = ""
    fallback: list[FallenOperator] = field(default_factory=list)
    operators: dict[str, int] = field(default_factory=dict)
    """Device -> number of operators there."""
    device_switches: int = 0
    cache_state: str = ""
    cache_reason: str = ""
    convert_s: float = 0.0
    compile_s: float = 0.0
    import_s: float = 0.0
    quantize_s: float = 0.0
    quantization: dict = field(default_factory=dict)
    """Of a quantized submodel: what the accuracy gate measured and which layers stay in floating point."""
    choice: str = ""
    """Where the precision was left to us and measured: which it is and by what figures."""
    conversions: int = 0
    compilations: int = 0
    """Compilations of this submodel in this process, in this run and before."""
    first_ms: float | None = None
    call_ms: list[float] = field(default_factory=list)
    """Duration of each OpenVINO call of this run, the first inference after a load left out."""
    outside_ms: list[float] = field(default_factory=list)
    """The part of each call that was spent in this pack's own code."""
    openvino_calls: int = 0
    torch_reasons: Counter[str] = field(default_factory=Counter)
    notices: list[str] = field(default_factory=list)
    is_quiet: bool = False
    file: str = ""
    """The model file's name, where there may be several of them in one run."""

    @property
    def title(self) -> str:
        return f"{TITLES[self.name]} {self.file}".strip()

    @property
    def steady_ms(self) -> float | None:
        """Median duration of a call once warm, in milliseconds."""
        return statistics.median(self.call_ms) if self.call_ms else None

    @property
    def torch_calls(self) -> int:
        return self.torch_reasons.total()

    def notice(self, text: str, policy: str) -> None:
        """Keep what the user should know, once; under the policy "allow" only the full report tells it."""
        if text not in self.notices:
            self.notices.append(text)
            self.is_quiet = policy == "allow"
            if not self.is_quiet:
                log.warning("%s: %s", self.title, text)

    def line(self) -> str:
        """This submodel in one line."""
        parts = []
        if self.actual_device:
            asked = "" if self._is_as_asked() else f" (asked: {self.requested_device})"
            accuracy = f" ({self.quantization['text']})" if self.quantization.get("used") else ""
            parts.append(f"{self.actual_device}{asked} {self.precision}{accuracy}")
            parts += [self.choice] if self.choice else []
            fallen = Counter(operator.type for operator in self.fallback)
            parts.append("fell back: " + ", ".join(f"{n} {t}" for t, n in fallen.items()) if fallen else "no fallback")
            parts.append(f"cache {self.cache_state}" + (f" ({self.cache_reason})" if self.cache_reason else ""))
            prepared = self.convert_s + self.quantize_s + self.compile_s + self.import_s
            parts.append(f"prepared in {prepared:.1f} s")
            if self.first_ms is not None:
                parts.append(f"first {self.first_ms:.0f} ms")
            if self.steady_ms is not None:
                parts.append(f"then {self.steady_ms:.0f} ms a call")
        calls = f"{self.openvino_calls} calls on OpenVINO"
        if self.torch_reasons:
            reasons = "; ".join(f"{reason} ({n})" for reason, n in self.torch_reasons.items())
            calls += f", {self.torch_calls} on torch: {reasons}"
        return f"{self.title}: {', '.join([*parts, calls])}"

    def _is_as_asked(self) -> bool:
        return self.requested_device == "AUTO" or self.actual_device.startswith(self.requested_device)

    def as_json(self) -> dict:
        return {
            "requested_device": self.requested_device,
            "actual_device": self.actual_device,
            "precision": self.precision,
            "operators": self.operators,
            "fallback": [{"name": o.name, "type": o.type, "device": o.device} for o in self.fallback],
            "device_switches": self.device_switches,
            "cache": {"state": self.cache_state, "reason": self.cache_reason},
            "seconds": {
                "convert": round(self.convert_s, 3),
                "quantize": round(self.quantize_s, 3),
                "compile": round(self.compile_s, 3),
                "import": round(self.import_s, 3),
            },
            **({"quantization": self.quantization} if self.quantization else {}),
            **({"choice": self.choice} if self.choice else {}),
            "counters": {"conversions": self.conversions, "compilations": self.compilations},
            "first_ms": _rounded(self.first_ms),
            "steady_ms": _rounded(self.steady_ms),
            "outside_openvino_ms": _rounded(statistics.median(self.outside_ms) if self.outside_ms else None),
            "calls": {"openvino": self.openvino_calls, "torch": self.torch_calls},
            "torch_reasons": [f"{reason} ({n} calls)" for reason, n in self.torch_reasons.items()],
            "notices": self.notices,
        }


class RunReport:
    """All submodels of one run (one prompt, in ComfyUI's words)."""

    def __init__(self) -> None:
        self._submodels: dict[str, SubmodelReport] = {}
        self._started = time.monotonic()

    def submodel(self, name: str, requested_device: str, file: str = "") -> SubmodelReport:
        """The report of one of SUBMODELS in this run, made when first asked for. file: which, of several models."""
        key = f"{name} {file}".strip()
        return self._submodels.setdefault(key, SubmodelReport(name, requested_device, file=file))

    @property
    def submodels(self) -> list[SubmodelReport]:
        """Those that took part, in the order of SUBMODELS."""
        return sorted(self._submodels.values(), key=lambda submodel: SUBMODELS.index(submodel.name))

    @property
    def notices(self) -> list[str]:
        """What the user must see, whatever the policy says of the rest."""
        return [f"{s.title}: {notice}" for s in self.submodels for notice in s.notices if not s.is_quiet]

    def line(self) -> str:
        """One line for each submodel, notices first."""
        return "\n".join([*self.notices, *(submodel.line() for submodel in self.submodels)])

    def markdown(self) -> str:
        """A table of the submodels with the notices below."""
        rows = [
            "| submodel | device | precision | fell back | cache | first ms | ms a call | OpenVINO / torch calls |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for s in self.submodels:
            cache = f"{s.cache_state} {s.cache_reason}".strip()
            calls = f"{s.openvino_calls} / {s.torch_calls}"
            cells = [s.title, s.actual_device, s.precision, len(s.fallback), cache, s.first_ms, s.steady_ms]
            texts = [f"{c:.1f}" if isinstance(c, float) else "-" if c in (None, "") else str(c) for c in cells]
            rows.append(f"| {' | '.join([*texts, calls])} |")
        reasons = [f"- {s.title}: {n} calls on torch: {r}" for s in self.submodels for r, n in s.torch_reasons.items()]
        notices = [f"- {s.title}: {notice}" for s in self.submodels for notice in s.notices]
        return "\n".join([*rows, *notices, *reasons])

    def as_json(self, versions: Mapping[str, str]) -> dict:
        return {
            "schema": SCHEMA,
            "submodels": {f"{s.name} {s.file}".strip(): s.as_json() for s in self.submodels},
            "seconds_total": round(time.monotonic() - self._started, 3),
            "versions": dict(versions),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
