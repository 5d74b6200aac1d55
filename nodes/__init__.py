"""ComfyUI nodes; the only part of the pack that knows ComfyUI."""
