"""The backend stands on its own: quick to import, without ComfyUI, and without circles."""

from __future__ import annotations

import ast
import json
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from second_process import SecondProcess

PACK = Path(__file__).parents[2]
BACKEND = PACK / "ov_backends"
FILES = sorted(BACKEND.rglob("*.py"))
MODULES = [".".join(f.relative_to(PACK).with_suffix("").parts) for f in FILES if not f.name.startswith("__")]


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def imported(file: Path) -> set[str]:
    """Full names of what a file imports at runtime: 'openvino', 'ov_backends.plan'."""
    names: set[str] = set()
    waiting: list[ast.AST] = [tree(file)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = file.relative_to(PACK).parts[: -node.level] if node.level else ()
            base = ".".join((*package, *filter(None, [node.module])))
            # `from .. import devices` imports a module, `from ..plan import TITLES` a name
            names |= {name if (name := f"{base}.{a.name}") in MODULES else base for a in node.names}
        waiting.extend(ast.iter_child_nodes(node))
    return names


IMPORT_ALL = """
import importlib, json, time
before = time.process_time()
for name in json.loads(sys.argv[1]):
    importlib.import_module("ovpack." + name)
say(json.dumps([m for m in ("openvino", "torch", "nncf", "numpy", "comfy") if m in sys.modules]))
say(time.process_time() - before)
"""


def test_importing_the_backend_loads_no_heavy_package_and_takes_under_half_a_second():
    with SecondProcess(IMPORT_ALL, json.dumps(MODULES)) as process:
        loaded, seconds = process.finish()
    assert loaded == "[]"
    assert float(seconds) < 0.5, f"{seconds} s of processor time"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(BACKEND)))
def test_no_file_of_the_backend_imports_comfyui(file):
    foreign = {"comfy", "comfy_api", "comfy_execution", "comfy_extras", "folder_paths", "nodes", "server", "execution"}
    assert not {name.split(".")[0] for name in imported(file)} & foreign


def test_imports_inside_the_backend_make_no_circle():
    inside = {
        ".".join(file.relative_to(PACK).with_suffix("").parts): {n for n in imported(file) if n in MODULES}
        for file in FILES
    }
    assert list(TopologicalSorter(inside).static_order())


@pytest.mark.parametrize("folder", ["ov_backends", "nodes"])
def test_nothing_touches_torchs_compiler(folder):
    """Other packs own it; importing torch._dynamo alone costs seconds."""
    for file in (PACK / folder).rglob("*.py"):
        assert not [name for name in imported(file) if name.startswith("torch._dynamo")], file
        calls = [ast.unparse(node.func) for node in ast.walk(tree(file)) if isinstance(node, ast.Call)]
        assert "torch.compile" not in calls, file
