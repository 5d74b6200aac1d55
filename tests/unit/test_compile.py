"""Compiling happens once, elsewhere than asked only with leave, and whatever the disk does the model comes out."""

from __future__ import annotations

import json
import logging
import threading

import numpy as np
import openvino as ov
import pytest
from ovpack.ov_backends import devices, progress
from ovpack.ov_backends.compiler.cache import MANIFEST, CompileCache, Entry, file_hash
from ovpack.ov_backends.compiler.compile import BLOB, PLACEMENT, Compiled, compile_cached
from ovpack.ov_backends.compiler.precision import actual_precision, resolve_precision
from ovpack.ov_backends.errors import CompileError, FallbackError, ShapeError
from second_process import SecondProcess
from small_models import IDENTITY, WIDTH, dense_expected, dense_input, dense_order

pytestmark = pytest.mark.usefixtures("clean_environment")

SECOND = """
from small_models import dense_input, dense_order
from ovpack.ov_backends.compiler.compile import compile_cached
compiled = compile_cached(dense_order(), CompileCache(Path(sys.argv[1]), 10**9), lambda text: None)
say(compiled.state)
say(compiled.reason)
say(repr(compiled.model(dense_input())[0].sum().item()))
"""


def make(cache: CompileCache, **changes) -> Compiled:
    return compile_cached(dense_order(**changes), cache, lambda text: None)


def error_of(compiled: Compiled) -> float:
    x = dense_input()
    return float(np.abs(compiled.model(x)[0] - dense_expected(x)).max())


# Through the cache


def test_second_process_imports_the_blob(cache):
    first = make(cache)
    assert (first.state, first.reason) == ("miss", "new") and first.compile_s > 0
    with SecondProcess(SECOND, cache.root) as second:
        state, reason, total = second.finish()
    assert (state, reason) == ("hit", "")
    assert float(total) == pytest.approx(first.model(dense_input())[0].sum().item())


def test_a_hit_compiles_nothing_and_keeps_its_entry_in_use(cache, core):
    make(cache)
    hit = make(cache)
    assert (hit.state, hit.compile_s, len(core.compiled), len(core.imported)) == ("hit", 0.0, 1, 1)
    assert hit.import_s > 0 and error_of(hit) < 1e-5
    cache.limit_bytes = 0
    assert cache.evict() == []


def test_the_imported_blob_is_asked_for_the_same_precision(cache, core):
    make(cache)
    make(cache)
    assert core.imported == [("CPU", {"INFERENCE_PRECISION_HINT": "f32"})]


@pytest.mark.parametrize(
    "identity, changes, reason",
    [
        ({"driver": "4023"}, {}, "driver changed: 3917 -> 4023"),
        ({"openvino": "2026.9.0"}, {}, "openvino changed: 2026.4.1 -> 2026.9.0"),
        ({"architecture": "5010"}, {}, "architecture changed: 4000 -> 5010"),
        ({}, {"shapes": {"x": (2, WIDTH)}}, "shape changed: x=[1,64] -> x=[2,64]"),
        ({}, {"shapes": None}, "shape changed: x=[1,64] -> dynamic"),
        ({}, {"precision": "bf16"}, "precision changed: fp32 -> bf16"),
        ({}, {"ir_identity": IDENTITY | {"weights": "b" * 32}}, "weights changed: aaaaaaaa -> bbbbbbbb"),
        ({"device": "NPU"}, {"precision": "fp16"}, "device changed: CPU -> NPU"),
        ({}, {"ir_identity": IDENTITY | {"model": "Dense with other heads"}}, "new"),
    ],
)
def test_what_a_blob_depends_on_recompiles_it_and_says_so(cache, monkeypatch, identity, changes, reason):
    machine = {"device": "CPU", "architecture": "4000", "driver": "3917", "openvino": "2026.4.1", "compiler": ""}
    monkeypatch.setattr(devices, "identity", lambda device: machine)
    make(cache)
    monkeypatch.setattr(devices, "identity", lambda device: machine | identity)
    again = make(cache, **changes)
    assert (again.state, again.reason) == ("miss", reason)
    assert again.entry.manifest["why"] == reason
    assert make(cache, **changes).state == "hit"


def test_a_path_with_spaces_and_letters_of_any_alphabet_works(tmp_path):
    cache = CompileCache(tmp_path / "Mein Modèle 图像 ü", 10**9)
    assert make(cache).state == "miss"
    hit = make(cache)
    assert hit.state == "hit" and error_of(hit) < 1e-5


