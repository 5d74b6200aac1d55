"""Model files below ComfyUI's model folders "openvino" and "onnx"."""

from __future__ import annotations

import os
from pathlib import Path

import folder_paths

from ..ov_backends.convert.file import FORMATS
from ..ov_backends.errors import ModelFolderError

FOLDER = "openvino"
SAVED_MODEL = "saved_model.pb"
SUFFIXES = frozenset(FORMATS)

# known to ComfyUI, so that extra_model_paths.yaml can name more folders of this kind
folder_paths.add_model_folder_path(FOLDER, os.path.join(folder_paths.models_dir, FOLDER))


def list_models() -> list[str]:
    """Names of the models that can be loaded now, by their path below a model folder."""
    return sorted(_models())


def find_model(name: str) -> Path:
    """The file or SavedModel folder behind a name of `list_models`, and nothing else: no path leads out of there."""
    models = _models()
    if not isinstance(name, str) or name not in models:
        kinds = ", ".join(sorted(SUFFIXES))
        raise ModelFolderError(
            f"There is no model {name!r}. Found: {', '.join(sorted(models)) or 'none'}. Put the file ({kinds}, or a "
            f"SavedModel folder) into {' or '.join(_roots())}; links to folders are not followed."
        )
    return models[name]


def _roots() -> list[str]:
    names = folder_paths.folder_names_and_paths
    onnx = names["onnx"][0] if "onnx" in names else [os.path.join(folder_paths.models_dir, "onnx")]
    return list(dict.fromkeys([*folder_paths.get_folder_paths(FOLDER), *onnx]))


def _models() -> dict[str, Path]:
    """Every model by its name; the first of several with one name counts, as for ComfyUI's own models."""
    found: dict[str, Path] = {}
    for root in map(Path, _roots()):
        for where, folders, files in os.walk(root):
            folder = Path(where)
            if SAVED_MODEL in files and folder != root:
                found.setdefault(folder.relative_to(root).as_posix(), folder)
                # what is below it is a part of it
                folders.clear()
                continue
            for name in files:
                if Path(name).suffix.lower() in SUFFIXES:
                    found.setdefault((folder / name).relative_to(root).as_posix(), folder / name)
    return found
