"""Pictures of a measurement, as PNG: time of each layer, and the roofline."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from .errors import FigureError
from .layer_times import LayerTime, LayerTimes
from .peaks import Theory
from .timing import milliseconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES = (11.0, 6.5)
DOTS_PER_INCH = 110
MOST_BARS = 20
MOST_NAMES = 5
"""Layers that are named in the roofline: the slowest ones."""
NAME_LENGTH = 44
COLOURS = ("#3b6fb6", "#d1783c", "#4d9a57", "#b0413e", "#8067ab", "#8a6d4f", "#c77cb0", "#6f6f6f")
"""Of the types that take most time, in that order; the last one for all others."""
LINE = "#303030"


def layer_times_png(times: LayerTimes, title: str) -> bytes:
    """The MOST_BARS slowest layers as bars, coloured by type, with the share of the whole at each."""
    return _drawn(lambda axes: _draw_bars(axes, times), title)


def roofline_png(times: LayerTimes, theory: Theory, title: str) -> bytes:
    """The roof of the device, the model under it, and its layers: the larger a circle, the longer it took.

    Across: MACs for each byte. Up: MACs a second. Both logarithmic (Williams, Waterman and Patterson, 2009).
    """
    return _drawn(lambda axes: _draw_roofline(axes, times, theory), title)


def _drawn(draw: Callable[[Axes], None], title: str) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FigureError(
            f"Pictures need matplotlib, which cannot be imported ({error}). Install it into the Python that runs this: "
            "python -m pip install matplotlib"
        ) from error
    # no pyplot: it keeps every figure until it is closed, and ComfyUI runs nodes in a thread
    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.add_subplot()
    draw(axes)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    file = io.BytesIO()
    canvas.print_png(file)
    return file.getvalue()


# Bars


def _draw_bars(axes: Axes, times: LayerTimes) -> None:
    layers = times.slowest(MOST_BARS)
    if not layers:
        _say(axes, "The device does not tell the times of its layers.")
        return
    colours = _colours(times)
    rows = range(len(layers))
    widths = [1e3 * layer.seconds for layer in layers]
    axes.barh(rows, widths, color=[colours.get(layer.type, COLOURS[-1]) for layer in layers])
    axes.set_yticks(rows, [_short(layer.operator) for layer in layers], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.01)
    for row, layer in enumerate(layers):
        share = f"{milliseconds(layer.seconds)}, {layer.seconds / times.seconds:.1%}"
        axes.annotate(
            share, (1e3 * layer.seconds, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
        )
    shown = sum(widths) / 1e3 / times.seconds
    axes.set_xlabel(
        f"ms; {len(layers)} of {len(times.layers)} layers, {shown:.0%} of {milliseconds(times.seconds)}. "
        "Measured with profiling on, which itself takes time."
    )
    _add_legend(axes, times, "lower right")


# Roofline


def _draw_roofline(axes: Axes, times: LayerTimes, theory: Theory) -> None:
    if not theory.macs:
        _say(axes, "This model has no multiply-accumulates, so there is no roofline.")
        return
    peak = theory.peak
    layers = [layer for layer in times.slowest(len(times.layers)) if layer.macs and layer.traffic_bytes]
    points = [(layer.macs / layer.traffic_bytes, layer.macs / layer.seconds) for layer in layers]
    whole = (theory.macs / max(1, theory.least_bytes), theory.macs / theory.measured_s)
    across, up = zip(whole, (peak.ridge, peak.macs_per_second), *points, strict=True)
    low, high = min(across) / 3, max(across) * 3
    ends = (low, peak.ridge, high)
    axes.plot(ends, [peak.attainable(x) for x in ends], color=LINE, lw=1.6)
    _draw_points(axes, times, layers, points)
    axes.scatter(*whole, marker="*", s=260, color=LINE, zorder=3)
    # room above for the text
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(min(up) / 2, max(up) * (max(up) / min(up)) ** 0.45))
    axes.set_xlabel("MACs for each byte of memory traffic")
    axes.set_ylabel("MACs a second")
    axes.grid(which="major", color="#e4e4e4", lw=0.6)
    axes.set_axisbelow(True)
    axes.text(
        0.01, 0.99, _roofline_text(layers, theory), va="top", fontsize=8.5, linespacing=1.4, transform=axes.transAxes
    )
    _add_legend(axes, times, "lower right")


def _draw_points(axes: Axes, times: LayerTimes, layers: list[LayerTime], points: list[tuple[float, float]]) -> None:
    """Circles whose area is the time; the slowest carry their number."""
    colours = _colours(times)
    for number, (layer, point) in enumerate(zip(layers, points, strict=True), start=1):
        area = 25 + 475 * layer.seconds / layers[0].seconds
        axes.scatter(*point, s=area, color=colours.get(layer.type, COLOURS[-1]), alpha=0.5, lw=0)
        if number <= MOST_NAMES:
            axes.annotate(str(number), point, ha="center", va="center", fontsize=9, fontweight="bold", color=LINE)


def _roofline_text(layers: list[LayerTime], theory: Theory) -> str:
    peak = theory.peak
    tops, bandwidth = 2 * peak.macs_per_second / 1e12, peak.bytes_per_second / 1e9
    origin = "measured here" if peak.source.startswith("measured") else "published figures"
    return "\n".join(
        [
            f"line: {peak.name} in {peak.arithmetic}, {tops:.3g} TOPS and {bandwidth:.3g} GB/s ({origin})",
            f"\u2605 whole model: {milliseconds(theory.measured_s)}, at best {milliseconds(theory.ideal_s)}; "
            f"{theory.macs_used:.1%} of the MACs, {theory.memory_used:.1%} of the bandwidth",
            *(
                f"{number} {_short(layer.operator)}: {milliseconds(layer.seconds)}"
                for number, layer in enumerate(layers[:MOST_NAMES], start=1)
            ),
        ]
    )


# Shared


def _colours(times: LayerTimes) -> dict[str, str]:
    """Types that have a colour of their own."""
    return dict(zip(times.by_type, COLOURS[:-1], strict=False))


def _add_legend(axes: Axes, times: LayerTimes, place: str) -> None:
    if not times.layers:
        return
    colours, whole = _colours(times), times.seconds
    for kind, colour in colours.items():
        axes.scatter([], [], s=60, marker="s", color=colour, label=f"{kind} {times.by_type[kind] / whole:.0%}")
    rest = sum(seconds for kind, seconds in times.by_type.items() if kind not in colours)
    if rest:
        axes.scatter([], [], s=60, marker="s", color=COLOURS[-1], label=f"other types {rest / whole:.0%}")
    axes.legend(loc=place, fontsize=8, frameon=True, framealpha=0.9, title="time by type of layer", title_fontsize=8)


def _say(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)


def _short(name: str) -> str:
    """The end of a long name, where layers of one model differ."""
    return name if len(name) <= NAME_LENGTH else "\u2026" + name[1 - NAME_LENGTH :]
