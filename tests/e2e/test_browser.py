"""The bundled workflow in ComfyUI's real frontend, in a real browser."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from comfy_server import ComfyServer
from playwright.sync_api import Page, sync_playwright

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PACK = Path(__file__).parent.parent.parent
NAME = quote(PACK.name)
SLOW_MS = 300_000


@pytest.fixture(scope="module")
def page(npu_server: ComfyServer) -> Iterator[Page]:
    """The frontend, loaded, without the dialog that greets newcomers."""
    npu_server.post_json("/settings", {"Comfy.TutorialCompleted": True})
    with sync_playwright() as playwright:
        installed = shutil.which("chromium") or shutil.which("chrome")
        browser = playwright.chromium.launch(executable_path=installed, args=FLAGS)
        page = browser.new_page(viewport={"width": 2300, "height": 1000})
        page.set_default_timeout(SLOW_MS)
        page.goto(npu_server.url)
        page.wait_for_function("window.app?.graph && window.app?.extensionManager?.workflow?.activeWorkflow")
        page.wait_for_load_state("networkidle")
        yield page
        browser.close()


def wait_until(true_soon, what: str, timeout_s: float = 300.0):
    """Poll from Python: the page's own timers sleep while the graph runs."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := true_soon():
            return value
        time.sleep(0.5)
    pytest.fail(f"{what} did not happen within {timeout_s:.0f} s")


def open_template(page: Page, server: ComfyServer) -> None:
    """Fetch the workflow as the template browser does, and load it as it does."""
    names = server.get_json("/workflow_templates")[PACK.name]
    assert "text_to_image" in names
    workflow = server.get_json(f"/api/workflow_templates/{NAME}/text_to_image.json")
    page.evaluate("workflow => window.app.loadGraphData(workflow, true, true, 'text_to_image')", workflow)


def test_the_template_opens_without_red_nodes_and_has_a_picture(page, npu_server, tmp_path):
    open_template(page, npu_server)
    unknown = page.evaluate(
        "() => window.app.graph.nodes.filter(n => !window.LiteGraph.registered_node_types[n.type]).map(n => n.type)"
    )
    assert unknown == []
    complaints = page.locator(".p-toast-message-warn, .p-toast-message-error")
    assert complaints.all_inner_texts() == []
    assert npu_server.get(f"/api/workflow_templates/{NAME}/text_to_image.jpg")[:2] == b"\xff\xd8"


def test_the_report_is_on_the_sampler_node_after_a_run(page, npu_server):
    open_template(page, npu_server)
    before = set(npu_server.get_json("/history"))
    page.evaluate("() => window.app.queuePrompt(0)")
    (done,) = wait_until(lambda: set(npu_server.get_json("/history")) - before, "the end of the run")
    assert npu_server.wait(done)
    text = """() => window.app.graph.nodes.find(n => n.type === 'OVNPU_KSampler').widgets
                    .filter(w => w.name === '$$node-text-preview').map(w => w.value).join()"""
    shown = wait_until(lambda: page.evaluate(text), "text on the sampler node", 30)
    assert "UNet: NPU (emulated on CPU) fp16" in shown
    page.screenshot(path=npu_server.work / "canvas.png")


def test_every_node_has_its_help_page(page, npu_server):
    for node_id in ("OVNPU_KSampler", "OVNPU_DevicePlan", "OVNPU_LoadFolder"):
        assert npu_server.get(f"/extensions/{NAME}/docs/{node_id}.md").startswith(b"#")
