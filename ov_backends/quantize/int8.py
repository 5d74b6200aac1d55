"""Float model -> quantized model that has passed the accuracy gate. nncf does the quantization."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import CalibrationError, QuantizeError, last_line
from ..memory import free_bytes
from ..progress import Progress, log_progress, with_heartbeat
from .decompress import decompress, weight_count
from .divergence import drifting_layers
from .gate import LIMIT, Gate, Runner, Sample, colour_shift, worst_cosine
from .saturation import cpu_saturates
from .scope import FLOAT_TYPES, float_layers, is_quantized, layers, left_in_float

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

log = logging.getLogger("ovnpu")

FEW_SAMPLES = 4
BYTES_PER_WEIGHT = 14
"""Memory that nncf takes while it calibrates. Stable Diffusion 1.5's UNet (860 million weights): 10.3 GB measured with
128x128 images; 512x512 took about 1.4 GB more than that before weights were decompressed."""
OUT_OF_MEMORY = ("bad_alloc", "bad allocation", "out of memory", "not enough memory", "allocate")
"""In the messages of nncf, OpenVINO and numpy where memory was short."""


@dataclass(frozen=True)
class Options:
    """How ranges are found and what the gate may spend.

    activation_range: "percentile" clips outliers at `percentile` per cent of the values, "min-max" keeps them.
    symmetric: of activations; None leaves it to nncf, which takes asymmetric ones for transformers. Weights are
    always symmetric. smooth_quant: strength with which outliers of activations
    move into the weights (Xiao et al., 2023); 0 turns it off. overflow_fix: leave a bit of the weights unused, for CPUs
    whose INT8 saturates; None: where this one does.
    rounds, restored_macs_share: what the repair may cost, as quantizations and as share of the MACs in float.
    """

    activation_range: str = "percentile"
    percentile: float = 99.99
    symmetric: bool | None = None
    smooth_quant: float = 0.95
    overflow_fix: bool | None = None
    keep_float: tuple[str, ...] = ()
    limit: float = LIMIT
    rounds: int = 4
    restored_macs_share: float = 0.15
    group_size: int = 64

    def __str__(self) -> str:
        """Part of the identity of what is made with them."""
        ranges = f"percentile {self.percentile}" if self.activation_range == "percentile" else self.activation_range
        kept = f", float {' '.join(sorted(self.keep_float))}" if self.keep_float else ""
        symmetric = {None: "nncf's choice", True: "symmetric", False: "asymmetric"}[self.symmetric]
        bits = "7-bit weights, " if self.needs_overflow_fix else ""
        gate = f"limit {self.limit}, group {self.group_size}"
        return f"{ranges}, {symmetric}, smooth {self.smooth_quant}, {bits}{gate}{kept}"

    @property
    def needs_overflow_fix(self) -> bool:
        return cpu_saturates() if self.overflow_fix is None else self.overflow_fix


@dataclass(frozen=True)
class Quantized:
    """A quantized model, what the gate said of it, and the layers that stay in floating point.

    kept_float: for their kind (timestep path, last convolution) or by request. unsupported: those that nncf left alone
    although they might have been quantized.
    """

    model: ov.Model
    precision: str
    gate: Gate
    kept_float: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)


def quantize(
    model: ov.Model,
    precision: str,
    samples: Sequence[Sample] = (),
    options: Options | None = None,
    progress: Progress = log_progress,
    held_out: Sequence[Sample] | None = None,
    title: str = "model",
) -> Quantized:
    """Quantize `model` and repair it until the gate passes or its budget is spent; `model` itself stays as it is.

    precision: "int8" (weights and activations, needs samples), "int8-weights" or "int4-weights".
    samples: inputs of real calls, name -> float [1, ...]; sizes may differ. held_out: inputs for the gate, by default
    every fourth sample, which then takes no part in the calibration.
    Raises CalibrationError (no samples, NaN), QuantizeError (already quantized, nothing to quantize, out of memory, or
    whatever stopped nncf).
    """
    options = options or Options()
    if reason := is_quantized(model):
        raise QuantizeError(f"The {title} is quantized already ({reason}); quantizing it again would ruin it.")
    if not layers(model):
        raise QuantizeError(f"The {title} has no convolution or matrix product: there is nothing to quantize.")
    _check_samples(samples, precision, title)
    if precision == "int8":
        _check_memory(model, title)
    calibration, held_out = (samples, held_out) if held_out is not None else split(samples)
    if precision == "int8" and len(samples) < FEW_SAMPLES:
        log.warning("Calibrating the %s with only %d samples; 40 or more make ranges reliable.", title, len(samples))
    judge = _Judge(model, held_out, title, progress)
    restored: list[str] = []
    for left in reversed(range(options.rounds)):
        quantized = _once(model, precision, calibration, options, restored, title, progress)
        gate = judge(quantized, options.limit, restored)
        log.info("%s %s: %s", title, precision, gate.text())
        if gate.passed or not left:
            break
        more = judge.worst_layers(quantized, gate, options.restored_macs_share)
        if not more:
            break
        restored = [*restored, *more]
    float_names = [*(float_layers(model) if precision == "int8" else []), *options.keep_float]
    known = {*float_names, *restored}
    unsupported = [name for name in left_in_float(quantized, precision) if name not in known]
    return Quantized(quantized, precision, gate, float_names, unsupported)


def split(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """(for calibration, for the gate): every fourth is held out; with fewer than eight all serve for both."""
    if len(samples) < 8:
        return list(samples), list(samples)
    return [s for i, s in enumerate(samples) if i % 4 != 3], list(samples[3::4])


def _check_samples(samples: Sequence[Sample], precision: str, title: str) -> None:
    import numpy as np

    if precision == "int8" and not samples:
        raise CalibrationError(
            f"INT8 for the {title} needs recorded inputs and there are none. Run it once in fp16 with recording on "
            "(NPU Calibrate), or give samples."
        )
    for index, sample in enumerate(samples):
        for name, array in sample.items():
            if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                raise CalibrationError(f"Calibration sample {index} has NaN or infinity in input '{name}'.")


def _check_memory(model: ov.Model, title: str) -> None:
    """Where memory runs out the operating system may end the whole process; so it is asked for before."""
    needed = BYTES_PER_WEIGHT * weight_count(model)
    if free_bytes() < needed:
        raise QuantizeError(
            f"Quantizing the {title} to INT8 takes about {needed / 1e9:.1f} GB of memory, and {free_bytes() / 1e9:.1f} "
            "GB are free. Close other programs, or choose int8-weights, which needs less."
        )


def _once(
    model: ov.Model, precision: str, samples: Sequence[Sample], options: Options, restored: list[str], title: str,
    progress: Progress,
) -> ov.Model:  # fmt: skip
    """One run of nncf with `restored` left in float."""
    text = f"Quantizing the {title} to {precision}, once for these weights"
    if restored:
        text = f"Quantizing the {title} again with {len(restored)} layers in float"
    names = list(dict.fromkeys([*restored, *options.keep_float]))
    reading = _Reading(samples)

    @_explained(title)
    def work() -> ov.Model:
        import nncf

        if precision != "int8":
            scope = nncf.IgnoredScope(names=names, validate=False)
            return nncf.compress_weights(model.clone(), ignored_scope=scope, **_weights_mode(precision, options))
        kept = list(dict.fromkeys([*names, *float_layers(model)]))
        scope = nncf.IgnoredScope(names=kept, types=list(FLOAT_TYPES), validate=False)
        return nncf.quantize(
            decompress(model.clone(), kept),
            nncf.Dataset(samples, reading),
            preset=_preset(options),
            subset_size=len(samples),
            ignored_scope=scope,
            # attention is recognized as such: its softmax and what feeds it are left alone or scaled with care
            model_type=nncf.ModelType.TRANSFORMER,
            fast_bias_correction=True,
            advanced_parameters=_advanced(options),
        )

    with _quiet_nncf():
        return with_heartbeat(work, text, progress, reading.state, reading.stop)


class _Reading:
    """Hands nncf the samples, which it goes through several times, counts how far it is, and can end it."""

    def __init__(self, samples: Sequence[Sample]):
        self._samples, self._read, self._is_stopped = len(samples), 0, False

    def __call__(self, sample: Sample) -> dict[str, np.ndarray]:
        if self._is_stopped:
            raise InterruptedError("stopped by the user")
        self._read += 1
        return dict(sample)

    def state(self) -> str:
        if not self._read:
            return ""
        passes, call = divmod(self._read - 1, self._samples)
        return f", pass {passes + 1}, call {call + 1}/{self._samples}"

    def stop(self) -> None:
        self._is_stopped = True


def _weights_mode(precision: str, options: Options) -> dict[str, Any]:
    import nncf

    if precision == "int8-weights":
        return {"mode": nncf.CompressWeightsMode.INT8_ASYM}
    return {"mode": nncf.CompressWeightsMode.INT4_SYM, "group_size": options.group_size, "ratio": 1.0}


def _preset(options: Options) -> Any:
    import nncf

    if options.symmetric is None:
        return None
    return nncf.QuantizationPreset.PERFORMANCE if options.symmetric else nncf.QuantizationPreset.MIXED


def _advanced(options: Options) -> Any:
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        AdvancedSmoothQuantParameters,
        OverflowFix,
    )
    from nncf.quantization.range_estimator import (
        AggregatorType,
        RangeEstimatorParameters,
        StatisticsCollectorParameters,
        StatisticsType,
    )

    parameters = AdvancedQuantizationParameters()
    if options.needs_overflow_fix:
        parameters.overflow_fix = OverflowFix.ENABLE
    strength = options.smooth_quant or -1  # nncf's "off"
    parameters.smooth_quant_alphas = AdvancedSmoothQuantParameters(convolution=-1, matmul=strength)
    if options.activation_range == "percentile":

        def end(aggregator: AggregatorType) -> StatisticsCollectorParameters:
            return StatisticsCollectorParameters(
                statistics_type=StatisticsType.QUANTILE,
                aggregator_type=aggregator,
                quantile_outlier_prob=(100 - options.percentile) / 100,
            )

        parameters.activations_range_estimator_params = RangeEstimatorParameters(
            min=end(AggregatorType.MIN), max=end(AggregatorType.MAX)
        )
    return parameters


@contextlib.contextmanager
def _explained(title: str) -> Iterator[None]:
    """What nncf or OpenVINO raise becomes a QuantizeError that says what to do."""
    try:
        yield
    except Exception as error:  # nncf raises many kinds
        said = str(error).strip() or type(error).__name__
        if isinstance(error, MemoryError) or any(word in said for word in OUT_OF_MEMORY):
            raise QuantizeError(
                f"There is not enough memory to quantize the {title} ({free_bytes() / 1e9:.1f} GB are free). Close "
                "other programs, record fewer or smaller calls (NPU Calibrate), or choose int8-weights, which needs "
                "less."
            ) from error
        raise QuantizeError(
            f"The {title} could not be quantized: {last_line(error)}. Choose fp16 or int8-weights."
        ) from error


@contextlib.contextmanager
def _quiet_nncf() -> Iterator[None]:
    """nncf's own bars and INFO lines stay out of the log: the progress text tells the same."""
    import nncf  # noqa: F401  importing it sets its logger's level

    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Judge:
    """Compares quantized models with the float one on held-out inputs; the float side runs once."""

    def __init__(self, model: ov.Model, held_out: Sequence[Sample], title: str, progress: Progress):
        self._model, self._held_out, self._title, self._progress = model, held_out, title, progress
        self._expected: list[list[np.ndarray]] = []

    def __call__(self, quantized: ov.Model, limit: float, restored: list[str]) -> Gate:
        if not self._held_out:
            return Gate(limit=limit, restored=restored)
        if not self._expected:
            self._expected = self._outputs(self._model, "float")
        given = self._outputs(quantized, "quantized")
        cosines = [worst_cosine(a, b) for a, b in zip(self._expected, given, strict=True)]
        share = _macs_share(self._model, restored, self._held_out[0])
        return Gate(cosines, limit, restored, share, colour_shift(self._expected, given))

    def _outputs(self, model: ov.Model, which: str) -> list[list[np.ndarray]]:
        text, explained = f"Checking the {self._title} ({which})", _explained(self._title)
        runner = with_heartbeat(explained(lambda: Runner(model)), text, self._progress)
        outputs = []
        for index, sample in enumerate(self._held_out):
            call = explained(partial(runner, sample))
            outputs.append(with_heartbeat(call, f"{text}, call {index + 1}/{len(self._held_out)}", self._progress))
        return outputs

    def worst_layers(self, quantized: ov.Model, gate: Gate, budget: float) -> list[str]:
        """The layers to return to float next, by the worst call; [] when the budget is spent or none stands out.

        A few at first, because most of the later drift is the first layers', carried on; twice as many each round.
        """
        restored = gate.restored
        worst = self._held_out[gate.cosines.index(min(gate.cosines))]
        drifting = drifting_layers(self._model, quantized, worst, self._progress)
        candidates = [layer.name for layer in drifting if layer.name not in restored]
        chosen: list[str] = []
        for name in candidates[: max(1, len(layers(self._model)) // 50, 2 * len(restored))]:
            if _macs_share(self._model, [*restored, *chosen, name], worst) > budget:
                break
            chosen.append(name)
        return chosen


def _macs_share(model: ov.Model, names: Sequence[str], sample: Sample) -> float:
    """Share of the MACs that the layers `names` have at the sample's size."""
    if not names:
        return 0.0
    from ..graph.costs import operator_costs

    static = model.clone()
    static.reshape({name: list(array.shape) for name, array in sample.items()})
    costs = operator_costs(static)
    return sum(c.macs for c in costs if c.name in set(names)) / max(1, sum(c.macs for c in costs))
