"""Every node of the pack."""

from __future__ import annotations

from .apply import CLIP, VAE, Model
from .calibrate import Calibrate
from .compare import Compare
from .loaders import LoadFolder
from .models import LoadModel, RunModel
from .precision import Plans
from .report import Report
from .samplers import KSampler, KSamplerAdvanced
from .tools import Benchmark
from .upscale import Upscale

NODES = (
    KSampler,
    KSamplerAdvanced,
    Model,
    CLIP,
    VAE,
    Plans,
    Calibrate,
    Compare,
    LoadFolder,
    Upscale,
    Report,
    LoadModel,
    RunModel,
    Benchmark,
)
