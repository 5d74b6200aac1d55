"""The NPU compiler on a machine without an NPU: what is read from it, who finds it, and how it may misbehave."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import openvino as ov
import psutil
import pytest
from npu_models import REFUSED, tangent, unique
from openvino import opset15 as ops
from ovpack.ov_backends.__main__ import main
from ovpack.ov_backends.compiler import npu_compilers, npu_log, npu_setup
from ovpack.ov_backends.compiler.cache import CompileCache
from ovpack.ov_backends.compiler.npu_compilers import WORKER, NpuCompiler, find_compiler, require_compiler
from ovpack.ov_backends.compiler.npu_messages import Refusal, crash, explain
from ovpack.ov_backends.compiler.npu_offline import OfflineOrder, OfflineResult, _hand_over, compile_offline
from ovpack.ov_backends.compiler.npu_platforms import check_tiles, find_platforms
from ovpack.ov_backends.compiler.npu_probes import probes
from ovpack.ov_backends.compiler.npu_process import run_watched
from ovpack.ov_backends.compiler.npu_trace import read_schedule
from ovpack.ov_backends.errors import CompileError, CompilerMissingError, SetupError, UseError
from ovpack.ov_backends.graph.fingerprint import graph_hash
from ovpack.ov_backends.graph.npu_support import DATA, operator_support, predict
from ovpack.ov_backends.preflight import preflight, write_trace
from small_models import WIDTH, dense_model

HERE = Path(__file__).parent
RECORDED = HERE / "npu_compiler"
"""What compiler 8.4 wrote and said about `dense_model` for Lunar Lake with 4 tiles, and how it refused models."""
LUNAR_LAKE = find_platforms("4000")[0]


def silent(text: str) -> None:
    pass


def dense() -> ov.Model:
    model = dense_model()
    model.reshape([1, WIDTH])
    return model


@pytest.fixture
def recorded_log() -> str:
    return npu_log.plain((RECORDED / "dense_4000.log").read_text(encoding="utf-8"))


@pytest.fixture
def stand_in(tmp_path):
    """stand_in(behaviour): a compiler that behaves so, and keeps count of its calls in calls()."""
    folder = tmp_path / "recorded"
    shutil.copytree(RECORDED, folder)

    def make(behaviour: str) -> NpuCompiler:
        command = (sys.executable, str(HERE / "npu_stand_in.py"), behaviour, str(folder))
        return NpuCompiler("wine", tmp_path, command, os.environ)

    make.calls = lambda: int((folder / "calls.txt").read_text(encoding="utf-8"))
    return make


@pytest.fixture(autouse=True)
def plain_paths(monkeypatch):
    """The stand-in runs without Wine."""
    monkeypatch.setattr(NpuCompiler, "path", lambda self, file: str(file))


# --- what the compiler wrote and said ---------------------------------------------------------------------------------


def test_the_schedule_has_the_sums_that_the_compiler_states():
    schedule = read_schedule(RECORDED / "dense_4000.json")
    assert schedule.latency_s == pytest.approx(15.031e-6) and schedule.frequency_hz == 1.85e9
    assert schedule.busy_s == pytest.approx({"DMA": 12.483e-6, "DPU": 0.102e-6, "SHAVE": 2.442e-6})
    # "Sum of ... task durations": what a DPU does in variants must not count twice
    assert schedule.work_s == pytest.approx({"DMA": 16.172e-6, "DPU": 0.408e-6, "SHAVE": 19.536e-6}, rel=1e-3)
    assert schedule.units["DPU"] == 4 and schedule.units["SHAVE"] == 8
    assert schedule.share("SHAVE") == pytest.approx(0.1625, abs=1e-3)


def test_the_schedule_names_layer_and_engine():
    layers = {layer.name: layer for layer in read_schedule(RECORDED / "dense_4000.json").layers}
    assert layers["curve"].type == "Tanh" and layers["curve"].engine == "SHAVE"
    assert layers["curve"].busy_s["SHAVE"] == pytest.approx(2.442e-6), "eight SHAVEs at the same time"
    assert layers["curve"].work_s["SHAVE"] == pytest.approx(8 * 2.442e-6)
    assert "DPU" in layers["product"].busy_s


def test_the_types_hold_all_layers_and_no_more_time_than_there_is():
    schedule = read_schedule(RECORDED / "dense_4000.json")
    assert {("SHAVE", "Tanh"), ("DPU", "MatMul")} <= {(one.engine, one.type) for one in schedule.types}
    assert all(0 <= one.seconds <= schedule.latency_s for one in schedule.types)


@pytest.mark.parametrize("content", ["", "{}", '{"traceEvents": []}', "[1, 2]"])
def test_a_damaged_schedule_is_explained(tmp_path, content):
    (tmp_path / "trace.json").write_text(content, encoding="utf-8")
    with pytest.raises(CompileError, match=r"cannot be read.*2026\.4"):
        read_schedule(tmp_path / "trace.json")


def test_the_log_tells_version_tiles_and_warnings(recorded_log):
    assert npu_log.compiler_version(recorded_log).startswith("8.4 (2026.5.0")
    assert npu_log.tiles(recorded_log) == 4 and npu_log.is_done(recorded_log)
    assert npu_log.failure(recorded_log) == ("", "")
    said = npu_log.warnings(recorded_log)
    assert "the energy model does not know these SHAVE kernels: builtin_Convert" in said
    assert any("tasks are counted as taking no time" in text for text in said)
    assert not any("driver" in text for text in said), "there is none, and the user knows"


def test_invalid_costs_are_told_with_their_number():
    line = "[WARNING] 10:00:00.000 [inference-execution-analysis]   There are 12 tasks with invalid cost.\n"
    assert npu_log.warnings(line) == ("12 tasks have a cost that the cost model could not give; their time is made up",)


def test_a_crash_shows_what_was_said_before_it_and_no_registers():
    log = "[INFO] 10:00:00.000 [a-pass] at work\nwine: Unhandled page fault on read\nUnhandled exception: page fault\n"
    said = npu_log.last_lines(log + "Register dump:\n rip:0000\nSystem information:\n    Wine build: 8.0\n")
    assert "at work" in said and "page fault" in said and "Register" not in said and "Wine build" not in said


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_operator_layer_and_what_to_do(name):
    build, kind, operator, advice = REFUSED[name]
    said = json.loads((RECORDED / "refusals.json").read_text(encoding="utf-8"))[name]
    refusal = explain("compile", said, LUNAR_LAKE, build())
    assert (refusal.kind, refusal.operator, refusal.layer) == (kind, operator, "here"), refusal
    assert advice in refusal.advice
    assert "Exception from" not in refusal.said and refusal.said


@pytest.mark.parametrize("name", json.loads((RECORDED / "refusals.json").read_text(encoding="utf-8")))
def test_no_real_message_goes_unexplained(name):
    said = json.loads((RECORDED / "refusals.json").read_text(encoding="utf-8"))[name]
    refusal = explain("compile", said, LUNAR_LAKE, dense())
    assert "gave up" not in refusal.advice, said


def test_the_layer_is_the_one_that_the_compiler_names_if_the_model_has_it():
    said = json.loads((RECORDED / "refusals.json").read_text(encoding="utf-8"))["open_sizes"]
    name = "__module.unet.input_blocks.0.0/aten::_convolution/Convolution"
    model = dense()
    model.get_ordered_ops()[-2].set_friendly_name(name)
    assert explain("compile", said, LUNAR_LAKE, model).layer == name


def test_words_that_nobody_knows_are_passed_on():
    refusal = explain("compile", "Exception from a.cpp:1:\nThe moon is full", LUNAR_LAKE, dense())
    assert refusal.kind == "internal" and refusal.said == "The moon is full" and "gave up" in str(refusal)


def test_a_crash_is_blamed_on_the_operator_that_the_table_refuses():
    refusal = crash(5, "last words", LUNAR_LAKE, tangent())
    assert (refusal.operator, refusal.layer, refusal.said) == ("Tan", "here", "last words")
    assert crash(5, "last words", LUNAR_LAKE, dense()).operator == ""


# --- platforms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4000", ["4000"]),
        ("npu 3720", ["3720"]),
        ("Lunar Lake", ["4000"]),
        ("intel Core Ultra 200V", ["4000"]),
        ("panther-lake, MTL", ["5010", "3720"]),
        ("all", ["3720", "4000", "5010"]),
        ("4000,all", ["4000", "3720", "5010"]),
    ],
)
def test_platforms_go_by_number_and_by_product(text, numbers):
    assert [platform.number for platform in find_platforms(text)] == numbers


@pytest.mark.parametrize("text", ["2000", "Raptor Lake", "", "4000,x"])
def test_a_platform_that_is_not_there_is_refused(text):
    with pytest.raises(UseError, match="Lunar Lake"):
        find_platforms(text)


def test_no_more_tiles_than_the_part_has():
    assert (check_tiles(LUNAR_LAKE, 0), check_tiles(LUNAR_LAKE, 4)) == (6, 4)
    with pytest.raises(UseError, match="has 6 tiles; 9 cannot"):
        check_tiles(LUNAR_LAKE, 9)


# --- the finder -------------------------------------------------------------------------------------------------------


@pytest.fixture
def empty_cache(tmp_path, clean_environment, monkeypatch):
    """A cache without a compiler, on a machine whose OpenVINO has none."""
    monkeypatch.setenv("OVNPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(npu_compilers, "libraries_folder", lambda: tmp_path / "libs")
    (tmp_path / "libs").mkdir()
    return tmp_path


def make_ready(program: str = "program") -> npu_setup.Toolchain:
    made = npu_setup.toolchain()
    made.libraries.mkdir(parents=True)
    made.program.write_text(program, encoding="utf-8")
    (made.folder / "ready.json").write_text(json.dumps({"program": npu_setup._source_hash()}), encoding="utf-8")
    return made


def test_without_a_compiler_the_error_says_how_to_get_one(empty_cache):
    assert find_compiler() is None
    with pytest.raises(CompilerMissingError, match="preflight --setup"):
        require_compiler()


def test_wine_is_taken_where_openvino_has_no_compiler(empty_cache, monkeypatch):
    monkeypatch.setattr(npu_compilers, "wine", lambda: "/usr/bin/wine")
    monkeypatch.setattr(npu_setup, "wine", lambda: "/usr/bin/wine")
    made = make_ready()
    found = find_compiler()
    assert found.kind == "wine" and found.command == ("/usr/bin/wine", str(made.program))
    assert found.environment["WINEPREFIX"] == str(made.folder / "wine")
    assert found.stamp == f"wheel {npu_setup.openvino_version()}"


def test_openvinos_own_compiler_comes_first(empty_cache, monkeypatch):
    monkeypatch.setattr(npu_setup, "wine", lambda: "/usr/bin/wine")
    make_ready()
    library = empty_cache / "libs" / npu_compilers._LIBRARY[sys.platform]
    library.write_bytes(b"compiler")
    found = find_compiler()
    assert found.kind == "native" and found.command == (sys.executable, str(WORKER))
    before = found.stamp
    library.write_bytes(b"another compiler")
    assert find_compiler().stamp != before, "another compiler gives other results"


def test_another_program_of_the_pack_is_built_again(empty_cache, monkeypatch):
    monkeypatch.setattr(npu_setup, "wine", lambda: "/usr/bin/wine")
    made = make_ready()
    assert made.is_ready
    (made.folder / "ready.json").write_text('{"program": "of an older pack"}', encoding="utf-8")
    assert not made.is_ready


# --- setting up -------------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(monkeypatch):
    """programs(*names): only these are installed."""

    def install(*names: str) -> None:
        monkeypatch.setattr(npu_setup.shutil, "which", lambda name: f"/usr/bin/{name}" if name in names else None)

    return install


def test_missing_packages_are_named_in_one_line(empty_cache, programs):
    programs()
    with pytest.raises(SetupError) as error:
        npu_setup.set_up(silent)
    assert "apt-get install -y --no-install-recommends wine wine64 gcc-mingw-w64-x86-64" in str(error.value)
    assert "\n" not in str(error.value)
    programs("wine")
    assert npu_setup.missing_programs().startswith("Not installed: gcc-mingw-w64-x86-64.")


def test_without_a_network_setup_says_so(empty_cache, programs, monkeypatch):
    """pip itself, with an index that nobody answers at."""
    programs("wine", npu_setup.CROSS_COMPILER)
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    for name, value in {**settings, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}.items():
        monkeypatch.setenv(name, value)
    steps = []
    with pytest.raises(SetupError, match="package index was not reached.*check the network"):
        npu_setup.set_up(steps.append)
    assert steps[0].startswith("1/4 Downloading")


def test_a_wheel_that_was_downloaded_before_is_used(empty_cache, programs):
    """An interrupted setup goes on after the download; this wheel is too old to have a compiler."""
    programs("wine", npu_setup.CROSS_COMPILER)
    folder = npu_setup.toolchain().folder / "download"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "openvino-2025.0-win.whl", "w") as wheel:
        wheel.writestr("openvino/libs/openvino_c.dll", "")
    with pytest.raises(SetupError, match="has no NPU compiler"):
        npu_setup.set_up(silent)


def test_what_is_unpacked_is_what_compiles_for_an_npu(tmp_path):
    with zipfile.ZipFile(tmp_path / "openvino.whl", "w") as wheel:
        for name in (
            "openvino_intel_npu_compiler.dll",
            "openvino_c.lib",
            "openvino.lib",
            "openvino_intel_gpu_plugin.dll",
        ):
            wheel.writestr(f"openvino/libs/{name}", name)
        wheel.writestr("openvino/elsewhere/other.dll", "")
    npu_setup._unpack(tmp_path / "openvino.whl", tmp_path / "lib", silent)
    assert {file.name for file in (tmp_path / "lib").iterdir()} == {"openvino_intel_npu_compiler.dll", "openvino_c.lib"}


def test_a_folder_that_wine_cannot_open_is_named(tmp_path, clean_environment, monkeypatch, programs):
    programs("wine", npu_setup.CROSS_COMPILER)
    monkeypatch.setenv("OVNPU_CACHE_DIR", str(tmp_path / "a:b"))
    if os.name != "nt":
        with pytest.raises(SetupError, match="OVNPU_CACHE_DIR"):
            npu_setup.set_up(silent)


# --- the process ------------------------------------------------------------------------------------------------------

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def watched(tmp_path: Path, code: str, **more):
    log = tmp_path / "log.txt"
    return run_watched([sys.executable, "-c", code], tmp_path, os.environ, log, **{"limit_s": 60.0, **more}), log


def test_a_process_that_takes_too_long_is_ended_with_its_children(tmp_path):
    ended, log = watched(tmp_path, PARENT, limit_s=1.5)
    assert (ended.why, ended.code) == ("timeout", None)
    assert ended.peak_bytes > 1_000_000
    child = int(log.read_text(encoding="utf-8"))
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_cancelling_ends_the_process(tmp_path):
    def cancel(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(tmp_path, PARENT, tick=cancel)
    child = int((tmp_path / "log.txt").read_text(encoding="utf-8"))
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_an_exit_code_is_told(tmp_path):
    ended, log = watched(tmp_path, "print('said'); raise SystemExit(3)")
    assert (ended.why, ended.code, log.read_text(encoding="utf-8").strip()) == ("exit", 3, "said")


# --- compiling --------------------------------------------------------------------------------------------------------


def test_the_result_holds_what_the_compiler_gave(stand_in, cache):
    result = compile_offline(OfflineOrder(dense(), LUNAR_LAKE), stand_in("works"), cache, silent)
    assert isinstance(result, OfflineResult) and result.is_complete and not result.is_cached
    assert result.compiler.startswith("8.4") and result.tiles == 4
    assert result.seconds > 0 and result.peak_bytes > 0
    assert list((cache.root / "npu_compiler" / "runs").iterdir()) == [], "nothing stays behind"


def test_the_second_time_it_comes_from_the_cache(stand_in, cache):
    first = compile_offline(OfflineOrder(dense(), LUNAR_LAKE), stand_in("works"), cache, silent)
    second = compile_offline(OfflineOrder(dense(), LUNAR_LAKE), stand_in("works"), cache, silent)
    assert stand_in.calls() == 1 and second.is_cached
    assert (second.schedule, second.warnings, second.seconds) == (first.schedule, first.warnings, first.seconds)
    assert [entry.manifest["kind"] for entry in cache.entries()] == ["preflight"]


def other_weights() -> ov.Model:
    model = dense()
    constant = next(node for node in model.get_ops() if node.get_type_name() == "Constant")
    constant.output(0).replace(ops.constant(np.ones((WIDTH, WIDTH), np.float32)).output(0))
    return model


def two_rows() -> ov.Model:
    model = dense_model()
    model.reshape([2, WIDTH])
    return model


def test_other_values_of_the_weights_are_the_same_graph_and_other_sizes_are_not():
    assert graph_hash(other_weights()) == graph_hash(dense()) != graph_hash(two_rows())


def test_small_constants_are_part_of_the_graph():
    def power(exponent: float) -> ov.Model:
        x = ops.parameter([4], ov.Type.f32)
        return ov.Model([ops.power(x, np.float32(exponent))], [x])

    assert graph_hash(power(2)) == graph_hash(power(2)) != graph_hash(power(3))


@pytest.mark.parametrize(
    "change",
    [
        {"tiles": 2},
        {"parameters": "optimization-level=2"},
        {"platform": find_platforms("3720")[0]},
        {"model": two_rows()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_order_is_compiled_anew(stand_in, cache, change):
    order = {"model": dense(), "platform": LUNAR_LAKE}
    compile_offline(OfflineOrder(**order), stand_in("works"), cache, silent)
    assert not compile_offline(OfflineOrder(**{**order, **change}), stand_in("works"), cache, silent).is_cached


def test_a_compiler_that_spins_after_the_schedule_is_ended(stand_in, cache):
    result = compile_offline(OfflineOrder(dense(), LUNAR_LAKE), stand_in("spins"), cache, silent, patience=0)
    assert isinstance(result, OfflineResult) and not result.is_complete
    assert result.schedule.latency_s > 0
    spinning = [p for p in psutil.process_iter(["cmdline"]) if "spins" in (p.info["cmdline"] or [])]
    assert not [p for p in spinning if p.status() != psutil.STATUS_ZOMBIE]


def test_who_wants_the_program_too_does_not_get_a_schedule_alone(stand_in, cache):
    order = OfflineOrder(dense(), LUNAR_LAKE)
    assert not compile_offline(order, stand_in("spins"), cache, silent, patience=0).is_complete
    assert compile_offline(order, stand_in("works"), cache, silent, patience=0).is_cached
    whole = compile_offline(order, stand_in("works"), cache, silent)
    assert whole.is_complete and not whole.is_cached and stand_in.calls() == 2
    assert compile_offline(order, stand_in("works"), cache, silent).is_complete and stand_in.calls() == 2


def test_a_timeout_is_a_refusal_and_is_not_kept(stand_in, cache):
    order = OfflineOrder(dense(), LUNAR_LAKE)
    refusal = compile_offline(order, stand_in("hangs"), cache, silent, timeout_s=1.5)
    assert isinstance(refusal, Refusal) and refusal.kind == "timeout" and "--timeout" in refusal.advice
    assert isinstance(compile_offline(order, stand_in("works"), cache, silent), OfflineResult)


def test_a_crash_is_a_refusal_with_the_last_lines(stand_in, cache):
    refusal = compile_offline(OfflineOrder(tangent(), LUNAR_LAKE), stand_in("crashes"), cache, silent)
    assert refusal.kind == "crash" and "exit code 5" in refusal.advice
    assert "working on Tan" in refusal.said and refusal.layer == "here"


def test_without_a_cache_it_compiles_all_the_same(stand_in, tmp_path):
    (tmp_path / "file").touch()
    cache = CompileCache(tmp_path / "file", 10**9)
    result = compile_offline(OfflineOrder(dense(), LUNAR_LAKE), stand_in("works"), cache, silent)
    assert isinstance(result, OfflineResult)


def test_what_a_killed_run_left_behind_is_removed(stand_in, cache):
    remains = cache.root / "npu_compiler" / "runs" / "killed"
    (remains / "model").mkdir(parents=True)
    os.utime(remains, (0, 0))
    compile_offline(OfflineOrder(dense(), LUNAR_LAKE), stand_in("works"), cache, silent)
    assert not remains.exists()


def test_wine_that_did_not_start_is_started_again(stand_in, cache):
    result = compile_offline(OfflineOrder(dense(), LUNAR_LAKE), stand_in("stumbles"), cache, silent)
    assert isinstance(result, OfflineResult) and stand_in.calls() == 2


def test_the_worker_of_this_openvino_reads_and_reshapes_and_says_why_it_cannot_compile(cache, tmp_path):
    """Where OpenVINO has no NPU compiler, which is what Linux has; elsewhere it compiles."""
    ov.save_model(dense_model(), tmp_path / "dense.xml")
    compiler = NpuCompiler("native", tmp_path, (sys.executable, str(WORKER)), os.environ)
    order = OfflineOrder(dense(), LUNAR_LAKE, files=(tmp_path / "dense.xml", tmp_path / "dense.bin"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NpuCompiler, "stamp", "test")
        result = compile_offline(order, compiler, cache, silent, timeout_s=120)
    if isinstance(result, Refusal):
        assert result.kind == "internal" and "cannot be loaded" in result.advice, result


def test_the_worker_ends_itself_when_nobody_does(tmp_path):
    """Its limit passes while it waits for a model that never comes."""
    if os.name == "nt":
        pytest.skip("Windows has no named pipes in folders")
    pipe = tmp_path / "model.xml"
    os.mkfifo(pipe)
    done = subprocess.run(
        [sys.executable, str(WORKER), "2", str(pipe), "-"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 124 and done.stdout == "ovnpu timed out\n"


# --- handing the model over -------------------------------------------------------------------------------------------


def handed_over(tmp_path: Path, stand_in, *files: str) -> dict[str, Path]:
    """Name of each file as the compiler gets it -> what it links to."""
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / file).write_text(file, encoding="utf-8")
    folder = tmp_path / "run"
    folder.mkdir()
    order = OfflineOrder(dense(), LUNAR_LAKE, files=tuple(tmp_path / file for file in files))
    main_file = _hand_over(order, stand_in("works"), folder)
    assert main_file.name == f"model{Path(files[0]).suffix}" and main_file.read_text(encoding="utf-8") == files[0]
    links = [file for file in folder.rglob("*") if not file.is_dir()]
    assert all(file.is_symlink() for file in links), "weights of gigabytes are not copied"
    return {file.relative_to(main_file.parent).as_posix(): file.resolve() for file in links}


@pytest.mark.skipif(os.name == "nt", reason="there the compiler is native and opens every name")
def test_an_ir_under_any_name_is_linked(tmp_path, stand_in):
    given = handed_over(tmp_path, stand_in, 'Mein: "Modell" 模型.xml', 'Mein: "Modell" 模型.bin')
    assert set(given) == {"model.xml", "model.bin"}


@pytest.mark.skipif(os.name == "nt", reason="there the compiler is native and opens every name")
def test_weights_that_onnx_keeps_elsewhere_keep_their_name(tmp_path, stand_in):
    given = handed_over(tmp_path, stand_in, "big.onnx", "big.data", "weights/part one.bin")
    assert set(given) == {"model.onnx", "big.data", "weights/part one.bin"}


# --- preflight --------------------------------------------------------------------------------------------------------


def test_preflight_tells_time_engines_layers_and_theory(stand_in, cache):
    one = preflight(dense(), LUNAR_LAKE, stand_in("works"), cache, tiles=4, progress=silent)
    assert one.compiles and one.theory.macs == WIDTH**2
    # 4 of 6 tiles of 24 TOPS
    assert one.theory.peak.macs_per_second == pytest.approx(8e12)
    text = one.text()
    for part in ("about 0.015 ms", "DMA 83%, DPU 1%, SHAVE 16%", "ideal:", "Tanh curve", "the compiler warns: ", "8.4"):
        assert part in text, text
    data = json.loads(json.dumps(one.as_json()))
    assert data["platform"] == "4000" and data["tiles"] == 4 and data["is_complete"]
    assert {layer["name"]: layer["engine"] for layer in data["schedule"]["layers"]}["curve"] == "SHAVE"


def test_a_quantized_model_is_compared_with_the_arrays_in_int8(stand_in, cache):
    convolution = next(probe for probe in probes() if "i8" in probe.kinds and probe.model("i8")[0] == "Convolution")
    peaks = {}
    for kind in ("f16", "i8"):
        one = preflight(convolution.model(kind)[1], LUNAR_LAKE, stand_in("works"), cache, progress=silent)
        peaks[one.precision] = one.theory.peak.macs_per_second
    assert set(peaks) == {"fp16", "int8"} and peaks["int8"] == 2 * peaks["fp16"]


def test_preflight_of_a_model_that_is_refused_says_why(stand_in, cache):
    one = preflight(unique(), LUNAR_LAKE, stand_in("refuses"), cache, progress=silent)
    assert not one.compiles and one.theory is None
    assert "does not compile. Unique 'here': the compiler does not know this operator" in one.text()
    assert one.as_json()["refusal"]["layer"] == "here"


def test_the_trace_is_written_plain_or_packed(stand_in, cache, tmp_path):
    result = preflight(dense(), LUNAR_LAKE, stand_in("works"), cache, progress=silent).result
    write_trace(result, tmp_path / "trace.json")
    write_trace(result, tmp_path / "trace.json.gz")
    plain = (tmp_path / "trace.json").read_bytes()
    assert json.loads(plain)["traceEvents"] and gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == plain


def test_the_command_without_a_compiler_falls_short_with_one_sentence_and_a_prediction(
    empty_cache, monkeypatch, capsys
):
    monkeypatch.chdir(empty_cache)
    ov.save_model(unique(), "unique.xml")
    assert main(["preflight", "unique.xml", "--platform", "all"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("There is no NPU compiler here yet.") and "preflight --setup" in said.splitlines()[0]
    assert "does not take Unique 'here'" in said
    assert main(["preflight", "unique.xml", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["predictions"][0]["refused"][0]["name"] == "here" and "--setup" in data["advice"]


@pytest.fixture
def command(stand_in, empty_cache, monkeypatch):
    """The current folder has dense.xml, and there is a compiler."""
    from ovpack.ov_backends.commands import preflight as command

    monkeypatch.chdir(empty_cache)
    ov.save_model(dense_model(), "dense.xml", compress_to_fp16=False)
    monkeypatch.setattr(command, "find_compiler", lambda: stand_in("works"))
    return command


def test_the_command_compiles_for_each_platform_and_keeps_each_trace(command, capsys):
    arguments = ["dense.xml", "--shape", f"x=[1,{WIDTH}]", "--platform", "3720,4000", "--trace", "t.json.gz", "--json"]
    assert main(["preflight", *arguments]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [one["platform"] for one in data["results"]] == ["3720", "4000"]
    assert {file.name for file in Path().glob("t*")} == {"t-3720.json.gz", "t-4000.json.gz"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Which model?"),
        (["dense.xml"], f"--shape x=[1,{WIDTH}]"),
        (["dense.xml", "--platform", "moon"], "There is no NPU platform 'moon'"),
        (["dense.xml", "--tiles", "7"], "has 6 tiles; 7 cannot be used"),
    ],
)
def test_the_command_used_wrongly_is_explained(command, capsys, arguments, said):
    assert main(["preflight", *arguments]) == 2
    assert said in capsys.readouterr().err


# --- the table of operators -------------------------------------------------------------------------------------------


def test_the_table_holds_every_probe_on_every_platform():
    kinds: dict[str, set[str]] = {}
    for probe in probes():
        for kind in probe.kinds:
            operator, _ = probe.model(kind)
            kinds.setdefault(f"{operator} {probe.variant}".strip(), set()).add(kind)
    assert len(kinds) >= 100
    for platform in find_platforms("all"):
        table = operator_support(platform.number)
        assert {name: set(entries) for name, entries in table.entries.items()} == kinds, "run preflight --operators"
        assert table.compiler.startswith("8.") and table.openvino.startswith("2026.")


def test_a_platform_without_a_table_has_none():
    assert operator_support("6010") is None


@pytest.mark.parametrize(
    ("operator", "kind", "engine"),
    [("Convolution", "i8", "DPU"), ("MatMul", "f16", "DPU"), ("Tanh", "f16", "SHAVE"), ("Softmax", "f32", "SHAVE")],
)
def test_what_everybody_knows_of_the_npu_is_in_the_table(operator, kind, engine):
    assert operator_support("4000").support(operator, kind).engine == engine


def test_a_type_that_was_not_tried_counts_as_its_neighbour():
    table = operator_support("4000")
    assert table.support("Erf", "i8") == table.support("Erf", "f16") and table.support("Nothing", "f16") is None


def test_the_table_predicts_engines_refusals_and_what_is_unknown():
    x = ops.parameter([16], ov.Type.f16)
    curve, found = ops.tanh(x), ops.unique(x, name="here")
    rare = ops.eye(ops.gather(ops.convert(x, "i32"), np.array(0), np.array(0)), np.array(4), np.array(0), "f16")
    model = ov.Model([curve.output(0), found.output(0), rare.output(0)], [x])
    prediction = predict(model, operator_support("4000"))
    assert [(one.type, one.name) for one in prediction.refused] == [("Unique", "here")]
    assert prediction.engines["SHAVE"] >= 1 and prediction.unknown == {"Eye": 1}
    assert "does not take Unique 'here'" in prediction.text() and "not in the table: 1 Eye" in prediction.text()


def test_the_data_says_with_which_compiler_it_was_made():
    data = json.loads(DATA.read_text(encoding="utf-8"))
    assert set(data) == {"openvino", "compiler", "platforms"}
