"""The JSON files of a diffusers folder: values of the kind that is asked for, or an error that names file and key."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ov_backends.errors import ModelFolderError


@dataclass(frozen=True)
class Config:
    """One JSON file of a folder. What is wrong in it is reported with the file and the key."""

    path: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Config:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ModelFolderError(f"{path} is missing. Download the whole folder again.") from error
        except (OSError, ValueError, RecursionError) as error:
            raise ModelFolderError(f"{path} is not readable JSON ({error}). Download it again.") from error
        if not isinstance(values, dict):
            raise ModelFolderError(f"{path} holds no JSON object. Download it again.")
        return cls(path, values)

    def error(self, text: str) -> ModelFolderError:
        return ModelFolderError(f"{self.path}: {text}")

    def of_class(self, name: str) -> Config:
        found = self.get("_class_name", name)
        if found != name:
            raise self.error(f"'_class_name' is {found!r}; only {name} is supported. Use ComfyUI's loaders for it.")
        return self

    def get(self, key: str, default: Any = None) -> Any:
        """The value; diffusers writes null for "not set"."""
        value = self.values.get(key)
        return default if value is None else value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not is_number(value) or not 0 < value < math.inf:
            raise self.error(f"'{key}' is {value!r}; a positive number is needed.")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not is_count(value):
            raise self.error(f"'{key}' is {value!r}; a positive whole number is needed.")
        return value

    def per_level(self, key: str, levels: int, default: Any = None, *, lists: bool = False) -> list:
        """A whole number (or, with `lists`, a list of them) for each level; a single number counts for all."""
        value = self.get(key, default)
        values = value if isinstance(value, list) else [value] * levels
        flat = [item for level in values for item in (level if lists and isinstance(level, list) else [level])]
        if len(values) != levels or not all(map(is_count, flat)):
            raise self.error(f"'{key}' is {value!r}; a positive whole number, or {levels} of them, are needed.")
        return values

    def choice(self, key: str, supported: Iterable[str | None], default: str) -> Any:
        """One of the supported words; null counts as a word of its own."""
        value = self.values.get(key, default)
        if value not in list(supported):
            raise self.error(f"'{key}' is {value!r}; ComfyUI can do {', '.join(map(str, supported))}.")
        return value

    def channels(self) -> tuple[int, list[int]]:
        """'block_out_channels' as the first width and the multiple of it at each level."""
        value = self.get("block_out_channels")
        if not isinstance(value, list) or not value or not all(map(is_count, value)):
            raise self.error(f"'block_out_channels' is {value!r}; a list of whole numbers is needed.")
        if any(item % 32 or item % value[0] for item in value):
            raise self.error(f"'block_out_channels' is {value!r}; ComfyUI needs multiples of 32 and of the first one.")
        return value[0], [item // value[0] for item in value]

    def must_be(self, supported: dict[str, Any]) -> None:
        """Refuse any value of these keys but the one that ComfyUI's module is written for."""
        for key, value in supported.items():
            if self.get(key, value) != value:
                raise self.error(f"'{key}' is {self.get(key)!r}; ComfyUI's model can only do {value!r}.")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """A positive whole number, and no larger than a layer of any of these models is wide."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**20