# Damage


def _truncated(blob):
    blob.write_bytes(blob.read_bytes()[:-10])


def _empty(blob):
    blob.write_bytes(b"")


def _garbage(blob):
    blob.write_bytes(b"\x5a" * blob.stat().st_size)


def _garbage_with_the_right_hash(blob):
    _garbage(blob)
    manifest = json.loads((blob.parent / MANIFEST).read_text(encoding="utf-8"))
    manifest["files"][BLOB]["sha256"] = file_hash(blob)
    (blob.parent / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def _placement_gone(blob):
    (blob.parent / PLACEMENT).unlink()


def _manifest_gone(blob):
    (blob.parent / MANIFEST).unlink()


def _manifest_broken(blob):
    (blob.parent / MANIFEST).write_text('{"kind": "bl', encoding="utf-8")


@pytest.mark.parametrize(
    "damage",
    [
        _truncated, _empty, _garbage, _garbage_with_the_right_hash, _placement_gone, _manifest_gone, _manifest_broken
    ],
    ids=lambda d: d.__name__,
)  # fmt: skip
def test_a_damaged_blob_is_compiled_again_once_with_a_warning(cache, core, caplog, damage):
    damage(make(cache).entry.path / BLOB)
    again = make(cache)
    assert again.state == "miss" and again.reason.startswith("corrupt: ")
    assert error_of(again) < 1e-5
    assert [r.levelno for r in caplog.records] == [logging.WARNING], caplog.text
    assert make(cache).state == "hit"
    assert len(core.compiled) == 2, "once at first, once for the damage"


# A disk that does not take it

FULL_DISK = """
import resource, signal
import numpy as np
from small_models import *
from ovpack.ov_backends.compiler.compile import compile_cached
from ovpack.ov_backends.compiler.ir import Source, load_or_convert
from openvino import opset13 as ops

# a write beyond 4 KB fails, as on a full disk, in Python's files and in OpenVINO's own
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
cache = CompileCache(Path(sys.argv[1]), 10**9)
ir = load_or_convert(Source("unet", "a" * 32, "Dense", dense_model), cache, lambda text: None)
compiled = compile_cached(dense_order(read=ir.read, ir_identity=ir.identity), cache, lambda text: None)
x = dense_input()
say(ir.reason)
say(compiled.reason)
say(float(np.abs(compiled.model(x)[0] - dense_expected(x)).max()))
say([*cache.entries(), *(cache.root / "tmp").iterdir()])
"""


def test_a_full_disk_still_gives_the_result(tmp_path):
    pytest.importorskip("resource", reason="limits of file sizes exist on POSIX only")
    with SecondProcess(FULL_DISK, tmp_path) as process:
        ir_reason, reason, error, left = process.finish()
    assert ir_reason.startswith("new; not kept: ") and reason == "new; not kept: File too large"
    assert float(error) < 1e-5
    assert left == "[]"


def test_a_root_that_cannot_be_written_still_gives_the_result(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    compiled = make(CompileCache(tmp_path / "file" / "cache", 10**9))
    assert compiled.reason.startswith("new; not kept: ") and compiled.entry is None
    assert error_of(compiled) < 1e-5
    assert "could not be kept" in caplog.text and len(caplog.records) == 1


# A device that refuses


def test_a_device_that_refuses_the_model_is_an_error_with_its_reason(cache, core):
    core.refuses["GPU"] = "Failed to statically allocate 9 GB"
    with pytest.raises(CompileError, match="GPU could not compile the UNet: .*does not fit into the memory"):
        make(cache, device="GPU")
    assert cache.entries() == []


def test_an_operator_the_device_lacks_runs_on_the_cpu_and_is_listed(cache, core):
    core.lacks = frozenset({"Tanh"})
    compiled = make(cache, device="GPU")
    assert [target for target, _ in core.compiled] == ["GPU", "HETERO:GPU,CPU"]
    assert [(o.name, o.type, o.device) for o in compiled.placement.fallback] == [("curve", "Tanh", "CPU")]
    assert (dict(compiled.placement.devices), compiled.placement.switches) == ({"GPU": 1, "CPU": 1}, 1)
    again = make(cache, device="GPU")
    assert again.state == "hit" and again.placement == compiled.placement
    assert core.imported[0][0] == "HETERO:GPU,CPU"


def test_policy_error_refuses_operators_elsewhere(cache, core):
    core.lacks = frozenset({"Tanh"})
    with pytest.raises(FallbackError, match=r"1 operators of the UNet \(Tanh\) cannot run on GPU.*policy is 'error'"):
        make(cache, device="GPU", policy="error")


def test_policy_error_refuses_a_cached_blob_with_operators_elsewhere(cache, core):
    core.lacks = frozenset({"Tanh"})
    make(cache, device="GPU", policy="warn")
    with pytest.raises(FallbackError, match="Tanh"):
        make(cache, device="GPU", policy="error")
    assert make(cache, device="GPU", policy="allow").state == "hit"


def test_a_graph_that_cannot_be_cut_is_a_compile_error_too(cache, core):
    core.lacks, core.refuses_hetero = frozenset({"Tanh"}), True
    with pytest.raises(CompileError, match="GPU could not compile the UNet: HETERO cannot cut this graph"):
        make(cache, device="GPU")


def test_a_size_the_graph_cannot_take_is_a_shape_error(cache):
    with pytest.raises(ShapeError, match=r"UNet cannot take inputs of this size \(x=\[1,7\]\)"):
        make(cache, shapes={"x": (1, 7)})


@pytest.mark.parametrize("shapes, said", [(None, "dynamic dimension"), ({"x": (2, WIDTH)}, "has batch 2")])
def test_the_npu_never_receives_a_dynamic_dimension_or_a_batch(cache, core, emulated_npu, shapes, said):
    with pytest.raises(ShapeError, match=said):
        make(cache, device="NPU", precision="fp16", shapes=shapes)
    assert core.compiled == []


# Interruption


class Interrupted(Exception):
    """What the host raises when the user presses Cancel."""


def test_an_interrupt_while_compiling_stops_there_and_the_next_run_works(cache, core, monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.01)
    core.may_finish = threading.Event()

    def interrupt(text: str) -> None:
        if text.endswith(" s"):
            core.may_finish.set()
            raise Interrupted

    with pytest.raises(Interrupted):
        compile_cached(dense_order(), cache, interrupt)
    assert len(core.compiled) == 1 and cache.entries() == []
    assert (make(cache).state, make(cache).state) == ("miss", "hit")


@pytest.mark.parametrize("boundary", ["Compiling the UNet for CPU", "Keeping the compiled UNet", "Loading the UNet"])
def test_an_interrupt_at_any_boundary_leaves_the_cache_consistent(cache, boundary):
    if boundary.startswith("Loading"):
        make(cache)

    def interrupt(text: str) -> None:
        if text.startswith(boundary):
            raise Interrupted

    with pytest.raises(Interrupted):
        compile_cached(dense_order(), cache, interrupt)
    make(cache)
    hit = make(cache)
    assert hit.state == "hit" and error_of(hit) < 1e-5


# Precision


@pytest.mark.parametrize(
    "asked, device, capabilities, precision, said",
    [
        ("auto", "CPU", "FP32", "fp32", ""),
        ("auto", "NPU", "", "fp16", ""),
        ("auto", "GPU.1", "FP32 FP16", "fp16", ""),
        ("fp32", "GPU", "FP16", "fp32", ""),
        ("fp32", "NPU", "", "fp16", "fp32 was asked for; the NPU computes in fp16"),
        ("bf16", "CPU", "BF16 FP32", "bf16", ""),
        ("bf16", "CPU", "FP32 INT8", "fp32", "bf16 was asked for; this CPU has no BF16 arithmetic"),
        ("fp16", "CPU", "FP32 INT8", "fp32", "fp16 was asked for; this CPU has no FP16 arithmetic"),
    ],
)
def test_a_precision_the_device_lacks_is_replaced_with_a_reason(
    monkeypatch, asked, device, capabilities, precision, said
):
    monkeypatch.setattr(devices, "capabilities", lambda device: capabilities)
    found, reason = resolve_precision(asked, device)
    assert found == precision and reason.startswith(said) and bool(reason) == bool(said)


def test_the_precision_is_read_from_the_compiled_model(cache):
    compiled = make(cache)
    assert actual_precision(compiled.model, "bf16") == "fp32", "the plan is not what runs"


def test_an_emulated_npu_that_does_not_tell_is_taken_at_its_plan(cache, emulated_npu):
    compiled = make(cache, device="NPU", precision="fp16")
    assert isinstance(compiled.model, ov.CompiledModel) and isinstance(compiled.entry, Entry)
    assert actual_precision(compiled.model, "fp16") == "fp16"
