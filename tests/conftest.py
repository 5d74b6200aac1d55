"""Makes the pack importable as `ovpack` without running its `__init__` and without shadowing ComfyUI's `nodes`."""

from __future__ import annotations

import logging
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import pytest

PACK = Path(__file__).parent.parent

_spec = ModuleSpec("ovpack", None, is_package=True)
_spec.submodule_search_locations = [str(PACK)]
sys.modules["ovpack"] = module_from_spec(_spec)
# tests/unit: small models that longer tests use too
sys.path[:0] = [str(PACK / name) for name in ("tools", "benchmarks", "tests", "tests/unit")]


@pytest.fixture(scope="session")
def comfy() -> ModuleType:
    """ComfyUI's `comfy` package on the CPU; without COMFYUI_PATH the test fails and says so."""
    from comfy_in_process import import_comfy

    return import_comfy()


@pytest.fixture(autouse=True)
def own_logger():
    """The pack's logger as it is in a fresh process: libraries that other tests import turn loggers off."""
    logging.disable(logging.NOTSET)
    logging.getLogger().setLevel(logging.WARNING)
    logger = logging.getLogger("ovnpu")
    logger.disabled, logger.propagate = False, True
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def clean_environment(monkeypatch):
    """No setting of this pack from outside."""
    for name in ("OVNPU_CACHE_DIR", "OVNPU_CACHE_LIMIT_GB", "OVNPU_NPU_EMULATION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def emulated_npu(clean_environment, monkeypatch):
    monkeypatch.setenv("OVNPU_NPU_EMULATION", "1")


@pytest.fixture
def cache(tmp_path):
    """An empty cache that takes 1 GB."""
    from ovpack.ov_backends.compiler.cache import CompileCache

    return CompileCache(tmp_path / "cache", 10**9)


@pytest.fixture
def core(clean_environment, monkeypatch):
    """The core of this process, watched; it also lists a GPU."""
    from ovpack.ov_backends import devices
    from small_models import WatchedCore

    watched = WatchedCore(devices.core())
    monkeypatch.setattr(devices, "core", lambda: watched)
    # measuring the CPU compiles models of its own
    monkeypatch.setattr("ovpack.ov_backends.runtime.trial.macs_of_this_cpu", lambda kind: 1.0)
    return watched
