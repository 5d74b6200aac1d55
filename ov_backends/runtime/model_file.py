"""A model file of the user's: where it lies, the sizes and labels given with it, and what it holds."""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..compiler.cache import file_hash
from ..convert.file import FORMATS, read_file
from ..errors import ModelFolderError
from ..tensors import Shapes, format_shapes

if TYPE_CHECKING:
    import openvino as ov

_WEIGHTS = {".xml": ".bin", ".pdmodel": ".pdiparams"}
_LABEL_FILES = ("{stem}.txt", "{stem}.labels", "labels.txt")
# An entry {location: file name} of an ONNX tensor's external data, as protobuf writes it: field 1 "location", field 2.
_EXTERNAL = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])")


@dataclass(frozen=True)
class ModelFile:
    """A model file or SavedModel folder. shapes: what its inputs are reshaped to; labels: of its classes, in order."""

    name: str
    path: Path
    shapes: Shapes = field(default_factory=dict)
    labels: tuple[str, ...] = ()

    @cached_property
    def model(self) -> ov.Model:
        """Read when first asked for. It is everyone's: clone it before you change it."""
        return read_file(str(self.path), self.shapes)

    @property
    def identity(self) -> str:
        """A hash (SHA-256) of names and contents of all its files, weights in other files included."""
        folder = self.path if self.path.is_dir() else self.path.parent
        digest = hashlib.sha256()
        for file in model_files(self.path):
            stat = file.stat()
            # the main file's name does not matter: the others are called by name
            name = "" if file == self.path else file.relative_to(folder).as_posix()
            digest.update(f"{name} {_hash(file, stat.st_size, stat.st_mtime_ns)}\n".encode())
        return digest.hexdigest()[:32]

    def __str__(self) -> str:
        """What it takes and gives, a line for each port."""
        size = sum(file.stat().st_size for file in model_files(self.path)) / 1e6
        kind = "TensorFlow SavedModel" if self.path.is_dir() else FORMATS[self.path.suffix.lower()]
        lines = [f"{self.name}: {kind}, {size:.1f} MB"]
        lines += [f"input {describe_port(port)}" for port in self.model.inputs]
        lines += [f"output {describe_port(port)}" for port in self.model.outputs]
        if self.labels:
            lines.append(f"{len(self.labels)} labels, from {self.labels[0]!r} to {self.labels[-1]!r}")
        if any(port.get_partial_shape().is_dynamic for port in self.model.inputs):
            lines.append(f"The NPU needs every size fixed; in shapes, for example: {suggest_shapes(self.model)}")
        return "\n".join(lines)


def describe_port(port: ov.Output) -> str:
    """'x' f32 [?,3,224,224]."""
    return f"'{port.get_any_name()}' {port.get_element_type().get_type_name()} {port.get_partial_shape()}"


def suggest_shapes(model: ov.Model, height: int = 640, width: int = 640) -> str:
    """A text for the shapes of every input that has open dimensions: x=[1,3,640,640].

    height, width: of the image at hand; rounded up to 32, the step by which most vision networks shrink their input.
    """
    height, width = (max(32, -(-side // 32) * 32) for side in (height, width))
    texts: dict[str, tuple[int, ...]] = {}
    for port in model.inputs:
        shape = port.get_partial_shape()
        if shape.rank.is_dynamic:
            texts[port.get_any_name()] = (1, 3, height, width)
        elif shape.is_dynamic:
            texts[port.get_any_name()] = tuple(_filled(shape, height, width))
    return format_shapes(texts)


def find_labels(path: Path, text: str = "") -> tuple[str, ...]:
    """Labels, one a line: of `text`, else of a file beside the model (one of _LABEL_FILES), else none."""
    if text.strip():
        return tuple(line.strip() for line in text.strip().splitlines())
    for pattern in _LABEL_FILES:
        file = path.parent / pattern.format(stem=path.stem)
        if not file.is_file():
            continue
        try:
            return tuple(line.strip() for line in file.read_text(encoding="utf-8-sig").strip().splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFolderError(
                f"The labels in {file} cannot be read ({error}). Save it as UTF-8 text with one label a line."
            ) from error
    return ()


def model_files(path: Path) -> list[Path]:
    """Every file that the model at `path` is made of, sorted; ModelFolderError if one lies outside of its folder."""
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    if path.suffix.lower() == ".onnx":
        return sorted({path, *_external_data(path)})
    weights = path.with_suffix(_WEIGHTS.get(path.suffix.lower(), path.suffix))
    return [path, weights] if weights != path and weights.is_file() else [path]


def fingerprint(path: Path) -> str:
    """Changes when the model must be read again: name, size and time of its files, and of labels beside it."""
    labels = (path.parent / pattern.format(stem=path.stem) for pattern in _LABEL_FILES)
    files = [*model_files(path), *(file for file in labels if file.is_file())]
    stats = [(file.name, file.stat()) for file in files]
    return "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)


@lru_cache(maxsize=4096)
def _hash(path: Path, size: int, time_ns: int) -> str:
    """Of a file's contents; size and time tell when it must be read again."""
    return file_hash(path)


def _external_data(path: Path) -> list[Path]:
    """The files in which an ONNX model keeps weights, found without parsing it: it may hold gigabytes."""
    if path.stat().st_size == 0:
        return []
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        names = {
            content[found.end() : found.end() + found.group(1)[0]].decode("utf-8", "replace")
            for found in _EXTERNAL.finditer(content)
        }
    folder = path.parent.resolve()
    files: list[Path] = []
    for name in sorted(names):
        file = path.parent / name
        if not file.resolve().is_relative_to(folder):
            raise ModelFolderError(
                f"{path.name} keeps weights in '{name}', which is outside of its folder. Export it again so that all "
                "its files lie in one folder."
            )
        # what merely looks like a name, or is missing, is the reader's business
        if file.is_file():
            files.append(file)
    return files


def _filled(shape: ov.PartialShape, height: int, width: int) -> Sequence[int]:
    """`shape` with numbers for open dimensions: batch 1, 3 channels, height and width; 128 in sequences."""
    fixed = [d.get_length() if d.is_static else None for d in shape]
    guesses = [1, *[128] * (len(fixed) - 1)]
    if len(fixed) == 4:
        guesses = [1, height, width, 3] if fixed[3] in (1, 3) and fixed[1] not in (1, 3) else [1, 3, height, width]
    return [guess if length is None else length for length, guess in zip(fixed, guesses, strict=True)]
