"""Times of layers go to the operators that they come from, and are drawn so that they can be read."""

from __future__ import annotations

import io
import sys

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from ovpack.ov_backends import figure
from ovpack.ov_backends.errors import FigureError
from ovpack.ov_backends.figure import layer_times_png, roofline_png
from ovpack.ov_backends.graph.costs import operator_costs
from ovpack.ov_backends.layer_times import LayerTime, LayerTimes, measure_layers
from ovpack.ov_backends.peaks import DevicePeak, Theory
from PIL import Image

PEAK = DevicePeak("a device", "int8", 2.5e12, 50e9, "measured here")
THEORY = Theory(PEAK, 10**9, 10**7, 10**8, 2e-3)
SIZE = tuple(round(side * figure.DOTS_PER_INCH) for side in figure.SIZE_INCHES)


def quiet(text: str) -> None:
    pass


def small_cnn() -> ov.Model:
    """Two convolutions with activation, a mean, a dense layer: x [1, 3, 64, 64] -> [1, 10]."""
    generator = np.random.default_rng(0)

    def weights(*shape: int) -> ov.Node:
        return ops.constant(generator.standard_normal(shape).astype(np.float32) / 8)

    x = ops.parameter([1, 3, 64, 64], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    first = ops.convolution(x, weights(16, 3, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1], name="first")
    scaled = ops.relu(ops.add(ops.multiply(first, weights(1, 16, 1, 1)), weights(1, 16, 1, 1)))
    second = ops.convolution(scaled, weights(32, 16, 3, 3), [2, 2], [1, 1], [1, 1], [1, 1], name="second")
    mean = ops.reduce_mean(ops.relu(second), ops.constant([2, 3]), False)
    dense = ops.add(ops.matmul(mean, weights(32, 10), False, False, name="dense"), weights(1, 10))
    return ov.Model([dense], [x], "small cnn")


def made_up(count: int) -> LayerTimes:
    kinds = ("Convolution", "MatMul", "Softmax", "Add", "Pool", "Norm", "Gather", "Concat", "Split")
    layers = [
        LayerTime(
            f"layer {n}", f"model/block{n}/op", kinds[n % len(kinds)], "k", (n + 1) * 1e-4, 10**7 * (n % 3), 10**5
        )
        for n in range(count)
    ]
    return LayerTimes(tuple(layers))


def opened(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def pixels(image: Image.Image, colour: str) -> int:
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.asarray(image) == wanted).all(-1).sum())


# Times of layers


def test_every_mac_of_the_model_is_found_in_a_layer_though_the_compiler_renames_them():
    model = small_cnn()
    times = measure_layers(model, "CPU", precision="fp32", progress=quiet)
    whole = sum(cost.macs for cost in operator_costs(model))
    found = {layer.operator: layer.macs for layer in times.layers if layer.macs}
    assert sum(found.values()) == whole
    assert found["first"] == 16 * 64 * 64 * 27 and found["second"] == 32 * 32 * 32 * 16 * 9
    assert all(layer.seconds > 0 and layer.kernel for layer in times.layers)


def test_traffic_is_what_a_layer_reads_and_writes():
    layer = next(
        one
        for one in measure_layers(small_cnn(), "CPU", precision="fp32", progress=quiet).layers
        if one.operator == "second"
    )
    least = 4 * (16 * 64 * 64 + 32 * 16 * 9 + 32 * 32 * 32)
    assert least <= layer.traffic_bytes <= 1.01 * least + 4 * 64


def test_layers_are_summed_by_type_and_the_slowest_come_first():
    times = made_up(12)
    assert times.seconds == pytest.approx(sum(range(1, 13)) * 1e-4)
    assert times.by_type["MatMul"] == pytest.approx((2 + 11) * 1e-4)
    assert list(times.by_type.values()) == sorted(times.by_type.values(), reverse=True)
    assert [layer.name for layer in times.slowest(2)] == ["layer 11", "layer 10"]
    assert "model/block11/op" in times.text() and "model/block0/op" not in times.text()
    assert times.as_json()["layers"][0]["macs"] == 0


def test_a_device_that_tells_no_times_is_said_to(tmp_path):
    nothing = LayerTimes(())
    assert "does not tell" in nothing.text()
    for png in (layer_times_png(nothing, "x"), roofline_png(nothing, THEORY, "x")):
        assert opened(png).size == SIZE


# Pictures


def test_bars_are_as_long_as_the_times_and_coloured_by_type():
    two = (("Convolution", 8e-3), ("Softmax", 2e-3))
    times = LayerTimes(tuple(LayerTime(kind, kind, kind, "k", seconds, 1, 1) for kind, seconds in two))
    image = opened(layer_times_png(times, "two layers"))
    assert image.size == SIZE
    long, short = (pixels(image, colour) for colour in figure.COLOURS[:2])
    assert long > 100_000 and long / short == pytest.approx(4, rel=0.05)


def test_many_layers_fit():
    image = opened(layer_times_png(made_up(300), "many"))
    first, last = (pixels(image, colour) for colour in (figure.COLOURS[0], figure.COLOURS[-1]))
    assert image.size == SIZE and first > 1000 and last > 1000, "types without a colour share the last one"


def test_the_roofline_shows_roof_model_and_layers():
    image = opened(roofline_png(made_up(12), THEORY, "roofline"))
    bare = opened(roofline_png(LayerTimes(()), THEORY, "roofline"))
    assert image.size == bare.size == SIZE
    assert pixels(bare, figure.LINE) > 1000, "roof and star"
    assert pixels(image, figure.COLOURS[0]) > 50, "legend"
    text = figure._roofline_text(made_up(12).slowest(12), THEORY)
    assert "5 TOPS and 50 GB/s (measured here)" in text and "1 model/block11/op: 1.20 ms" in text
    assert "2.00 ms, at best 0.400 ms; 20.0% of the MACs" in text


def test_a_model_without_macs_says_so():
    assert opened(roofline_png(made_up(3), Theory(PEAK, 0, 100, 100, 1e-3), "none")).size == SIZE


def test_names_are_cut_at_the_front():
    assert figure._short("a" * 50 + "end").endswith("end") and len(figure._short("a" * 53)) == figure.NAME_LENGTH
    assert figure._short("short") == "short"


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FigureError, match="python -m pip install matplotlib"):
        layer_times_png(made_up(3), "x")


def test_drawing_leaves_no_state_behind():
    layer_times_png(made_up(3), "x")
    assert "matplotlib.pyplot" not in sys.modules
