"""Intel's real NPU compiler, set up once in the user's cache folder, and the demo model's submodels as IR."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import openvino as ov
import pytest
from comfy_in_process import import_comfy
from demo_shapes import SHAPES

PACK = Path(__file__).parents[2]
SETUP_LIMIT_S = 900

sys.path.insert(0, str(PACK / "tests" / "unit"))  # npu_models, small_models


def pytest_collection_modifyitems(items):
    """Everything in this folder needs the compiler, and takes its time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.npu)


@pytest.fixture(scope="session")
def setups() -> list[subprocess.CompletedProcess[str]]:
    """Two `preflight --setup` started at the same time, both ended; not run where Wine is missing."""
    from ovpack.ov_backends.compiler.npu_compilers import find_compiler
    from ovpack.ov_backends.compiler.npu_setup import missing_programs

    if find_compiler() is None and missing_programs():
        pytest.skip(f"not run: there is no NPU compiler. {missing_programs()}")
    command = [sys.executable, "-m", "ov_backends", "preflight", "--setup"]
    started = [
        subprocess.Popen(command, cwd=PACK, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    ended = []
    for process in started:
        out, errors = process.communicate(timeout=SETUP_LIMIT_S)
        ended.append(subprocess.CompletedProcess(command, process.returncode, out, errors))
    return ended


@pytest.fixture(scope="session")
def compiler(setups):
    from ovpack.ov_backends.compiler.npu_compilers import require_compiler

    assert [done.returncode for done in setups] == [0, 0], "\n".join(done.stderr for done in setups)
    return require_compiler()


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A cache of results for this session: the compiler really runs."""
    from ovpack.ov_backends.compiler.cache import CompileCache

    return CompileCache(tmp_path_factory.mktemp("results"), 10**9)


@pytest.fixture(scope="session")
def demo_files(tmp_path_factory) -> dict[str, Path]:
    """Submodel -> dynamic IR, as this pack converts the demo model; in a folder that no shell likes."""
    import_comfy()
    from ovpack.nodes import folder
    from ovpack.nodes.seams import clip as text
    from ovpack.nodes.seams import unet
    from ovpack.nodes.seams import vae as image

    model, clip, vae = folder.load_folder(PACK / "demo_model")[:3]
    tower = text._transformer(clip, "clip_l")
    sources = {
        "unet": unet.source_of(model),
        "vae_decoder": image._source(image._Half(vae.first_stage_model, "vae_decoder", "decode", "latent", "pixels")),
        "text_encoder": text._source(clip.cond_stage_model, tower, "clip_l"),
    }
    place = tmp_path_factory.mktemp("demo") / "Zwei Wörter 模型"
    place.mkdir()
    for name, source in sources.items():
        ov.save_model(source.convert(), place / f"{name}.xml")
    return {name: place / f"{name}.xml" for name in sources}


@pytest.fixture(scope="session")
def demo(demo_files) -> Callable[[str], SimpleNamespace]:
    """demo(submodel): `model` at the sizes of SHAPES and the `files` that it was read from."""

    def read(name: str) -> SimpleNamespace:
        model = ov.Core().read_model(demo_files[name])
        model.reshape(SHAPES[name])
        return SimpleNamespace(model=model, files=(demo_files[name], demo_files[name].with_suffix(".bin")))

    return read
