"""Cancel while converting, compiling and sampling: it stops, the cache stays whole, the next run works."""

from __future__ import annotations

import contextlib
import json

import pytest
from client import EMULATED, messages_until_done
from comfy_server import PromptInterrupted
from prompts import as_shipped, bundled


@pytest.mark.parametrize(
    ("stage", "prompt"),
    [
        ("Converting the UNet", bundled(n7={"steps": 500})),
        ("Compiling the UNet", bundled(n7={"steps": 500})),
        ("UNet on NPU", bundled(n7={"steps": 500})),
        ("Quantizing the UNet", as_shipped(n7={"steps": 4})),
        ("Checking the UNet", as_shipped(n7={"steps": 4})),
    ],
)
def test_interrupting_stops_and_the_next_run_works(start_server, run, report_of, stage, prompt):
    with start_server(f"interrupt {stage.split()[0]}", EMULATED) as server:
        seen = []

        def interrupt(text: str) -> None:
            if stage in text and not seen:
                seen.append(text)
                # a trace holds Python's lock: the answer may come late, the request arrives all the same
                with contextlib.suppress(OSError):
                    server.interrupt()

        with pytest.raises(PromptInterrupted):
            messages_until_done(server, prompt, interrupt)
        assert seen, f"The stage {stage!r} was never shown."
        # the recorded calls have a manifest of another form
        manifests = [m for kind in ("ir", "blob") for m in (server.work / "cache" / kind).glob("*/manifest.json")]
        assert all(json.loads(m.read_text(encoding="utf-8"))["files"] for m in manifests)
        assert not list((server.work / "cache" / "tmp").glob("*"))
        unet = report_of(run(server, bundled()))["submodels"]["unet"]
        assert unet["calls"] == {"openvino": 20, "torch": 0}
