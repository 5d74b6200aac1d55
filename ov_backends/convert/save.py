"""ov.Model -> IR on disk, whole or not at all."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConversionError

if TYPE_CHECKING:
    import openvino as ov


def save_ir(model: ov.Model, path: Path, compress_to_fp16: bool = False) -> int:
    """Write `path` (.xml) and its .bin; the bytes written. A failed write leaves what was there before.

    compress_to_fp16: FP32 constants are stored in FP16, which is half the size and what NPU and GPU compute in.
    Raises ConversionError: another ending, no such folder, no permission, disk full.
    """
    import openvino as ov

    if path.suffix.lower() != ".xml":
        raise ConversionError(f"{path}: an OpenVINO IR ends in .xml; its weights go beside it into a .bin.")
    if not path.parent.is_dir():
        raise ConversionError(f"There is no folder {path.parent} to write {path.name} into; make it first.")
    try:
        # beside the target: only within one file system is a rename one step
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.stem}-", dir=path.parent))
    except OSError as error:
        raise ConversionError(f"{path} could not be written: {error.strerror}.") from error
    try:
        ov.save_model(model, temporary / "model.xml", compress_to_fp16=compress_to_fp16)
        if not _is_whole(temporary):
            free = shutil.disk_usage(path.parent).free / 1e6
            raise ConversionError(f"{path} was not written: the disk took only a part; {free:.0f} MB are free.")
        written = sum(file.stat().st_size for file in temporary.iterdir())
        _put_in_place(temporary, path)
    except (OSError, RuntimeError) as error:
        raise ConversionError(f"{path} could not be written: {_reason(error)}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return written


def _put_in_place(temporary: Path, path: Path) -> None:
    """Without its .xml a .bin is nothing: so at no moment do the two of different models stand together."""
    before = temporary / "before.xml"
    if path.exists():
        path.replace(before)
    try:
        (temporary / "model.bin").replace(path.with_suffix(".bin"))
    except OSError:  # Windows replaces no file that is in use
        if before.exists():
            before.replace(path)
        raise
    (temporary / "model.xml").replace(path)


def _is_whole(folder: Path) -> bool:
    """The writer of OpenVINO does not notice a full disk: see whether what the .xml refers to is there."""
    text = (folder / "model.xml").read_text(encoding="utf-8")
    ends = [int(a) + int(b) for a, b in re.findall(r'offset="(\d+)" size="(\d+)"', text)]
    return text.rstrip().endswith("</net>") and (folder / "model.bin").stat().st_size >= max(ends, default=0)


def _reason(error: OSError | RuntimeError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "no reason given"
