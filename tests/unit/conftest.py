from __future__ import annotations

from types import ModuleType

import pytest
from comfy_in_process import import_comfy


@pytest.fixture(scope="session")
def comfy() -> ModuleType:
    """ComfyUI's `comfy` package on the CPU; without COMFYUI_PATH the test fails and says so."""
    return import_comfy()
