"""Every error this pack raises on purpose. Each message says what was found, where, and what to do."""

from __future__ import annotations


class OVNPUError(Exception):
    """Base of all errors meant for the user's eyes; anything else is a programming error and is let through."""


class DeviceError(OVNPUError):
    """The device asked for is not there, or refused the model, and the policy does not allow another one."""


class ShapeError(OVNPUError):
    """A shape is dynamic where it must be static, or does not fit the compiled model."""


class TensorError(OVNPUError):
    """A tensor has a layout, a dtype or a size that cannot be used here."""


class ConversionError(OVNPUError):
    """A torch module could not be turned into OpenVINO IR."""


class CompileError(OVNPUError):
    """The device's compiler refused the model."""


class InferenceError(OVNPUError):
    """A compiled model failed while running, or returned numbers that cannot be used."""


class ModelFolderError(OVNPUError):
    """A model folder or file is missing, damaged or of an architecture that is not supported."""


class PlanError(OVNPUError):
    """A device plan holds a value that does not exist, such as an unknown precision or preset."""


class FallbackError(OVNPUError):
    """Something would have run elsewhere than asked, and the policy is 'error'."""


class CalibrationError(OVNPUError):
    """Calibration samples are missing, damaged, or belong to another model."""


class QuantizeError(OVNPUError):
    """A model cannot be quantized: it already is, or its layers offer nothing to quantize."""


class CompareError(OVNPUError):
    """Two models cannot be compared: they have nothing in common, or other shapes."""


class UseError(OVNPUError):
    """Options of the command line that contradict each other, or that lack something."""


class FigureError(OVNPUError):
    """A picture cannot be drawn because what draws it is not installed."""


class CompilerMissingError(OVNPUError):
    """There is no NPU compiler on this machine."""


class SetupError(OVNPUError):
    """Something that is fetched once could not be set up: a program is missing, or the network."""


def last_line(error: BaseException | str) -> str:
    """What an error of OpenVINO says; the lines before its last one say where in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "no reason given"
