"""Calibration samples from files: arrays (.npz, .safetensors, a folder of .npy) or a folder of images."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CalibrationError
from ..inputs import random_inputs
from ..layout import LAYOUTS
from .options import check_inputs

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


@dataclass(frozen=True)
class ImageOptions:
    """How an image becomes a tensor: (rgb / 255 - mean) / scale, in `layout`; mean and scale: one number or three."""

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise CalibrationError(f"Unknown layout {self.layout!r}; choose {' or '.join(LAYOUTS)}.")
        for name, values in (("mean", self.mean), ("scale", self.scale)):
            if len(values) not in (1, 3):
                raise CalibrationError(f"--{name} has {len(values)} numbers; give one, or one for each colour.")
        if 0.0 in self.scale:
            raise CalibrationError("--scale holds a 0; images are divided by it.")


def add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help=".npz, .safetensors or folder, of which the first sample is taken; "
        "else random numbers",
    )  # fmt: skip


def read_input(file: Path | None, model: ov.Model) -> dict[str, np.ndarray]:
    """One input for `model`: the first sample of `file`, or random numbers."""
    return read_samples(file, model, ImageOptions())[0] if file else random_inputs(model)


def read_samples(source: Path, model: ov.Model, images: ImageOptions) -> list[dict[str, np.ndarray]]:
    """Inputs of calls, name -> array in the model's dtype and shape.

    .npz and .safetensors: one array for each input, its first dimension counting samples: [samples, 1, 3, 224, 224]
    or [samples, 3, 224, 224] for an input [1, 3, 224, 224]. A folder: one .npy or image a sample, for models with one
    input. Raises CalibrationError that names the file.
    """
    if not source.exists():
        raise CalibrationError(f"There are no samples at {source}.")
    if source.is_dir():
        return _from_folder(source, model, images)
    arrays = _arrays(source)
    counts = {name: len(array) for name, array in arrays.items() if array.ndim}
    names = [_name_in(arrays, port, source) for port in model.inputs]
    if len({counts.get(name, 0) for name in names}) != 1 or not counts.get(names[0]):
        found = ", ".join(f"{name} {list(arrays[name].shape)}" for name in names)
        raise CalibrationError(
            f"{source}: the first dimension of each array counts samples, so all must be equal and not 0: {found}."
        )
    ports = list(zip(names, model.inputs, strict=True))
    samples = [{name: _one(arrays[name][i], port) for name, port in ports} for i in range(counts[names[0]])]
    return [check_inputs(model, sample, f"{source}, sample {i}") for i, sample in enumerate(samples)]


def _name_in(arrays: dict[str, np.ndarray], port: ov.Output, source: Path) -> str:
    found = [name for name in port.get_names() if name in arrays]
    if not found:
        raise CalibrationError(f"{source} has no array '{port.get_any_name()}'; it has {', '.join(arrays) or 'none'}.")
    return found[0]


def _one(array: np.ndarray, port: ov.Output) -> np.ndarray:
    """One sample, with the batch dimension that the model wants and files mostly leave out."""
    return array[None] if array.ndim + 1 == len(port.get_partial_shape()) else array


def _arrays(source: Path) -> dict[str, np.ndarray]:
    import numpy as np

    try:
        if source.suffix.lower() == ".npz":
            with np.load(source, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        if source.suffix.lower() == ".safetensors":
            from safetensors import SafetensorError
            from safetensors.numpy import load_file

            try:
                return load_file(source)
            except SafetensorError as error:
                raise CalibrationError(f"{source} is damaged, or it is not safetensors: {error}") from error
    except (OSError, ValueError, KeyError) as error:
        raise CalibrationError(f"{source} cannot be read as {source.suffix}: {error}") from error
    raise CalibrationError(f"{source}: samples are .npz, .safetensors, or a folder of .npy files or images.")


def _from_folder(folder: Path, model: ov.Model, images: ImageOptions) -> list[dict[str, np.ndarray]]:
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in (".npy", *IMAGES))
    if not files:
        raise CalibrationError(f"The folder {folder} has no .npy files and no images ({', '.join(IMAGES)}).")
    if len(model.inputs) != 1:
        raise CalibrationError(
            f"A folder serves models with one input, and this has {len(model.inputs)}. Give an .npz with one array for "
            "each input."
        )
    port = model.input(0)
    samples = []
    for file in files:
        array = _read_array(file) if file.suffix.lower() == ".npy" else _read_image(file, port, images)
        samples.append(check_inputs(model, {port.get_any_name(): _one(array, port)}, str(file)))
    return samples


def _read_array(file: Path) -> np.ndarray:
    import numpy as np

    try:
        return np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{file} cannot be read: {error}") from error


def _read_image(file: Path, port: ov.Output, options: ImageOptions) -> np.ndarray:
    """[1, 3, height, width] or [1, height, width, 3], resized to the model's size where that is fixed."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
    except OSError as error:
        raise CalibrationError(f"{file} cannot be read as an image: {error}") from error
    shape = port.get_partial_shape()
    if len(shape) != 4:
        raise CalibrationError(f"Input '{port.get_any_name()}' is {shape}, which takes no images; give arrays.")
    height, width = (shape[options.layout.index(side)] for side in "HW")
    if height.is_static and width.is_static:
        image = image.resize((width.get_length(), height.get_length()), Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.float32) / 255
    array = (array - np.asarray(options.mean, np.float32)) / np.asarray(options.scale, np.float32)
    return (array.transpose(2, 0, 1) if options.layout == "NCHW" else array)[None]


def numbers(text: str) -> tuple[float, ...]:
    """'0.485,0.456,0.406' -> three numbers; for argparse."""
    return tuple(float(part) for part in _parts(text))


def _parts(text: str) -> Sequence[str]:
    return [part for part in text.replace(" ", ",").split(",") if part]
