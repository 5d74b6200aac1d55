"""A submodel runs where its plan says or tells why not, compiles each size once, and equals torch."""

from __future__ import annotations

import json
import shutil
import threading

import pytest
import torch
from openvino import Core
from ovpack.ov_backends import devices, progress
from ovpack.ov_backends.compiler.cache import CompileCache
from ovpack.ov_backends.compiler.ir import Source, hash_tensors
from ovpack.ov_backends.convert.trace import TraceInput, trace
from ovpack.ov_backends.errors import CompileError, DeviceError, FallbackError, InferenceError
from ovpack.ov_backends.plan import SubmodelPlan
from ovpack.ov_backends.report import RunReport, SubmodelReport
from ovpack.ov_backends.runtime import store as store_module
from ovpack.ov_backends.runtime import submodel as submodel_module
from ovpack.ov_backends.runtime.parity import parity
from ovpack.ov_backends.runtime.store import SubmodelStore
from ovpack.ov_backends.runtime.submodel import Submodel
from second_process import SecondProcess
from torch import nn

pytestmark = pytest.mark.usefixtures("clean_environment")

HAS_BF16 = "BF16" in Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


class Net(nn.Module):
    """A convolution on `sample` and text that scales its channels."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.text = nn.Linear(6, 8)

    def forward(self, sample, context):
        scale = self.text(context).mean(dim=1)[:, :, None, None]
        return self.leave(torch.nn.functional.silu(self.enter(sample)) * scale)


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    # weights that FP16 holds exactly, so that what is measured is the arithmetic
    return Net().half().float().eval()


@pytest.fixture(scope="module")
def traced(net):
    sample = TraceInput("sample", torch.randn(2, 4, 8, 8), (-1, 4, -1, -1))
    return trace(net, [sample, TraceInput("context", torch.randn(2, 7, 6), (-1, -1, 6))], ["noise"], "UNet")


@pytest.fixture
def source(net, traced) -> Source:
    return Source("unet", hash_tensors(net.state_dict()), "Net", traced.clone)


@pytest.fixture
def make(source, cache):
    def make(device: str = "CPU", precision: str = "fp32", policy: str = "warn", static: bool = True) -> Submodel:
        return Submodel(source, SubmodelPlan(device, precision), policy, cache, static)

    return make


def inputs(batch: int = 1, height: int = 8, width: int = 8) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    sample = torch.randn(batch, 4, height, width, generator=generator)
    return {"sample": sample, "context": torch.randn(batch, 7, 6, generator=generator)}


def report_for(submodel: Submodel) -> SubmodelReport:
    return RunReport().submodel("unet", submodel.plan.device)


def run(submodel: Submodel, given: dict[str, torch.Tensor], report: SubmodelReport | None = None) -> torch.Tensor:
    return submodel.run(given, report or report_for(submodel), lambda text: None)["noise"]


def largest_error(found: torch.Tensor, net: Net, given: dict[str, torch.Tensor]) -> float:
    with torch.no_grad():
        return (found - net(**given)).abs().max().item()


# Equal to torch


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("device", ["CPU", "NPU"])
def test_any_batch_equals_torch_and_the_npu_gets_static_rows_only(make, net, core, monkeypatch, device, batch):
    monkeypatch.setenv("OVNPU_NPU_EMULATION", "1")
    submodel, given = make(device, "auto"), inputs(batch)
    report = report_for(submodel)
    assert largest_error(run(submodel, given, report), net, given) < 1e-4
    assert report.actual_device == {"CPU": "CPU", "NPU": "NPU (emulated on CPU)"}[device]
    assert report.precision == {"CPU": "fp32", "NPU": "fp16"}[device]
    (target, shapes), *others = core.compiled
    # on another device than the CPU its first request is compared with the CPU
    assert target == device and [other for other, _ in others] == ([] if device == "CPU" else ["CPU"])
    assert all(shape.is_static for shape in shapes)
    assert [shape[0].get_length() for shape in shapes] == [2 if device == "CPU" and batch % 2 == 0 else 1] * 2


def test_one_model_for_all_sizes_where_asked(make, net, core):
    submodel = make(static=False)
    for given in (inputs(1), inputs(3), inputs(2, 16, 24)):
        assert largest_error(run(submodel, given), net, given) < 1e-4
    assert len(core.compiled) == 1


def test_the_npu_stays_static_where_one_model_for_all_sizes_is_asked(make, net, core, emulated_npu):
    submodel = make("NPU", "auto", static=False)
    for given in (inputs(1), inputs(2, 16, 24)):
        assert largest_error(run(submodel, given), net, given) < 1e-4
    assert [[str(shape) for shape in shapes] for target, shapes in core.compiled if target == "NPU"] == [
        ["[1,4,8,8]", "[1,7,6]"],
        ["[1,4,16,24]", "[1,7,6]"],
    ]


# The same values as on the CPU


def test_a_new_compilation_is_compared_with_the_cpu_once(make, net, core, emulated_npu):
    submodel, given = make("NPU", "auto"), inputs(2)
    for _ in range(2):
        assert largest_error(run(submodel, given), net, given) < 1e-4
    assert [target for target, _ in core.compiled] == ["NPU", "CPU"]
    # from the cache it comes proven
    again = make("NPU", "auto")
    run(again, given)
    assert [target for target, _ in core.compiled] == ["NPU", "CPU"] and len(core.imported) == 1


def test_parity_sees_another_value_in_the_first_request(make, net, core):
    submodel, given = make("CPU", "fp32"), inputs(2)
    outputs = {"noise": run(submodel, given)}
    assert parity(submodel._ir, 1, given, outputs, lambda text: None) > 0.999999
    outputs["noise"][0] = torch.randn_like(outputs["noise"][0])
    assert parity(submodel._ir, 1, given, outputs, lambda text: None) < 0.5


def test_a_device_with_other_values_hands_over_to_the_cpu_and_is_not_cached(make, net, core, monkeypatch, cache):
    monkeypatch.setattr(submodel_module, "parity", lambda *_: 0.42)
    submodel, given = make("GPU", "fp32"), inputs(2)
    report = report_for(submodel)
    assert largest_error(run(submodel, given, report), net, given) < 1e-4
    assert report.actual_device == "CPU" and [target for target, _ in core.compiled] == ["GPU", "CPU"]
    (notice,) = report.notices
    assert notice == (
        "It runs on the CPU instead: GPU in fp32 gave other values than the CPU in fp32 for the same input (cosine "
        "0.420, 0.99 is needed)."
    )
    kept = [e.manifest["identity"]["device"] for e in cache.entries() if e.manifest["kind"] == "blob"]
    assert kept == ["CPU"]


def test_with_policy_error_other_values_stop_the_run(make, core, monkeypatch):
    monkeypatch.setattr(submodel_module, "parity", lambda *_: 0.42)
    with pytest.raises(InferenceError, match=r"UNet: GPU in fp32 gave other values than the CPU .* Update the driver"):
        run(make("GPU", "fp32", "error"), inputs(2))


# Compiled once


def test_three_runs_compile_once_and_the_counter_proves_it(make, core):
    submodel = make()
    reports = [report_for(submodel) for _ in range(3)]
    for report in reports:
        for _ in range(2):
            run(submodel, inputs(2), report)
    assert [(r.conversions, r.compilations) for r in reports] == [(1, 1)] * 3 and len(core.compiled) == 1
    assert [(r.cache_state, r.cache_reason) for r in reports] == [("miss", "new"), *[("hit", "in memory")] * 2]
    assert reports[0].convert_s > 0 and reports[0].compile_s > 0
    assert (reports[1].convert_s, reports[1].compile_s, reports[1].import_s) == (0.0, 0.0, 0.0)


def test_two_sizes_in_turn_compile_twice_in_all(make, net, core):
    submodel, report = make(), None
    for _ in range(3):
        for given in (inputs(1), inputs(1, 16, 8)):
            report = report_for(submodel)
            assert largest_error(run(submodel, given, report), net, given) < 1e-4
    assert len(core.compiled) == report.compilations == 2 and report.conversions == 1


def test_another_size_pushes_out_the_oldest_where_memory_is_short(make):
    submodel = make()
    run(submodel, inputs(1))
    one = submodel.bytes
    submodel.kept_bytes = 2 * one
    for height in (16, 24):
        run(submodel, inputs(1, height))
    assert (submodel.bytes, submodel.compilations) == (2 * one, 3)
    run(submodel, inputs(1, 16))
    assert submodel.compilations == 3, "still in memory"


def test_more_sizes_than_are_kept_in_memory_come_back_from_the_cache(make, core, monkeypatch):
    monkeypatch.setattr(submodel_module, "MAX_SESSIONS", 2)
    submodel = make()
    for height in (8, 10, 12, 8):
        report = report_for(submodel)
        run(submodel, inputs(1, height), report)
    assert (report.cache_state, report.compilations, len(core.imported)) == ("hit", 3, 1)


def test_of_two_sizes_in_one_run_the_report_tells_the_miss(make):
    run(make(), inputs(1))
    submodel = make()
    report = report_for(submodel)
    run(submodel, inputs(1, 12), report)
    run(submodel, inputs(1), report)
    assert report.cache_state == "miss"
    assert report.cache_reason == (
        "shape changed: context=[1,7,6] sample=[1,4,8,8] -> context=[1,7,6] sample=[1,4,12,8]"
    )


SECOND = """
import json
import torch
from ovpack.ov_backends.compiler.ir import Source
from ovpack.ov_backends.plan import SubmodelPlan
from ovpack.ov_backends.report import RunReport
from ovpack.ov_backends.runtime.submodel import Submodel

