"""Upscale models run on OpenVINO tile by tile, and the image is the one that torch makes of the whole."""

from __future__ import annotations

import gc
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from ovpack.ov_backends.compiler.cache import CompileCache
from ovpack.ov_backends.errors import ConversionError, DeviceError, FallbackError, OVNPUError, TensorError
from ovpack.ov_backends.runtime import store as stores
from ovpack.ov_backends.runtime.session import Session

pytestmark = pytest.mark.e2e

TILE, OVERLAP = 32, 16
REACH = 4
"""Pixels that `compact` sees around each: one for each of its 3x3 convolutions. A quarter of the overlap hides them."""


@cache
def compact(scale: int = 2, seed: int = 0):
    """Real-ESRGAN Compact with random weights: 4 convolutions, 8 features, pixel shuffle; a model for each seed."""
    from spandrel import ModelLoader
    from spandrel.architectures.Compact import Compact

    torch.manual_seed(seed)
    model = Compact(num_feat=8, num_conv=2, upscale=scale)
    return ModelLoader().load_from_state_dict(model.state_dict()).eval()


@cache
def esrgan(plus_unshuffle: bool = False):
    """ESRGAN with random weights: 1 residual dense block, 8 features; Real-ESRGAN's x2 first folds 2x2 pixels."""
    from spandrel import ModelLoader
    from spandrel.architectures.ESRGAN import ESRGAN

    torch.manual_seed(0)
    unshuffle = {"in_nc": 12, "shuffle_factor": 2} if plus_unshuffle else {}
    model = ESRGAN(num_filters=8, num_blocks=1, scale=4, **unshuffle)
    return ModelLoader().load_from_state_dict(model.state_dict()).eval()


@cache
def swinir():
    """SwinIR with random weights: attention in windows of 8, whose masks depend on the size of the image."""
    from spandrel import ModelLoader
    from spandrel.architectures.SwinIR import SwinIR

    torch.manual_seed(0)
    model = SwinIR(
        img_size=16, window_size=8, embed_dim=12, depths=[2], num_heads=[2], mlp_ratio=2.0, upscale=2,
        upsampler="pixelshuffledirect", img_range=1.0, resi_connection="1conv",
    )  # fmt: skip
    return ModelLoader().load_from_state_dict(model.state_dict()).eval()


def picture(height: int, width: int, batch: int = 1) -> torch.Tensor:
    """IMAGE of soft waves with grain, different in each of the batch."""
    generator = torch.Generator().manual_seed(height * width)
    y, x = torch.meshgrid(torch.arange(height) / 9, torch.arange(width) / 7, indexing="ij")
    waves = torch.stack([torch.sin(x + y), torch.cos(x - y), torch.sin(2 * x)], -1) / 4 + 0.5
    return (waves + 0.1 * torch.randn(batch, height, width, 3, generator=generator)).clamp(0, 1)


def on_torch(model, image: torch.Tensor) -> torch.Tensor:
    """The whole image at once, by spandrel."""
    return torch.cat([model(one) for one in image.movedim(-1, 1).split(1)]).movedim(1, -1)


@pytest.fixture(scope="module")
def node(comfy):
    """The node and the modules behind it."""
    from ovpack.nodes import host, upscale
    from ovpack.nodes.seams import upscale as seam

    def run(model, image, device="CPU", tile=TILE, overlap=OVERLAP, policy="warn") -> torch.Tensor:
        return upscale.Upscale.execute(model, image, device, tile, overlap, policy)[0]

    return SimpleNamespace(run=run, host=host, seam=seam, execute=upscale.Upscale.execute)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> stores.SubmodelStore:
    """One store for all tests here: most use the same model, which is then compiled once."""
    return stores.SubmodelStore(CompileCache(tmp_path_factory.mktemp("cache"), 10**9))


@pytest.fixture(autouse=True)
def fresh(node, shared, clean_environment, monkeypatch):
    """An empty report for each test."""
    monkeypatch.setattr(node.seam, "store", lambda: shared)
    node.host._reports.clear()
    with torch.inference_mode():
        yield


def report(node):
    return node.host.current_report().submodel("upscaler", "")


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape and a.dtype == b.dtype == torch.float32
    return float((a - b).abs().max())


@pytest.mark.parametrize(
    "height, width, batch",
    [(32, 32, 1), (48, 80, 1), (45, 67, 1), (32, 131, 1), (97, 33, 2)],
    ids=["one tile", "multiples", "odd sizes", "a strip", "a batch"],
)
def test_no_seam_no_edge_no_size_shows(node, height, width, batch):
    """Equal to torch on the whole image everywhere, up to what rounding the weights to FP16 costs."""
    model, image = compact(), picture(height, width, batch)
    upscaled = node.run(model, image)
    assert difference(upscaled, on_torch(model, image)) < 2e-3
    tiles = batch * len(node.seam._tiling(model, image, TILE, OVERLAP))
    assert (report(node).openvino_calls, report(node).torch_calls) == (tiles, 0)
    assert report(node).compilations == 1, "one shape, whatever the image's"


