"""The demo: the bundled workflow on a headless ComfyUI, then an image and a report of where it ran."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comfy_server import ComfyServer, PromptFailed, PromptInterrupted, PromptRejected
from terminal import Progress, last_lines, say

WORKFLOW = Path("workflows/api/text_to_image.json")
PLAN_NODE = "OVNPU_DevicePlan"
REPORT_KEY = "ovnpu_report"
PROMPT_TIMEOUT_S = 3600.0

Prompt = dict[str, Any]
Report = dict[str, Any]


class DemoError(RuntimeError):
    """The workflow cannot be run, or ran without making what the demo promises."""


def load_workflow(pack: Path, device: str | None) -> Prompt:
    """The bundled API-format workflow, with every submodel on `device` if one is asked for."""
    file = pack / WORKFLOW
    try:
        prompt = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DemoError(f"The bundled workflow {file} cannot be read: {error}. Get the pack again.") from None
    return set_device(prompt, device)


def set_device(prompt: Prompt, device: str | None) -> Prompt:
    """A copy of the prompt with every submodel on `device`; None and AUTO leave its device plans as they are."""
    prompt = copy.deepcopy(prompt)
    if device is None or device == "AUTO":
        return prompt
    plans = [node["inputs"] for node in prompt.values() if node.get("class_type") == PLAN_NODE]
    if not plans:
        raise DemoError(f"The workflow has no {PLAN_NODE} node, so --device {device} has nothing to set.")
    for inputs in plans:
        inputs |= {"preset": "custom", "text_encoder_device": device, "unet_device": device, "vae_device": device}
    return prompt


def run(pack: Path, python: Path, comfyui: Path, prompt: Prompt, output: Path) -> Report:
    """Run the prompt on a server of its own; writes demo.png, report.json and server.log to `output`."""
    with tempfile.TemporaryDirectory(prefix="ovnpu-demo-", ignore_cleanup_errors=True) as work:
        server = ComfyServer(comfyui, python, Path(work), pack=pack)
        try:
            with Progress("Starting ComfyUI") as progress:
                server.on_progress = lambda _, line: progress.update()  # its own start-up notes mislead
                server.start()
            with Progress("Running the workflow") as progress:
                prompt_id = server.post(prompt)
                entry = server.wait(prompt_id, PROMPT_TIMEOUT_S, lambda _, line: progress.update(line))
            image = server.view(first_image(entry["outputs"]))
            report = extract_report(entry["outputs"])
        except (PromptFailed, PromptInterrupted, PromptRejected) as error:
            tail = "\n".join("  " + line for line in last_lines(server.log, 10))
            raise DemoError(f"{error}\nThe server's last lines, of {output / 'server.log'}:\n{tail}") from None
        finally:
            server.stop()
            if server.log.exists():
                shutil.copyfile(server.log, output / "server.log")
    (output / "demo.png").write_bytes(image)
    (output / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


def first_image(outputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first saved image of a history entry's outputs, else the first preview."""
    images = [image for node in outputs.values() for image in node.get("images", []) if isinstance(image, dict)]
    if not images:
        raise DemoError("The workflow finished without an image; server.log beside the output says what ran.")
    return next((image for image in images if image.get("type") == "output"), images[0])


def extract_report(outputs: Mapping[str, Any]) -> Report:
    """The pack's report from a history entry's outputs.

    Several nodes may report. The most complete one counts, of equal ones the last; submodels that only another one
    names are added to it.
    """
    values = [value for _, node in sorted(outputs.items(), key=_node_order) for value in node.get(REPORT_KEY, [])]
    reports = [report for report in map(_parsed, values) if report is not None]
    if not reports:
        raise DemoError(f"No node of the workflow gave a report ('{REPORT_KEY}'): was this pack's sampler in it?")
    reports.sort(key=lambda report: len(report["submodels"]))  # stable: the last of the largest stays last
    submodels = {name: values for report in reports for name, values in report["submodels"].items()}
    return {**reports[-1], "submodels": submodels}


def report_lines(report: Report) -> list[str]:
    """The report for a terminal: where every submodel ran, whether it was cached, how fast, and what fell back."""
    lines = []
    for name, part in report["submodels"].items():
        asked, actual = part.get("requested_device", "?"), part.get("actual_device", "?")
        device = actual if asked == actual else f"{actual} (asked for {asked})"
        lines.append(f"{name}: {device}, {part.get('precision', '?')}")
        cache = part.get("cache") or {}
        reason = f" ({cache['reason']})" if cache.get("reason") else ""
        spent = [f"{key} {value:.1f} s" for key, value in (part.get("seconds") or {}).items() if value]
        lines.append("  " + "; ".join([f"cache {cache.get('state', 'not used')}{reason}", *spent]))
        calls = part.get("calls") or {}
        lines.append(
            f"  first call {_milliseconds(part.get('first_ms'))}, then {_milliseconds(part.get('steady_ms'))}; "
            f"{calls.get('openvino', 0)} calls on OpenVINO, {calls.get('torch', 0)} on torch"
        )
        lines += [f"  on torch because: {reason}" for reason in part.get("torch_reasons") or []]
        fallback = part.get("fallback") or []
        if fallback:
            types = sorted({f"{item.get('type')} on {item.get('device')}" for item in fallback})
            more = " ..." if types[6:] else ""
            lines.append(f"  {len(fallback)} operators ran elsewhere: {', '.join(types[:6])}{more}")
    if isinstance(report.get("seconds_total"), (int, float)):
        lines.append(f"In all {report['seconds_total']:.1f} s")
    versions = report.get("versions") or {}
    if versions:
        lines.append("With " + ", ".join(f"{name} {value}" for name, value in versions.items()))
    return lines


def print_result(report: Report, output: Path) -> None:
    say()
    for line in report_lines(report):
        say(line)
    say()
    say(f"Image:  {output / 'demo.png'}")
    say(f"Report: {output / 'report.json'}")


def _node_order(item: tuple[str, Any]) -> tuple[int, str]:
    node_id = item[0]
    return (int(node_id), "") if node_id.isdecimal() else (1 << 62, node_id)


def _parsed(value: Any) -> Report | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) and isinstance(value.get("submodels"), dict) else None


def _milliseconds(value: Any) -> str:
    return f"{value:.0f} ms" if isinstance(value, (int, float)) else "not measured"
