"""IR -> compiled model on a device, by way of the cache."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import devices
from ..errors import CompileError, FallbackError, ShapeError
from ..graph.placement import FALLBACK_DEVICE, Placement, everything_on, place
from ..plan import TITLES
from ..progress import Progress, with_heartbeat
from ..tensors import Shapes, format_shapes, require_static
from .cache import CacheMiss, CompileCache, Entry
from .ir import WeightsFile
from .precision import precision_property

if TYPE_CHECKING:
    import openvino as ov

log = logging.getLogger("ovnpu")

BLOB = "model.blob"
PLACEMENT = "placement.json"


@dataclass(frozen=True)
class Order:
    """What to compile: a submodel's IR (`read` makes it) at static `shapes` (None: dynamic) for a device."""

    submodel: str
    ir_identity: Mapping[str, str]
    read: Callable[[], ov.Model]
    shapes: Shapes | None
    device: str
    precision: str
    policy: str
    weights: WeightsFile | None = None

    @property
    def identity(self) -> dict[str, str]:
        """All that the blob depends on."""
        referred = self._referred_weights
        return {
            **self.ir_identity,
            # first what else follows from: another device brings its own precision, and the first difference is told
            **devices.identity(self.device),
            "shape": format_shapes(self.shapes) if self.shapes else "dynamic",
            "precision": self.precision,
            **({"weights_file": referred.digest} if referred else {}),
        }

    @property
    def properties(self) -> dict[str, str]:
        return {"PERFORMANCE_HINT": "LATENCY", **self._common_properties}

    @property
    def import_properties(self) -> dict[str, str]:
        referred = self._referred_weights
        return {**({"WEIGHTS_PATH": str(referred.path)} if referred else {}), **self._common_properties}

    @property
    def _common_properties(self) -> dict[str, str]:
        return {
            # the blob refers to the IR's weights; whole it would hold a copy of them for every image size
            **({"CACHE_MODE": "OPTIMIZE_SIZE"} if self._referred_weights else {}),
            # nothing promises that a blob keeps the hint, and CPUs that have BF16 take that by default
            **precision_property(self.precision, self.device),
            **devices.compile_properties(self.device),
        }

    @property
    def _referred_weights(self) -> WeightsFile | None:
        """The weights that the blob refers to; None if it holds them, as on every device but the CPU."""
        if self.weights is None or self.device != "CPU":
            return None
        return self.weights if "WEIGHTS_PATH" in devices.core().get_property("CPU", "SUPPORTED_PROPERTIES") else None


@dataclass(frozen=True)
class Compiled:
    """A compiled model and how it came to be. `entry` keeps its blob from eviction."""

    model: ov.CompiledModel
    placement: Placement
    state: str
    reason: str
    compile_s: float
    import_s: float
    entry: Entry | None = None


def compile_cached(order: Order, cache: CompileCache, progress: Progress) -> Compiled:
    """Import the blob for `order` or compile it and keep the blob; a blob that does not import is made again."""
    title, device = TITLES[order.submodel], devices.label(order.device)
    identity = order.identity
    with cache.making("blob", identity, lambda: progress(f"Waiting for another process to compile the {title}")):
        found = cache.find("blob", identity)
        if isinstance(found, Entry):
            imported = _import(order, found, f"Loading the {title} for {device}", progress)
            if isinstance(imported, Compiled):
                return imported
            cache.discard(found.path)
            found = imported
        started = time.monotonic()
        text = f"Compiling the {title} for {device}, first run only"
        model, placement, target = with_heartbeat(lambda: _compile(order), text, progress)
        seconds = time.monotonic() - started
        progress(f"Keeping the compiled {title}")
        entry, reason = _keep(model, placement, target, identity, cache, found, seconds)
    return Compiled(model, placement, "miss", reason, seconds, 0.0, entry)


def _import(order: Order, entry: Entry, text: str, progress: Progress) -> Compiled | CacheMiss:
    started = time.monotonic()
    try:
        about = json.loads((entry.path / PLACEMENT).read_text(encoding="utf-8"))
        placement, target = Placement.from_json(about["placement"]), about["target"]
        _check_policy(order, placement)
        blob = io.BytesIO((entry.path / BLOB).read_bytes())
        model = with_heartbeat(
            lambda: devices.core().import_model(blob, target, order.import_properties), text, progress
        )
    except (OSError, RuntimeError) as error:
        advice = devices.explain_device_error(error, order.device)
        log.warning("The cached %s does not load (%s); compiling it again.", TITLES[order.submodel], advice)
        return CacheMiss("corrupt: the blob does not load")
    return Compiled(model, placement, "hit", "", 0.0, time.monotonic() - started, entry)


def _compile(order: Order) -> tuple[ov.CompiledModel, Placement, str]:
    """The compiled model, where its operators are, and the device string it was compiled for."""
    model = order.read()
    if order.shapes:
        try:
            model.reshape({name: list(shape) for name, shape in order.shapes.items()})
        except RuntimeError as error:
            raise ShapeError(
                f"The {TITLES[order.submodel]} cannot take inputs of this size ({format_shapes(order.shapes)}): "
                f"{str(error).strip().splitlines()[-1]}"
            ) from error
    if devices.is_npu(order.device):
        require_static(model, "the NPU", batch_one=True)
    core = devices.core()
    try:
        compiled = core.compile_model(model, order.device, order.properties)
        return compiled, everything_on(model, order.device), order.device
    except RuntimeError as error:
        # it may be one operator that the device does not have: then the rest can still run there
        placement = _place(model, order.device)
        if placement is None or not placement.fallback or order.device not in placement.devices:
            raise _refused(order, error) from error
        _check_policy(order, placement)
    target = f"HETERO:{order.device},{FALLBACK_DEVICE}"
    try:
        return core.compile_model(model, target, order.properties), placement, target
    except RuntimeError as error:
        raise _refused(order, error) from error


def _refused(order: Order, error: RuntimeError) -> CompileError:
    explained = devices.explain_device_error(error, order.device)
    return CompileError(f"{devices.label(order.device)} could not compile the {TITLES[order.submodel]}: {explained}")


def _check_policy(order: Order, placement: Placement) -> None:
    """Raise FallbackError if operators run elsewhere and the policy is "error"."""
    if placement.fallback and order.policy == "error":
        kinds = ", ".join(sorted({operator.type for operator in placement.fallback}))
        raise FallbackError(
            f"{len(placement.fallback)} operators of the {TITLES[order.submodel]} ({kinds}) cannot run on "
            f"{devices.label(order.device)}, and the fallback policy is 'error'. Set it to warn or allow to run "
            f"them on the {FALLBACK_DEVICE}, or choose another device."
        )


def _place(model: ov.Model, device: str) -> Placement | None:
    """None if the device cannot even be asked."""
    try:
        return place(model, device, devices.core().query_model)
    except RuntimeError:
        return None


def _keep(
    compiled: ov.CompiledModel,
    placement: Placement,
    target: str,
    identity: Mapping[str, str],
    cache: CompileCache,
    miss: CacheMiss,
    seconds: float,
) -> tuple[Entry | None, str]:
    """Store the blob. A full or read-only disk costs the next run its time, never this run its image."""

    def write(folder: Path) -> None:
        (folder / BLOB).write_bytes(compiled.export_model().getbuffer())
        about = {"target": target, "placement": placement.as_json()}
        (folder / PLACEMENT).write_text(json.dumps(about), encoding="utf-8")

    try:
        return cache.store("blob", identity, write, str(miss), seconds), str(miss)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        log.warning("The compiled model could not be kept in %s: %s", cache.root, reason)
        return None, f"{miss}; not kept: {reason}"