@pytest.mark.parametrize("height, width", [(20, 27), (9, 70), (70, 9), (1, 5)])
def test_an_image_smaller_than_a_tile_is_padded_by_its_mirror_image(node, height, width):
    """What spandrel itself does for models that need a size; the rest of the image is as on torch."""
    model, image = compact(), picture(height, width)
    upscaled = node.run(model, image)
    padded = node.seam.Tiling(height, width, TILE, TILE, OVERLAP)
    from ovpack.ov_backends.tiles import pad

    larger = pad(image.movedim(-1, 1), padded.tile_height, padded.tile_width).movedim(1, -1)
    expected = on_torch(model, larger)[:, : 2 * height, : 2 * width]
    assert difference(upscaled, expected) < 2e-3
    inside = slice(0, 2 * max(height - REACH, 0)), slice(0, 2 * max(width - REACH, 0))
    whole = on_torch(model, image)
    if height > REACH and width > REACH:
        assert difference(upscaled[:, *inside], whole[:, *inside]) < 2e-3


def test_the_stock_node_gives_the_same_image(node):
    from comfy_extras.nodes_upscale_model import ImageUpscaleWithModel

    model, image = compact(scale=4), picture(45, 67, 2)
    assert difference(node.run(model, image), ImageUpscaleWithModel.execute(model, image)[0]) < 2e-3


def test_seams_show_less_than_with_comfyuis_own_tiles(node):
    """ESRGAN sees farther than the overlap reaches: no tiling is exact, and this one must be the closer."""
    from comfy.utils import tiled_scale

    model, image = esrgan(), picture(45, 80)
    whole = on_torch(model, image)
    comfys = tiled_scale(image.movedim(-1, 1), model, TILE, TILE, OVERLAP, model.scale).clamp(0, 1).movedim(1, -1)
    ours = node.run(model, image)
    print(
        "ours",
        difference(ours, whole),
        "comfy",
        difference(comfys, whole),
        float((ours - whole).abs().mean()),
        float((comfys - whole).abs().mean()),
    )
    assert difference(ours, whole) < 0.5 * difference(comfys, whole)


@pytest.mark.parametrize(
    "make, tile",
    [(esrgan, 32), (lambda: esrgan(plus_unshuffle=True), 33), (lambda: compact(3), 33), (swinir, 12)],
    ids=["ESRGAN x4", "Real-ESRGAN x2", "Compact x3", "SwinIR"],
)
def test_architectures_come_through_with_the_tile_they_need(node, make, tile):
    """One tile each, so that the model's own field of view does not matter."""
    model = make()
    padding, _ = model.size_requirements.get_padding(tile, tile)
    image = picture(tile + padding, tile + padding)
    upscaled = node.run(model, image, tile=tile, overlap=8)
    assert upscaled.shape[1:3] == ((tile + padding) * model.scale,) * 2
    expected = on_torch(model, image)
    assert difference(upscaled, expected) < 0.01 * float(expected.std()) + 2e-3
    assert report(node).torch_calls == 0, report(node).notices


