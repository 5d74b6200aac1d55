"""ComfyUI inside the test process, on the CPU. Its path comes from the environment variable COMFYUI_PATH."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType


def import_comfy(**options: bool) -> ModuleType:
    """The `comfy` package, with --cpu set before anything reads it. Importing it twice is harmless.

    options: of ComfyUI's command line beside --cpu, for the first import: use_pytorch_cross_attention=True.
    """
    path = os.environ.get("COMFYUI_PATH", "")
    if not (Path(path) / "comfy" / "cli_args.py").is_file():
        raise RuntimeError(f"Set COMFYUI_PATH to a ComfyUI folder (the one that holds main.py); it is {path!r}.")
    # First, so that its `nodes` and `utils` win over anything of that name.
    sys.path[:] = [path, *(entry for entry in sys.path if entry != path)]
    import comfy.cli_args

    vars(comfy.cli_args.args).update(options, cpu=True)
    import comfy.model_management
    import utils  # noqa: F401  as main.py does: nodes.py puts comfy/ first on the path, and there lies another utils

    assert comfy.model_management.get_torch_device().type == "cpu"
    return comfy
