"""Full-size models with generated weights: what a test or a benchmark needs where no checkpoint can be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from comfy.model_patcher import ModelPatcher

CONTEXT_WIDTH = 768
TOKENS = 77

# What ComfyUI detects in a Stable Diffusion 1.5 checkpoint.
SD15_UNET = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 320,
    "channel_mult": [1, 2, 4, 4],
    "num_res_blocks": [2, 2, 2, 2],
    "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "transformer_depth_middle": 1,
    "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "context_dim": CONTEXT_WIDTH,
    "use_spatial_transformer": True,
    "use_linear_in_transformer": False,
    "use_temporal_attention": False,
    "use_temporal_resblock": False,
    "use_checkpoint": False,
    "legacy": False,
    "adm_in_channels": None,
}


def sd15_model(seed: int) -> ModelPatcher:
    """A MODEL of Stable Diffusion 1.5's size (860 million weights, 3.4 GB in FP32) on the CPU, as a loader makes it."""
    import comfy.model_patcher
    import comfy.supported_models
    import torch

    config = comfy.supported_models.SD15(SD15_UNET)
    config.set_inference_dtype(torch.float32, None)
    cpu = torch.device("cpu")
    model = config.get_model({}, "", device=cpu)
    randomise(model.diffusion_model, seed)
    return comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def randomise(module: torch.nn.Module, seed: int) -> None:
    """Fill every weight so that activations keep their scale: variance 1 / fan-in, norms near 1, biases near 0.

    LeCun, Bottou, Orr and Mueller (1998). The same seed gives the same weights.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            if tensor.ndim > 1:
                tensor.normal_(0.0, tensor[0].numel() ** -0.5, generator=generator)
            else:
                tensor.normal_(0.0 if name.endswith("bias") else 1.0, 0.05, generator=generator)


def random_conditioning(seed: int) -> list:
    """A CONDITIONING of one prompt's size."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(1, TOKENS, CONTEXT_WIDTH, generator=generator), {}]]
