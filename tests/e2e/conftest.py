"""Real ComfyUI servers. Everything lies in folders with spaces and letters that are not ASCII."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from client import EMULATED
from comfy_server import ComfyServer

FOLDER_NAME = "Zwei Wörter 模型"


@pytest.fixture(scope="session")
def comfyui() -> Path:
    path = os.environ.get("COMFYUI_PATH")
    if not path:
        pytest.fail("COMFYUI_PATH is not set: run the tests with python install.py test")
    return Path(path)


@pytest.fixture(scope="session")
def start_server(comfyui, tmp_path_factory) -> Callable[..., contextlib.AbstractContextManager[ComfyServer]]:
    """start_server(name, environment, cache): a server of its own, with an empty cache unless one is given."""

    def start(name: str, environment: dict[str, str] | None = None, cache: Path | None = None):
        work = tmp_path_factory.mktemp(name) / FOLDER_NAME
        variables = {"OVNPU_CACHE_DIR": str(cache or work / "cache"), "OVNPU_NPU_EMULATION": None}
        return ComfyServer(comfyui, Path(sys.executable), work, {**variables, **(environment or {})})

    return start


@pytest.fixture(scope="session")
def npu_server(start_server) -> Iterator[ComfyServer]:
    """A server with an emulated NPU, shared by the tests."""
    with start_server("npu", EMULATED) as server:
        yield server


@pytest.fixture(scope="session")
def cpu_server(start_server) -> Iterator[ComfyServer]:
    """A server on this machine as it is, shared by the tests."""
    with start_server("cpu") as server:
        yield server


@pytest.fixture(scope="session")
def run() -> Callable[[ComfyServer, dict], dict]:
    """run(server, prompt): outputs of every node by id."""
    return lambda server, prompt: server.wait(server.post(prompt))["outputs"]


@pytest.fixture(scope="session")
def report_of() -> Callable[[dict], dict]:
    """report_of(outputs): the report of the node that ran last, as in report.json."""
    from demo_run import extract_report

    return extract_report


def pytest_collection_modifyitems(items):
    """Everything in this folder needs a server."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
