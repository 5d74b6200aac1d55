"""The whole report of a prompt, after its last step."""

from __future__ import annotations

from comfy_api.latest import io

from . import host
from .types import CATEGORY


class Report(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OVNPU_Report",
            display_name="NPU Report",
            category=f"{CATEGORY}/report",
            description="Where each submodel ran, what fell back, what the cache did and what it cost. Wire the "
            "decoded image through it, so that the VAE's part is known.",
            inputs=[io.Image.Input("image", tooltip="The decoded image; passed on unchanged.")],
            outputs=[io.Image.Output(), io.String.Output(display_name="report")],
            is_output_node=True,
            # a report belongs to one run: never answered from ComfyUI's cache
            not_idempotent=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **_) -> float:
        return float("nan")

    @classmethod
    def execute(cls, image) -> io.NodeOutput:
        report = host.current_report()
        host.show(report.line())
        return io.NodeOutput(image, report.markdown(), ui=host.report_ui(report))
