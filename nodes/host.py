"""The pack's side of the running ComfyUI: which prompt and node is at work, text on that node, interruption."""

from __future__ import annotations

import html
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import comfy.model_management
from comfy_execution.utils import get_executing_context

from ..ov_backends import devices
from ..ov_backends.errors import ConversionError
from ..ov_backends.report import RunReport

log = logging.getLogger("ovnpu")

T = TypeVar("T")

KEPT_REPORTS = 16
TEXT_INTERVAL_S = 0.5

_last_logged: list[str] = []
_reports: OrderedDict[str, RunReport] = OrderedDict()


def current_report() -> RunReport:
    """The report of the prompt that is running; outside a prompt, one of its own."""
    context = get_executing_context()
    key = context.prompt_id if context else ""
    if key not in _reports:
        _reports[key] = RunReport()
        while len(_reports) > KEPT_REPORTS:
            _reports.popitem(last=False)
    return _reports[key]


def show(text: str) -> None:
    """Put `text` on the node that is running; the frontend takes it as HTML."""
    from server import PromptServer

    context, server = get_executing_context(), getattr(PromptServer, "instance", None)
    if context and server:
        server.send_progress_text(html.escape(text, quote=False), context.node_id, server.client_id)


def progress(text: str) -> None:
    """Progress of a long step: shown on the node and in the log; raises when the user has pressed Cancel."""
    comfy.model_management.throw_exception_if_processing_interrupted()
    if not (_last_logged and text.startswith(_last_logged[-1])):  # "..., 12 s" goes to the node only
        log.info(text)
        _last_logged[:] = [text]
    show(text)


def interruptible(convert: Callable[[], T]) -> Callable[[], T]:
    """`convert`, with Cancel coming out as ComfyUI's own exception.

    ComfyUI's layers look for Cancel in each operation, so also while they are traced; there the exception would
    arrive as a failed conversion, after which the run would go on in torch.
    """

    @wraps(convert)
    def guarded() -> T:
        try:
            return convert()
        except ConversionError as error:
            cause = error.__cause__ or error.__context__
            while cause is not None:
                if isinstance(cause, comfy.model_management.InterruptProcessingException):
                    raise cause from None
                cause = cause.__cause__ or cause.__context__
            raise

    return guarded


class StepText:
    """Text that changes with every call of a submodel, sent at most every TEXT_INTERVAL_S seconds."""

    def __init__(self) -> None:
        self._sent = 0.0

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._sent >= TEXT_INTERVAL_S:
            self._sent = time.monotonic()
            show(text)


def report_ui(report: RunReport) -> dict[str, list[str]]:
    """The `ui` part of a node's output: lines to read, and the whole report as JSON for /history."""
    whole = json.dumps(report.as_json(devices.versions()), ensure_ascii=False)
    return {"text": [report.line()], "ovnpu_report": [whole]}
