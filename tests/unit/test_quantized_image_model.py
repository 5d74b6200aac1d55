"""Run Model in int8: the first batch is recorded in floating point, the next one runs in INT8."""

from __future__ import annotations

import openvino as ov
import pytest
import torch
from openvino import opset13 as ops
from ovpack.ov_backends.plan import SubmodelPlan
from ovpack.ov_backends.report import RunReport
from ovpack.ov_backends.runtime.image_model import ImageModel
from ovpack.ov_backends.runtime.model_file import ModelFile
from ovpack.ov_backends.runtime.pixels import Pixels
from ovpack.ov_backends.runtime.store import SubmodelStore

pytestmark = pytest.mark.usefixtures("clean_environment")
EDGE = 16


@pytest.fixture
def file(tmp_path):
    """Two convolutions over an image and their mean."""
    generator = torch.Generator().manual_seed(1)
    x = ops.parameter([1, 3, EDGE, EDGE], ov.Type.f32, name="image")
    layer = x
    for channels_in, channels_out in ((3, 8), (8, 8)):
        weights = torch.randn(channels_out, channels_in, 3, 3, generator=generator).numpy() / 5
        layer = ops.relu(ops.convolution(layer, weights, [1, 1], [1, 1], [1, 1], [1, 1]))
    model = ov.Model([ops.reduce_mean(layer, ops.constant([2, 3]), False)], [x], "net")
    ov.save_model(model, tmp_path / "net.xml", compress_to_fp16=False)
    return ModelFile("net.xml", tmp_path / "net.xml", {}, ())


def batch(file, store, images: int):
    """(outputs, report) of a batch as the node runs it."""
    report = RunReport().submodel("model", "CPU", file.name)
    pixels = Pixels.parse("0", "1", scale=1.0, order="RGB", layout="auto")
    model = ImageModel(file, pixels, "resize", SubmodelPlan("CPU", "int8"), "warn", store)
    generator = torch.Generator().manual_seed(2)
    outputs = [
        next(
            iter(
                model.run(torch.rand(1, EDGE, EDGE, 3, generator=generator), report, lambda text: None).outputs.values()
            )
        )
        for _ in range(images)
    ]
    model.finish(f"{images} images", report, lambda text: None)
    return torch.cat(outputs), report


def test_a_batch_calibrates_the_next(file, cache):
    store = SubmodelStore(cache)
    first, report = batch(file, store, 8)
    assert report.precision == "fp32" and report.quantization["used"] and report.quantization["samples"] == 8
    second, report = batch(file, store, 8)
    assert report.precision == "int8"
    similarity = torch.nn.functional.cosine_similarity(first.flatten(), second.flatten(), dim=0)
    assert similarity >= 0.99 and not torch.equal(first, second)


def test_single_images_add_up(file, cache):
    store = SubmodelStore(cache)
    precisions = [batch(file, store, 1)[1].precision for _ in range(5)]
    assert precisions == ["fp32"] * 4 + ["int8"]
