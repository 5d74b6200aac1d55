"""Bad input ends in an error that names the file and the remedy; the server and the cache stay as they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from comfy_server import ComfyServer, PromptFailed, PromptRejected
from prompts import PACK, bundled


def copy_of_demo(server: ComfyServer, name: str) -> Path:
    folder = server.work / "models" / "diffusers" / name
    shutil.copytree(PACK / "demo_model", folder, dirs_exist_ok=True)
    return folder


def cache_files(server: ComfyServer) -> set[Path]:
    return {p for kind in ("ir", "blob") for p in (server.work / "cache" / kind).rglob("*")}


def truncate(folder: Path) -> str:
    file = folder / "unet" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file.name


def garbage(folder: Path) -> str:
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(b"\0garbage" * 1000)
    return file.name


def missing_config(folder: Path) -> str:
    (folder / "unet" / "config.json").unlink()
    return "config.json"


def missing_weights(folder: Path) -> str:
    (folder / "text_encoder" / "model.safetensors").unlink()
    return "text_encoder"


def wrong_architecture(folder: Path) -> str:
    file = folder / "unet" / "config.json"
    file.write_text(file.read_text(encoding="utf-8").replace("UNet2DConditionModel", "FluxTransformer2DModel"), "utf-8")
    return "FluxTransformer2DModel"


@pytest.mark.parametrize("damage", [truncate, garbage, missing_config, missing_weights, wrong_architecture])
def test_a_damaged_folder_is_named_and_the_server_goes_on(cpu_server, run, damage):
    run(cpu_server, bundled())
    folder = copy_of_demo(cpu_server, f"beschädigt {damage.__name__}")
    named, before = damage(folder), cache_files(cpu_server)
    with pytest.raises(PromptFailed) as failure:
        run(cpu_server, bundled(n2={"folder": folder.name}))
    assert failure.value.node_type == "OVNPU_LoadFolder"
    assert named in failure.value.message, failure.value.message
    assert cache_files(cpu_server) == before
    run(cpu_server, bundled(n7={"seed": hash(damage.__name__) % 1000}))


def test_a_healthy_copy_in_such_a_folder_loads(cpu_server, run):
    copy_of_demo(cpu_server, "Größe 模型 copy")
    run(cpu_server, bundled(n2={"folder": "Größe 模型 copy"}))


@pytest.mark.parametrize("name", ["../../../etc", "/etc", "nothing here"])
def test_only_listed_folders_can_be_loaded(cpu_server, run, name):
    with pytest.raises((PromptFailed, PromptRejected)):
        run(cpu_server, bundled(n2={"folder": name}))
