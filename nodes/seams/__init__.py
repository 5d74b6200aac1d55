"""How a compiled submodel is put into ComfyUI's MODEL, CLIP and VAE."""
