"""Nodes that load models."""

from __future__ import annotations

from comfy_api.latest import io

from . import folder as folders


class LoadFolder(io.ComfyNode):
    """A diffusers folder as ordinary MODEL, CLIP and VAE."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_LoadFolder",
            display_name="Load Diffusers Folder (OpenVINO NPU)",
            category="OpenVINO NPU/loaders",
            description="Loads a diffusers folder of the SD 1.x, SD 2.x or SDXL family, of any size.",
            inputs=[
                io.Combo.Input(
                    "folder",
                    options=folders.list_folders(),
                    default=folders.DEMO,
                    tooltip="Folders below ComfyUI's models/diffusers; 'demo' comes with this pack.",
                )
            ],
            outputs=[io.Model.Output(), io.Clip.Output(), io.Vae.Output()],
        )

    @classmethod
    def fingerprint_inputs(cls, folder: str, **kwargs) -> str:
        return folders.fingerprint(folder)

    @classmethod
    def execute(cls, folder: str) -> io.NodeOutput:
        return io.NodeOutput(*folders.load_folder(folders.find_folder(folder)))
