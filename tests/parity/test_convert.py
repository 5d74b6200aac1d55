"""A converted module computes what torch computes, at every size and batch, in and out of inference mode."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from openvino import Core
from ovpack.ov_backends.convert.text_encoder import convert_text_encoder
from ovpack.ov_backends.convert.trace import TraceInput, trace
from ovpack.ov_backends.convert.unet import convert_unet, timestep_embedding
from ovpack.ov_backends.convert.vae import convert_vae_decoder, convert_vae_encoder
from ovpack.ov_backends.errors import ConversionError
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.e2e

WIDTH, TEXT, POOLED = 32, 24, 20


class TinyUNet(nn.Module):
    """What makes a Stable Diffusion UNet, once each: timestep embedding, cross-attention, down, up and a skip."""

    def __init__(self, has_vector: bool = False):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.label = nn.Linear(POOLED, WIDTH) if has_vector else None
        self.enter = nn.Conv2d(4, WIDTH, 3, padding=1)
        self.down = nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.query, self.key_value = nn.Linear(WIDTH, WIDTH), nn.Linear(TEXT, 2 * WIDTH)
        self.leave = nn.Conv2d(2 * WIDTH, 4, 3, padding=1)

    def forward(self, sample, timestep, context, vector=None):
        embedding = self.time(self.embed(timestep))
        if self.label is not None:
            embedding = embedding + self.label(vector)
        skip = self.enter(sample) + embedding[:, :, None, None]
        h = self.down(F.silu(skip))
        query = self.query(h.flatten(2).transpose(1, 2))
        key, value = self.key_value(context).chunk(2, dim=-1)
        h = h + F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(h.shape)
        h = F.interpolate(h, size=skip.shape[2:], mode="nearest")
        return self.leave(torch.cat([h, skip], dim=1))

    def embed(self, timestep):
        """As in ComfyUI and in diffusers, written out again."""
        half = WIDTH // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(0, half, dtype=torch.float32) / half)
        arguments = timestep[:, None].float() * frequencies[None]
        return torch.cat([torch.cos(arguments), torch.sin(arguments)], dim=-1)


def run(model, inputs: dict[str, torch.Tensor], **properties: str) -> list[np.ndarray]:
    properties = {"INFERENCE_PRECISION_HINT": "f32", **properties}
    compiled = Core().compile_model(model, "CPU", properties)
    results = compiled({name: tensor.numpy() for name, tensor in inputs.items()})
    return [results[port] for port in compiled.outputs]


def largest_error(found: np.ndarray, expected: torch.Tensor) -> float:
    assert found.shape == tuple(expected.shape)
    return float(np.abs(found - expected.numpy()).max())


def unet_inputs(batch: int, height: int, width: int, tokens: int, has_vector: bool):
    torch.manual_seed(batch)
    inputs = {
        "sample": torch.randn(batch, 4, height, width),
        "timestep": torch.linspace(999.0, 1.0, batch),
        "context": torch.randn(batch, tokens, TEXT),
    }
    return inputs | ({"vector": torch.randn(batch, POOLED)} if has_vector else {})


@pytest.fixture(scope="module", params=[False, True], ids=["without vector", "with vector"])
def unet(request):
    torch.manual_seed(0)
    module = TinyUNet(request.param).eval()
    return module, convert_unet(module, 4, TEXT, POOLED if request.param else None)


@pytest.mark.parametrize("batch, height, width, tokens", [(1, 16, 16, 77), (2, 24, 8, 77), (3, 8, 10, 154)])
@torch.no_grad()
def test_a_unet_fed_with_the_embedding_equals_torch_fed_with_the_timestep(unet, batch, height, width, tokens):
    module, model = unet
    inputs = unet_inputs(batch, height, width, tokens, module.label is not None)
    expected = module(*inputs.values())
    inputs["timestep_embedding"] = timestep_embedding(inputs.pop("timestep"), WIDTH)
    assert largest_error(run(model, inputs)[0], expected) < 1e-4


def test_a_converted_unet_has_the_documented_ports(unet):
    module, model = unet
    names = ["sample", "timestep_embedding", "context", "vector"][: 3 + (module.label is not None)]
    assert [port.get_any_name() for port in model.inputs] == names
    assert [port.get_any_name() for port in model.outputs] == ["noise"]
    shapes = [str(port.get_partial_shape()) for port in model.inputs]
    assert shapes == ["[?,4,?,?]", f"[?,{WIDTH}]", f"[?,?,{TEXT}]", f"[?,{POOLED}]"][: len(names)]


def test_no_sine_of_a_large_number_is_left_for_the_npu(unet):
    assert not {node.get_type_name() for node in unet[1].get_ops()} & {"Sin", "Cos"}


def test_the_embedding_is_that_of_the_module_in_full_precision():
    timesteps = torch.tensor([0.0, 1.0, 499.5, 999.0])
    embedding = timestep_embedding(timesteps, WIDTH)
    assert embedding.dtype == torch.float32
    assert torch.allclose(embedding, TinyUNet().embed(timesteps), atol=1e-6)
    assert torch.equal(timestep_embedding(timesteps.half(), WIDTH)[1], embedding[1])


@torch.no_grad()
def test_a_static_unet_equals_the_dynamic_one(unet):
    module, model = unet
    inputs = unet_inputs(1, 16, 24, 77, module.label is not None)
    expected = module(*inputs.values())
    inputs["timestep_embedding"] = timestep_embedding(inputs.pop("timestep"), WIDTH)
    static = model.clone()
    static.reshape({name: list(tensor.shape) for name, tensor in inputs.items()})
    assert not static.is_dynamic()
    assert largest_error(run(static, inputs)[0], expected) < 1e-4


def test_a_unet_without_a_sinusoid_is_refused_with_the_kinds_that_work():
    class LearnedTime(TinyUNet):
        def embed(self, timestep):
            return timestep[:, None] * torch.ones(1, WIDTH)

    with pytest.raises(ConversionError, match="no sinusoidal timestep embedding; only UNets of the SD and SDXL kind"):
        convert_unet(LearnedTime().eval(), 4, TEXT)


# Text encoder and VAE


class TinyEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(TEXT, TEXT) for _ in range(3))
        self.norm = nn.LayerNorm(TEXT)

    def forward(self, embeds):
        hidden = []
        for layer in self.layers:
            embeds = embeds + torch.tanh(layer(embeds))
            hidden.append(embeds)
        return self.norm(embeds), torch.stack(hidden, dim=1)


@pytest.mark.parametrize("batch", [1, 3])
@torch.no_grad()
def test_a_text_encoder_returns_every_hidden_state_for_clip_skip(batch):
    torch.manual_seed(0)
    module = TinyEncoder().eval()
    model = convert_text_encoder(module, TEXT)
    embeds = torch.randn(batch, 77, TEXT)
    assert [port.get_any_name() for port in model.outputs] == ["last", "hidden"]
    for found, expected in zip(run(model, {"embeds": embeds}), module(embeds), strict=True):
        assert largest_error(found, expected) < 1e-5


@torch.no_grad()
def test_a_vae_decodes_and_encodes_every_size():
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=8), nn.Conv2d(8, 3, 1))
    encoder = nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.SiLU(), nn.Conv2d(8, 4, 1))
    decode, encode = convert_vae_decoder(decoder.eval(), 4), convert_vae_encoder(encoder.eval())
    for batch, height, width in ((1, 16, 16), (2, 5, 9)):
        latent = torch.randn(batch, 4, height, width)
        pixels = torch.randn(batch, 3, 8 * height, 8 * width)
        assert largest_error(run(decode, {"latent": latent})[0], decoder(latent)) < 1e-5
        assert largest_error(run(encode, {"pixels": pixels})[0], encoder(pixels)) < 1e-5


# Tracing


@torch.no_grad()
def test_tracing_works_in_comfyuis_inference_mode_and_with_weights_that_require_grad():
    module = nn.Linear(4, 4)
    with torch.inference_mode():
        made_inside = nn.Linear(4, 4)
        for module in (nn.Linear(4, 4), made_inside):
            model = trace(module, [TraceInput("x", torch.randn(2, 4), (-1, 4))], ["y"], "layer")
            x = torch.randn(3, 4)
            assert largest_error(run(model, {"x": x})[0], module(x)) < 1e-6


class Broken(nn.Module):
    def forward(self, x):
        raise RuntimeError("\n  this module is broken\nsecond line")


def test_a_module_that_cannot_be_traced_is_named_with_the_reason():
    with pytest.raises(ConversionError, match=r"The UNet could not be converted to OpenVINO IR: .+"):
        trace(Broken(), [TraceInput("x", torch.randn(2, 4), (-1, 4))], ["y"], "UNet")


def test_a_module_with_other_outputs_than_expected_is_named():
    with pytest.raises(ConversionError, match=r"The traced layer has 1 ports where \['last', 'hidden'\] were expected"):
        trace(nn.Linear(4, 4), [TraceInput("x", torch.randn(2, 4), (-1, 4))], ["last", "hidden"], "layer")
