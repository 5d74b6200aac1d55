"""ComfyUI-OpenVINO-NPU: Stable Diffusion on the Intel NPU, iGPU or CPU through OpenVINO."""

import logging

__version__ = "0.1.0"

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    """Called by ComfyUI. Imports happen here, so that a failure is logged whole and the server goes on."""
    from comfy_api.latest import ComfyExtension

    try:
        from .nodes.registry import NODES
    except Exception:
        logging.getLogger("ovnpu").exception("ComfyUI-OpenVINO-NPU could not be loaded.")
        raise

    class Extension(ComfyExtension):
        async def get_node_list(self):
            return list(NODES)

    return Extension()
