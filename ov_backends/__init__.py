"""OpenVINO backend: devices, conversion, compilation, cache and sessions. Imports nothing of ComfyUI."""
