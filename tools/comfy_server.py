"""Runs a real ComfyUI server with one pack as its only custom node, for the demo and the tests. Standard library only.

    with ComfyServer(comfyui, python, work) as server:
        entry = server.wait(server.post(prompt))
        entry["outputs"]

Everything that ComfyUI reads and writes (models, input, output, user, temp, custom_nodes, its database) lies in `work`,
so a user's ComfyUI folder stays as it is. Put a checkpoint for a test into `work / "models" / "checkpoints"`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from terminal import last_lines

PACK = Path(os.path.abspath(__file__)).parent.parent
FOLDERS = ("custom_nodes", "input", "models", "output", "temp", "user")
POLL_S = 0.2
REQUEST_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
PORT_ATTEMPTS = 3
ADDRESS_IN_USE = ("address already in use", "Errno 98", "Errno 10048", "WinError 10048")

OnProgress = Callable[[float, str], None]  # seconds since the start, last line of the server's log


class ServerError(RuntimeError):
    """The server did not start, ended, or answered with an error."""


class PromptRejected(ServerError):
    """ComfyUI's validation refused the prompt; `error` and `node_errors` are its answer."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.error: dict[str, Any] = answer.get("error") or {}
        self.node_errors: dict[str, Any] = answer.get("node_errors") or {}
        parts = [str(self.error.get("message", "no reason given")), str(self.error.get("details", ""))]
        for node_id, node in self.node_errors.items():
            where = f"node {node_id} ({node.get('class_type')})"
            parts += [f"{where}: {error.get('message')}: {error.get('details')}" for error in node.get("errors", [])]
        super().__init__("ComfyUI refused the prompt: " + "; ".join(part for part in parts if part))


class PromptFailed(ServerError):
    """A node raised an error; `node_type`, `message`, `exception_type` and `traceback` say which and what."""

    def __init__(self, event: Mapping[str, Any]) -> None:
        self.node_id = str(event.get("node_id", ""))
        self.node_type = str(event.get("node_type", ""))
        self.message = str(event.get("exception_message", "")).strip()
        self.exception_type = str(event.get("exception_type", ""))
        self.traceback = "".join(event.get("traceback") or [])
        super().__init__(f"Node {self.node_id} ({self.node_type}) failed: {self.exception_type}: {self.message}")


class PromptInterrupted(ServerError):
    """The prompt was interrupted, or taken out of the queue before it ran."""


class PromptTimeout(ServerError):
    """The prompt did not finish in the time given; it is still running."""


