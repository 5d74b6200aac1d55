"""Makes the pack importable as `ovpack` without running its `__init__` and without shadowing ComfyUI's `nodes`."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

PACK = Path(__file__).parent.parent

_spec = ModuleSpec("ovpack", None, is_package=True)
_spec.submodule_search_locations = [str(PACK)]
sys.modules["ovpack"] = module_from_spec(_spec)
sys.path[:0] = [str(PACK / name) for name in ("tools", "benchmarks")]
