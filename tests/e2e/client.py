"""What the tests need of a server beside its ComfyServer methods."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import numpy as np
import torch
import websocket
from comfy_server import ComfyServer
from demo_run import first_image
from PIL import Image
from safetensors.torch import load_file

EMULATED = {"OVNPU_NPU_EMULATION": "1"}
TEXT_FRAME = 3
"""ComfyUI's number for a binary websocket message with text for a node."""


def output_latent(server: ComfyServer, prefix: str) -> torch.Tensor:
    """The latent that SaveLatent wrote: float32 [batch, 4, height, width]."""
    (file,) = (server.work / "output").glob(f"{prefix}_*.latent")
    return load_file(file)["latent_tensor"]


def image_of(server: ComfyServer, outputs: dict) -> np.ndarray:
    """The saved image: uint8 [height, width, 3]."""
    return np.asarray(Image.open(io.BytesIO(server.view(first_image(outputs)))).convert("RGB"))


def messages_until_done(server: ComfyServer, prompt: dict, on_text: Callable[[str], None]) -> dict:
    """Queue `prompt` as a browser would, hand every progress text to `on_text`, return the history entry."""
    socket = websocket.create_connection(f"ws://127.0.0.1:{server.port}/ws?clientId=test", timeout=300)
    try:
        prompt_id = server.post(prompt, client_id="test")
        while True:
            frame = socket.recv()
            if isinstance(frame, bytes):
                if int.from_bytes(frame[:4], "big") == TEXT_FRAME:
                    length = int.from_bytes(frame[4:8], "big")
                    on_text(frame[8 + length :].decode("utf-8"))
                continue
            message = json.loads(frame)
            done = message["type"] == "executing" and message["data"]["node"] is None
            if done or message["type"] in ("execution_error", "execution_interrupted"):
                return server.wait(prompt_id)
    finally:
        socket.close()
