"""Sizes of the demo model's submodels for the 128x128 images that it draws."""

SHAPES = {
    "unet": {"sample": [1, 4, 16, 16], "timestep_embedding": [1, 64], "context": [1, 77, 64]},
    "vae_decoder": {"latent": [1, 4, 16, 16]},
    "text_encoder": {"embeds": [1, 77, 64]},
}
