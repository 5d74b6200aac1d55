"""The command lines in the README do what the README says, on a small real model."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from ovpack.ov_backends.__main__ import COMMANDS, main
from ovpack.ov_backends.compiler.npu_compilers import find_compiler
from shipped_models import MAGIKA

PACK = Path(__file__).parents[2]
HEADING = "## Any other model: the command line"
PADDING = 256
"""What the model takes for a byte that is not there."""


def examples() -> list[list[str]]:
    """Arguments of each command in the section's fenced blocks, in order."""
    section = (PACK / "README.md").read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def sample(file: Path) -> np.ndarray:
    """The first and the last 1024 bytes of a file, as the model wants them: int32 [1, 2048]."""
    content = list(file.read_bytes())
    first, last = content[:1024], content[-1024:]
    filled = [*first, *[PADDING] * (1024 - len(first)), *[PADDING] * (1024 - len(last)), *last]
    return np.array([filled], np.int32)


def expected_code(command: str) -> int:
    """Without an NPU compiler `preflight` falls short, as the README says."""
    return 1 if command == "preflight" and find_compiler() is None else 0


@pytest.fixture
def folder(tmp_path, clean_environment, monkeypatch):
    """What a user has who tries the section: a model and samples of their own, here this pack's own files."""
    shutil.copy(MAGIKA, tmp_path / "model.onnx")
    files = [*sorted((PACK / "ov_backends").glob("*.py"))[:12], *sorted(PACK.glob("*.md"))]
    np.savez(tmp_path / "samples.npz", bytes=np.stack([sample(file) for file in files]))
    monkeypatch.setenv("OVNPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_is_an_example_of_every_command():
    assert [words[:3] for words in examples()] == [["python", "-m", "ov_backends"]] * len(examples())
    assert {words[3] for words in examples()} == {command.__name__.rpartition(".")[2] for command in COMMANDS}


def test_the_examples_work_in_their_order(folder, capsys):
    for words in examples():
        code = main(words[3:])
        said = capsys.readouterr()
        assert code == expected_code(words[3]) and said.out.strip(), f"{shlex.join(words)}\n{said.out}{said.err}"
    made = {file.name for file in folder.iterdir()}
    assert made >= {"model.xml", "model.bin", "int8.xml", "int8.bin"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__.rpartition(".")[2])
def test_the_example_in_the_help_is_understood(command):
    from ovpack.ov_backends.__main__ import _parser

    assert _parser().parse_args(shlex.split(command.EXAMPLE)).command is command