def test_the_emulated_npu_gets_one_tile_a_request_and_gives_the_same_image(node, emulated_npu):
    model, image = compact(), picture(45, 131)
    upscaled = node.run(model, image, device="NPU")
    assert difference(upscaled, on_torch(model, image)) < 2e-3
    assert report(node).actual_device == "NPU (emulated on CPU)"
    tiles = len(node.seam._tiling(model, image, TILE, OVERLAP))
    assert report(node).openvino_calls == 1 + -(-(tiles - 1) // node.seam.IN_FLIGHT), "the first tile goes alone"


def test_a_second_image_of_another_size_compiles_nothing(node, shared):
    model = compact(seed=2)
    node.run(model, picture(40, 40))
    assert (report(node).cache_state, report(node).compilations) == ("miss", 1)
    node.host._reports.clear()
    node.run(model, picture(64, 33))
    assert (report(node).cache_state, report(node).compilations) == ("hit", 1)
    node.host._reports.clear()
    shared._submodels.clear()  # as in a new process
    node.run(model, picture(64, 33))
    assert (report(node).cache_state, report(node).compilations, report(node).conversions) == ("hit", 0, 0)


def test_other_weights_are_another_model(node):
    image = picture(32, 32)
    for seed in (0, 1):
        model = compact(seed=seed)
        assert difference(node.run(model, image), on_torch(model, image)) < 2e-3


def test_half_precision_weights_are_converted_in_full(node):
    """As a workflow leaves them that ran the model in FP16 on a GPU; the model itself stays as it is."""
    model, image = compact(seed=3), picture(32, 32)
    expected = on_torch(model, image)
    model.half()
    assert difference(node.run(model, image), expected) < 2e-3
    assert model.dtype == torch.float16


def test_a_dropped_model_frees_what_was_compiled_from_it(node, shared):
    model = compact.__wrapped__(seed=4)
    node.run(model, picture(32, 32))
    weights = next(reversed(shared._submodels))[2]
    del model
    gc.collect()
    node.run(compact(), picture(32, 32))
    assert weights not in [key[2] for key in shared._submodels]


def test_the_report_is_on_the_node_and_names_the_upscaler(node):
    output = node.execute(compact(), picture(32, 32), "CPU", TILE, OVERLAP, "warn")
    assert "| upscaler | CPU | fp32 |" in output[1]
    assert "upscaler: CPU fp32" in output.ui["text"][0]


def test_progress_counts_the_tiles(node, monkeypatch):
    from comfy import utils

    counts = []
    monkeypatch.setattr(utils, "PROGRESS_BAR_HOOK", lambda done, total, *_, **__: counts.append((done, total)))
    node.run(compact(), picture(32, 100, 2))
    tiles = len(counts)
    assert tiles > 4 and counts == [(i + 1, tiles) for i in range(tiles)]


@pytest.mark.parametrize("when", ["Converting", "Upscaling"])
def test_cancel_stops_it(node, monkeypatch, when):
    from comfy import model_management

    def cancel(text: str) -> None:
        if text.startswith(when):
            model_management.interrupt_current_processing()

    monkeypatch.setattr(node.host, "show", cancel)
    with pytest.raises(model_management.InterruptProcessingException):
        node.run(compact(seed=6 if when == "Converting" else 0), picture(32, 200))
    assert report(node).torch_calls == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_spoiled_tile_sends_the_image_to_torch_or_stops(node, monkeypatch, value):
    honest = Session.__call__

    def spoil(self, inputs):
        outputs, seconds = honest(self, inputs)
        return {name: torch.full_like(tensor, value) for name, tensor in outputs.items()}, seconds

    monkeypatch.setattr(Session, "__call__", spoil)
    model, image = compact(), picture(40, 60)
    assert difference(node.run(model, image), on_torch(model, image)) < 1e-5
    assert report(node).torch_calls == 1 and "NaN or infinity on CPU in fp32" in report(node).notices[0]
    with pytest.raises(OVNPUError, match="NaN or infinity"):
        node.run(model, image, policy="error")


def test_infinity_is_not_hidden_by_the_clamp_of_the_model(node):
    """Spandrel clamps to 0..1, and FP16's infinity would leave that as white."""
    model, image = compact(seed=5), picture(32, 32)
    model.model.body[-1].bias.data[:] = float("inf")
    node.run(model, image)
    assert "NaN or infinity" in report(node).notices[0]


def test_a_model_that_does_not_convert_runs_on_torch_and_says_why(node, monkeypatch):
    model, image = compact(seed=7), picture(40, 60)
    with monkeypatch.context() as broken, pytest.raises(OVNPUError, match="The upscaler could not be converted"):
        broken.setattr(type(model.model), "forward", lambda self, x: torch.linalg.eig(x)[0].real)
        node.run(model, image, policy="error")
    monkeypatch.setattr(node.seam, "convert_upscaler", _refuse)
    assert difference(node.run(model, image), on_torch(model, image)) < 1e-5
    assert report(node).torch_calls == 1 and "no such operator" in report(node).notices[0]


def _refuse(*_):
    raise ConversionError("no such operator")


def test_a_device_that_is_not_there_follows_the_policy(node):
    model, image = compact(), picture(32, 32)
    with pytest.raises(DeviceError, match="upscaler was to run on NPU"):
        node.run(model, image, device="NPU", policy="error")
    assert difference(node.run(model, image, device="NPU"), on_torch(model, image)) < 2e-3
    assert "instead of NPU" in report(node).notices[0]


def test_models_that_fail_in_fp16_ask_for_fp32(node, emulated_npu):
    model = swinir()
    assert not model.supports_half
    node.run(model, picture(16, 16), device="NPU", tile=12, overlap=8)
    assert "fp32 was asked for; the NPU computes in fp16" in report(node).notices[0]


def test_a_foreign_upscale_model_goes_to_the_stock_node(node, monkeypatch):
    class Foreign:
        pass

    with pytest.raises(FallbackError, match="Foreign is not an upscale model"):
        node.run(Foreign(), picture(32, 32), policy="error")
    monkeypatch.setattr(node.seam, "_on_torch", lambda model, image: image)
    assert difference(node.run(Foreign(), picture(32, 32)), picture(32, 32)) == 0
    assert report(node).torch_calls == 1


@pytest.mark.parametrize(
    "channels, overlap, message",
    [(4, 16, "takes images of 3 channels; the image has 4"), (3, 32, "Tiles of 32x32 cannot overlap by 32 pixels")],
)
def test_wrong_input_is_an_error_and_no_reason_for_torch(node, channels, overlap, message):
    with pytest.raises(TensorError, match=message):
        node.run(compact(), torch.rand(1, 40, 40, channels), overlap=overlap)