class ComfyServer:
    """A ComfyUI server as a context manager: started and ready inside the block, ended after it whatever happens.

    comfyui: folder with main.py; python: interpreter that has ComfyUI's packages; work: folder for all of ComfyUI's
    data, made if missing; environment: changes to the environment, where None removes a variable; pack: custom-node
    folder to load, of any name, or None for a server without custom nodes; arguments: more arguments for main.py.
    """

    def __init__(
        self,
        comfyui: Path,
        python: Path,
        work: Path,
        environment: Mapping[str, str | None] | None = None,
        pack: Path | None = PACK,
        *,
        arguments: Sequence[str] = (),
        ready_timeout: float = 900.0,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.comfyui = comfyui.absolute()
        self.python = python.absolute()  # not resolved: a venv's interpreter is a link to the base one
        self.work = work.absolute()
        self.pack = pack.resolve() if pack else None  # the folder's real name: it must match a directory listing
        self.environment = dict(environment or {})
        self.arguments = list(arguments)
        self.ready_timeout = ready_timeout
        self.on_progress = on_progress
        self.log = self.work / "server.log"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        # 127.0.0.1 must never go through a proxy from the environment.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ComfyServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and return when it answers; raises ServerError with the log's last lines if it does not."""
        for name in FOLDERS:
            (self.work / name).mkdir(parents=True, exist_ok=True)
        try:
            for attempt in range(1, PORT_ATTEMPTS + 1):
                self._launch()
                if self._is_ready() or attempt == PORT_ATTEMPTS or not self._lost_its_port():
                    break
            self._require_alive()
            if self.pack and f"(IMPORT FAILED): {self.pack}" in self.log_text():
                raise ServerError(f"ComfyUI could not import the pack {self.pack}:\n{self._import_error()}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and its children: ask first, then kill. Safe to call twice."""
        process = self.process
        if process is not None:
            _signal_group(process, force=False)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                _signal_group(process, force=True)
                process.wait()

    def get(self, path: str) -> bytes:
        """Body of GET url + path."""
        return self._request(path)

    def get_json(self, path: str) -> Any:
        return json.loads(self._request(path))

    def post_json(self, path: str, body: Any) -> Any:
        """Answer of POST url + path with a JSON body; None if the answer is empty."""
        answer = self._request(path, json.dumps(body).encode("utf-8"))
        return json.loads(answer) if answer.strip() else None

    def post(self, prompt: Mapping[str, Any], **more: Any) -> str:
        """Queue an API-format prompt and return its id; `more` are further keys of the request, such as client_id.

        Raises PromptRejected if any output does not validate, even when others do.
        """
        try:
            answer = self.post_json("/prompt", {"prompt": prompt, **more})
        except _HTTPStatus as error:
            try:
                answer = json.loads(error.body)
            except ValueError:
                raise error from None
            raise PromptRejected(answer) from None
        if answer.get("node_errors"):
            raise PromptRejected(answer)
        return str(answer["prompt_id"])

    def wait(self, prompt_id: str, timeout: float = 600.0, on_progress: OnProgress | None = None) -> dict[str, Any]:
        """History entry of a prompt ({"prompt", "outputs", "status", ...}) once it has succeeded.

        Raises PromptFailed, PromptInterrupted, PromptTimeout, or ServerError if the server ended.
        """
        started = time.monotonic()
        while True:
            self._require_alive()
            try:
                entry = self.history(prompt_id)
                if entry is None and not self._is_queued(prompt_id):
                    entry = self.history(prompt_id)  # it may have finished between the two questions
                    if entry is None:
                        raise PromptInterrupted(f"Prompt {prompt_id} is neither queued nor finished: it was deleted.")
            except OSError:
                entry = None  # a busy server (a trace or compilation that holds the GIL) answers late
            if entry is not None:
                return _checked(entry)
            elapsed_s = time.monotonic() - started
            if elapsed_s > timeout:
                raise PromptTimeout(f"Prompt {prompt_id} was not finished after {timeout:.0f} s.\n{self._log_tail()}")
            if on_progress:
                on_progress(elapsed_s, "".join(last_lines(self.log, 1)))
            time.sleep(POLL_S)

    def history(self, prompt_id: str) -> dict[str, Any] | None:
        """History entry of a finished prompt, successful or not; None while it waits or runs."""
        entry = self.get_json(f"/history/{prompt_id}").get(prompt_id)
        return entry if isinstance(entry, dict) else None

    def view(self, image: Mapping[str, Any]) -> bytes:
        """File of one image entry ({"filename", "subfolder", "type"}) of a history's outputs."""
        query = {key: image.get(key, "") for key in ("filename", "subfolder", "type")}
        return self.get(f"/view?{urllib.parse.urlencode(query)}")

    def interrupt(self, prompt_id: str | None = None) -> None:
        """Interrupt what runs now; with an id, only if that prompt is the one running."""
        self.post_json("/interrupt", {"prompt_id": prompt_id} if prompt_id else {})

    def log_text(self) -> str:
        """Everything the server has printed."""
        try:
            return self.log.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def _launch(self) -> None:
        self.port = _free_port()
        flags: dict[str, Any] = {"start_new_session": True}
        if os.name == "nt":
            flags = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
        # Its own session or group: Ctrl-C reaches us first, and we end the server in order.
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self._command(),
                cwd=self.work,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                **flags,
            )

    def _command(self) -> list[str]:
        command = [str(self.python), str(self.comfyui / "main.py"), "--cpu", "--disable-auto-launch"]
        command += ["--listen", "127.0.0.1", "--port", str(self.port), "--base-directory", str(self.work)]
        known = (self.comfyui / "comfy" / "cli_args.py").read_text(encoding="utf-8")
        if '"--database-url"' in known:  # its default lies in ComfyUI's own folder, whatever the base directory is
            command += ["--database-url", f"sqlite:///{self.work / 'user' / 'comfyui.db'}"]
        command += ["--disable-api-nodes", "--disable-all-custom-nodes"]
        if self.pack:
            # JSON is YAML; unescaped, because YAML does not join surrogate pairs.
            paths = {"pack": {"custom_nodes": str(self.pack.parent)}}
            config = self.work / "pack_paths.yaml"
            config.write_text(json.dumps(paths, ensure_ascii=False), encoding="utf-8")
            command += ["--whitelist-custom-nodes", self.pack.name, "--extra-model-paths-config", str(config)]
        return [*command, *self.arguments]

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        environment.pop("PYTHONPATH", None)
        environment |= {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1"}  # no __pycache__ in a user's ComfyUI
        for name, value in self.environment.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        return environment

    def _is_ready(self) -> bool:
        """Wait until the server answers; False if its process ended first."""
        started = time.monotonic()
        assert self.process is not None
        while self.process.poll() is None:
            try:
                self.get("/system_stats")
                return True
            except OSError:
                pass
            elapsed_s = time.monotonic() - started
            if elapsed_s > self.ready_timeout:
                raise ServerError(f"ComfyUI did not answer within {elapsed_s:.0f} s:\n{self._log_tail()}")
            if self.on_progress:
                self.on_progress(elapsed_s, "".join(last_lines(self.log, 1)))
            time.sleep(POLL_S)
        return False

    def _lost_its_port(self) -> bool:
        """Whether another program took the port between our look and ComfyUI's."""
        text = self.log_text()
        return any(sign in text for sign in ADDRESS_IN_USE)

    def _is_queued(self, prompt_id: str) -> bool:
        queue = self.get_json("/queue")
        return any(item[1] == prompt_id for key in ("queue_running", "queue_pending") for item in queue[key])

    def _require_alive(self) -> None:
        if self.process is None:
            raise ServerError("The ComfyUI server has not been started.")
        if self.process.poll() is not None:
            raise ServerError(f"The ComfyUI server ended with exit code {self.process.returncode}:\n{self._log_tail()}")

    def _import_error(self) -> str:
        """The log's lines up to the one in which ComfyUI gives the pack up: a traceback, mostly."""
        lines = [line for line in self.log_text().splitlines() if line.strip()]
        signs = (f"Cannot import {self.pack} ", f"comfy_entrypoint in {self.pack}", f"Skip {self.pack} ")
        end = next((i for i, line in enumerate(lines, 1) if any(sign in line for sign in signs)), len(lines))
        return "\n".join("  " + line for line in lines[max(0, end - 15) : end])

    def _log_tail(self) -> str:
        return "\n".join("  " + line for line in last_lines(self.log, 15))

    def _request(self, path: str, body: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        request = urllib.request.Request(self.url + path, data=body, headers=headers)
        try:
            with self._opener.open(request, timeout=REQUEST_TIMEOUT_S) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise _HTTPStatus(request.get_method(), path, error.code, error.read()) from None


class _HTTPStatus(ServerError):
    def __init__(self, method: str, path: str, code: int, body: bytes) -> None:
        self.code = code
        self.body = body
        super().__init__(f"{method} {path} answered {code}: {body[:500].decode('utf-8', 'replace')}")


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    status = entry.get("status") or {}
    for name, event in status.get("messages", []):
        if name == "execution_error":
            raise PromptFailed(event)
        if name == "execution_interrupted":
            raise PromptInterrupted(f"Interrupted in node {event.get('node_id')} ({event.get('node_type')}).")
    if status.get("status_str") == "error":
        raise ServerError(f"The prompt failed: {status.get('messages')}")
    return entry


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _signal_group(process: subprocess.Popen[bytes], force: bool) -> None:
    """End a process and, where the system has process groups for it, its children.

    On Windows both are TerminateProcess; a venv's python.exe holds its real interpreter in a job that ends with it.
    """
    if os.name == "nt":
        process.kill() if force else process.terminate()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL if force else signal.SIGTERM)