def convert():
    raise AssertionError("converted again")

submodel = Submodel(Source("unet", sys.argv[2], "Net", convert), SubmodelPlan("CPU"), "warn", CompileCache(Path(sys.argv[1]), 10**9))
run = RunReport()
given = {"sample": torch.ones(1, 4, 8, 8), "context": torch.ones(1, 7, 6)}
noise = submodel.run(given, run.submodel("unet", "CPU"), lambda text: None)["noise"]
say(json.dumps(run.as_json({})["submodels"]["unet"]))
say(json.dumps(noise.flatten().tolist()))
"""  # noqa: E501


def test_second_process_neither_converts_nor_compiles(make, source, cache):
    given = {"sample": torch.ones(1, 4, 8, 8), "context": torch.ones(1, 7, 6)}
    first = run(make(), given)
    with SecondProcess(SECOND, cache.root, source.weights) as second:
        report, noise = map(json.loads, second.finish())
    assert report["cache"] == {"state": "hit", "reason": ""}
    assert report["counters"] == {"conversions": 0, "compilations": 0}
    assert report["seconds"]["convert"] == report["seconds"]["compile"] == 0 and report["seconds"]["import"] > 0
    assert torch.allclose(torch.tensor(noise), first.flatten(), atol=1e-6)


def test_emptying_the_cache_folder_meanwhile_is_survived(make, net, cache):
    submodel = make()
    run(submodel, inputs(1))
    shutil.rmtree(cache.root)
    given = inputs(1, 16, 8)
    assert largest_error(run(submodel, given), net, given) < 1e-4
    assert submodel.conversions == 2


def test_a_root_that_cannot_be_written_still_gives_the_result_and_is_in_the_report(source, net, tmp_path):
    (tmp_path / "file").write_text("")
    submodel = Submodel(source, SubmodelPlan("CPU"), "warn", CompileCache(tmp_path / "file" / "cache", 10**9))
    report, given = report_for(submodel), inputs(2)
    assert largest_error(run(submodel, given, report), net, given) < 1e-4
    assert report.cache_state == "miss" and report.cache_reason.startswith("new; not kept: ")
    assert "not kept" in report.line()


# Told in the report


def test_the_first_inference_is_kept_apart_from_the_steady_ones(make):
    submodel = make()
    report = report_for(submodel)
    for _ in range(4):
        run(submodel, inputs(1), report)
    assert report.openvino_calls == 4 and report.first_ms > 0
    assert len(report.call_ms) == len(report.outside_ms) == 3
    assert all(0 <= outside < whole for outside, whole in zip(report.outside_ms, report.call_ms, strict=True))


@pytest.mark.skipif(HAS_BF16, reason="this CPU has BF16")
def test_bf16_on_a_cpu_without_it_computes_in_fp32_and_says_why(make, net):
    submodel, given = make(precision="bf16"), inputs(1)
    report = report_for(submodel)
    assert largest_error(run(submodel, given, report), net, given) < 1e-4
    assert report.precision == "fp32"
    assert report.notices == ["bf16 was asked for; this CPU has no BF16 arithmetic and computes in fp32"]


@pytest.mark.skipif(not HAS_BF16, reason="this CPU has no BF16")
def test_bf16_on_a_cpu_that_has_it_is_what_runs_in_the_next_process_too(make, net):
    for _ in range(2):
        submodel, given = make(precision="bf16"), inputs(1)
        report = report_for(submodel)
        assert 0 < largest_error(run(submodel, given, report), net, given) < 0.1
        assert (report.precision, report.notices) == ("bf16", [])
    assert report.cache_state == "hit"


def test_a_precision_that_cannot_be_had_is_an_error_under_policy_error(make, emulated_npu):
    with pytest.raises(FallbackError, match="UNet: fp32 was asked for; the NPU computes in fp16, and .* 'error'"):
        make("NPU", "fp32", policy="error")


# Elsewhere than asked


@pytest.mark.parametrize("policy", ["warn", "allow"])
def test_a_device_that_refuses_the_model_gives_way_to_the_cpu_with_the_reason(make, net, core, caplog, policy):
    core.refuses["GPU"] = "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"
    submodel, given = make("GPU", "auto", policy=policy), inputs(2)
    report = report_for(submodel)
    for _ in range(2):
        assert largest_error(run(submodel, given, report), net, given) < 1e-4
    assert (report.requested_device, report.actual_device, report.precision) == ("GPU", "CPU", "fp32")
    assert [target for target, _ in core.compiled] == ["GPU", "CPU"], "it is not asked again in this process"
    assert report.notices[0].startswith("It runs on the CPU instead. GPU could not compile the UNet: ")
    assert "not enough memory" in report.notices[0]
    assert ("It runs on the CPU instead" in caplog.text) == (policy == "warn") != report.is_quiet


def test_an_npu_that_refuses_the_model_gives_way_to_the_cpu_with_the_reason(make, net, core, emulated_npu):
    core.refuses["NPU"] = "Unsupported operation SoftMax"
    submodel, given = make("NPU", "auto"), inputs(2)
    report = report_for(submodel)
    assert largest_error(run(submodel, given, report), net, given) < 1e-4
    assert (report.actual_device, report.precision) == ("CPU", "fp32")
    assert "does not know an operator of this model" in report.notices[0]
    assert [[shape[0].get_length() for shape in shapes] for _, shapes in core.compiled] == [[1, 1], [2, 2]]


@pytest.mark.parametrize("device", ["GPU", "NPU"])
def test_policy_error_stops_where_the_device_refuses_the_model(make, core, emulated_npu, device):
    core.refuses[device] = "Unsupported operation SoftMax"
    with pytest.raises(CompileError, match=rf"^{device}.*could not compile the UNet: .*Unsupported operation"):
        run(make(device, "auto", policy="error"), inputs(2))
    assert [target for target, _ in core.compiled] == [device]


def test_an_operator_the_device_lacks_is_in_the_report(make, net, core):
    core.lacks = frozenset({"Swish"})
    submodel, given = make("GPU", "fp32"), inputs(2)
    report = report_for(submodel)
    assert largest_error(run(submodel, given, report), net, given) < 1e-4
    assert [(o.type, o.device) for o in report.fallback] == [("Swish", "CPU")]
    assert report.operators["CPU"] == 1 and report.operators["GPU"] > 3 and report.device_switches == 2
    assert "fell back: 1 Swish" in report.line()


def test_policy_error_stops_where_the_device_lacks_an_operator(make, core):
    core.lacks = frozenset({"Swish"})
    with pytest.raises(FallbackError, match=r"1 operators of the UNet \(Swish\) cannot run on GPU"):
        run(make("GPU", "fp32", policy="error"), inputs(2))


def test_a_device_that_is_not_there_is_an_error_or_a_notice(make, net, core):
    with pytest.raises(DeviceError, match=r"GPU\.3"):
        make("GPU.3", policy="error")
    submodel, given = make("GPU.3"), inputs(1)
    report = report_for(submodel)
    run(submodel, given, report)
    assert "GPU.3" in report.notices[0]


# Interruption


class Interrupted(Exception):
    """What the host raises when the user presses Cancel."""


def test_an_interrupt_while_compiling_leaves_a_submodel_that_works(make, net, core, cache, monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.01)
    core.may_finish = threading.Event()

    def interrupt(text: str) -> None:
        if text.startswith("Compiling") and text.endswith(" s"):
            core.may_finish.set()
            raise Interrupted

    submodel, given = make(), inputs(1)
    with pytest.raises(Interrupted):
        submodel.run(given, report_for(submodel), interrupt)
    assert [entry.path.parent.name for entry in cache.entries()] == ["ir"]
    report = report_for(submodel)
    assert largest_error(run(submodel, given, report), net, given) < 1e-4
    assert (report.cache_state, report.conversions, report.compilations) == ("miss", 1, 1)


def test_the_user_is_told_every_step_of_the_first_run(make, emulated_npu):
    texts: list[str] = []
    submodel = make("NPU", "auto")
    submodel.run(inputs(1), report_for(submodel), texts.append)
    assert [text for text in texts if not text.endswith(" s")] == [
        "Converting the UNet to OpenVINO, once for these weights",
        "Compiling the UNet for NPU (emulated on CPU), first run only",
        "Keeping the compiled UNet",
        "Comparing the first call with the CPU, once for each compilation",
    ]


# The store


def test_the_next_prompt_finds_the_same_submodel(source, cache):
    store, plan = SubmodelStore(cache), SubmodelPlan("CPU")
    submodel = store.get(source, plan, "warn")
    assert store.get(source, SubmodelPlan("CPU"), "warn") is submodel
    for other in (
        store.get(source, SubmodelPlan("CPU", "fp32"), "warn"),
        store.get(source, plan, "error"),
        store.get(source, plan, "warn", static=False),
    ):
        assert other is not submodel


def test_the_store_drops_the_least_recently_used_when_memory_is_short(source, cache):
    """As when a LoRA's strength is tried again and again: each strength has weights of its own."""
    plan = SubmodelPlan("CPU")
    sources = [Source("unet", weights, "Net", source.convert) for weights in ("a", "b", "c")]
    store = SubmodelStore(cache, kept_bytes=10**9)
    for each in sources[:2]:
        run(store.get(each, plan, "warn"), inputs(1), report_for(store.get(each, plan, "warn")))
    first, second = (store.get(each, plan, "warn") for each in sources[:2])
    assert first.bytes > 0 and store.get(sources[0], plan, "warn") is first
    store.kept_bytes = first.bytes
    store.get(sources[2], plan, "warn")
    assert store.get(sources[0], plan, "warn") is first
    assert store.get(sources[1], plan, "warn") is not second


def test_releasing_weights_drops_what_was_compiled_from_them(source, cache):
    store, plan = SubmodelStore(cache), SubmodelPlan("CPU")
    first = store.get(source, plan, "warn")
    store.release("other")
    assert store.get(source, plan, "warn") is first
    store.release(source.weights)
    assert store.get(source, plan, "warn") is not first


def test_the_store_of_this_process_is_over_the_configured_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("OVNPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("OVNPU_CACHE_LIMIT_GB", "3")
    store_module.store.cache_clear()
    try:
        store = store_module.store()
        assert (store.cache.root, store.cache.limit_bytes) == (tmp_path, 3 * 10**9)
        assert store_module.store() is store
    finally:
        store_module.store.cache_clear()


def test_the_emulation_is_never_taken_for_an_npu(make, emulated_npu):
    submodel = make("NPU", "auto")
    report = report_for(submodel)
    run(submodel, inputs(1), report)
    assert report.actual_device == devices.label("NPU") == "NPU (emulated on CPU)"
    assert list(report.operators) == ["NPU (emulated on CPU)"]
    assert "NPU (emulated on CPU) fp16" in report.line()
