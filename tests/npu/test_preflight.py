"""Intel's NPU compiler itself: the demo model on three generations, refusals, a crash, a timeout, several at a time."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from demo_shapes import SHAPES
from npu_models import REFUSED, tangent
from ovpack.ov_backends.__main__ import main
from ovpack.ov_backends.compiler.npu_offline import OfflineOrder, OfflineResult, compile_offline
from ovpack.ov_backends.compiler.npu_platforms import find_platforms
from ovpack.ov_backends.graph.npu_support import operator_support
from ovpack.ov_backends.preflight import Preflight, preflight
from small_models import WIDTH, dense_model

PLATFORMS = {platform.number: platform for platform in find_platforms("all")}
LUNAR_LAKE = PLATFORMS["4000"]
TILES = 2
"""All of Meteor Lake's, and of the others so many that they compare: the compiler takes longer the more there are."""


def silent(text: str) -> None:
    pass


@pytest.fixture(scope="session")
def flown(compiler, results, demo):
    """flown(submodel, platform): the preflight of a demo submodel; two compile at a time, each on one core."""

    def fly(order: tuple[str, str]) -> Preflight:
        one, number = demo(order[0]), order[1]
        return preflight(one.model, PLATFORMS[number], compiler, results, tiles=TILES, files=one.files, progress=silent)

    orders = [(submodel, number) for submodel in SHAPES for number in reversed(PLATFORMS)]
    with ThreadPoolExecutor(2) as pool:
        done = dict(zip(orders, pool.map(fly, orders), strict=True))
    return lambda submodel, number: done[submodel, number]


def test_two_setups_at_once_both_end_well(setups):
    assert [done.returncode for done in setups] == [0, 0], "\n".join(done.stderr for done in setups)
    assert all(done.stdout.startswith("The NPU compiler is ready") for done in setups)


@pytest.mark.parametrize("number", PLATFORMS)
@pytest.mark.parametrize("submodel", SHAPES)
def test_the_demo_model_compiles(flown, submodel, number):
    one = flown(submodel, number)
    assert one.compiles, one.text()
    schedule = one.result.schedule
    assert one.result.tiles == TILES and one.result.compiler
    assert schedule.units["DPU"] == TILES
    assert all(0 < schedule.busy_s[engine] <= schedule.latency_s for engine in ("DPU", "SHAVE", "DMA")), schedule.busy_s
    # the compiler's own sums, from another part of what it writes
    assert max(schedule.busy_s.values()) <= schedule.latency_s - schedule.idle_s + 1e-9
    assert one.theory.ideal_s < schedule.latency_s


@pytest.mark.parametrize("number", PLATFORMS)
def test_the_arrays_get_the_convolutions_and_the_vector_units_the_softmax(flown, demo, number):
    """Layers of the schedule are layers of the model, by name."""
    schedule = flown("unet", number).result.schedule
    of_model = {node.get_friendly_name() for node in demo("unet").model.get_ops() if "Convol" in node.get_type_name()}
    on_arrays = {layer.name for layer in schedule.layers if layer.type == "Convolution" and "DPU" in layer.busy_s}
    assert of_model <= on_arrays, of_model - on_arrays
    attention = [one for one in schedule.types if one.type in ("Softmax", "ScaledDotProductAttention")]
    assert max(attention, key=lambda one: one.work_s).engine == "SHAVE"


def test_newer_generations_are_estimated_faster_with_as_many_tiles(flown):
    times = [flown("unet", number).result.schedule.latency_s for number in ("3720", "4000", "5010")]
    assert times[0] > times[1] and times[0] > times[2], times


def test_the_second_time_it_comes_from_the_cache(flown, compiler, results, demo):
    first = flown("text_encoder", "4000").result
    one = demo("text_encoder")
    again = preflight(one.model, LUNAR_LAKE, compiler, results, tiles=TILES, files=one.files, progress=silent)
    assert again.result.is_cached and again.result.schedule == first.schedule


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "huge"])
def test_a_refusal_names_operator_layer_and_what_to_do(compiler, results, name):
    build, kind, operator, advice = REFUSED[name]
    one = preflight(build(), LUNAR_LAKE, compiler, results, progress=silent)
    assert not one.compiles
    assert (one.refusal.kind, one.refusal.operator, one.refusal.layer) == (kind, operator, "here"), one.text()
    assert advice in one.text()


def test_a_crash_of_the_compiler_is_reported_and_blamed(compiler, results):
    one = preflight(tangent(), LUNAR_LAKE, compiler, results, progress=silent)
    if one.compiles:
        pytest.skip("not run: this version of the compiler does not crash on Tan")
    assert one.refusal.kind == "crash" and one.refusal.operator == "Tan" and one.refusal.layer == "here"
    assert one.refusal.said and "Register dump" not in one.refusal.said


def test_a_timeout_leaves_nothing_behind(compiler, results, demo):
    one = demo("unet")
    order = OfflineOrder(one.model, PLATFORMS["5010"], 1, one.files)
    refusal = compile_offline(order, compiler, results, silent, timeout_s=4)
    assert refusal.kind == "timeout", refusal
    running = [p for p in psutil.process_iter(["cmdline"]) if str(results.root) in " ".join(p.info["cmdline"] or [])]
    assert not running and not list((results.root / "npu_compiler" / "runs").iterdir())


def test_several_compile_side_by_side(compiler, results):
    def compile_rows(rows: int) -> OfflineResult:
        model = dense_model()
        model.reshape([rows, WIDTH])
        return compile_offline(OfflineOrder(model, LUNAR_LAKE), compiler, results, silent)

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(compile_rows, range(1, 9)))
    assert all(isinstance(one, OfflineResult) for one in made), made
    assert not any(one.is_cached for one in made)


def test_the_command_compiles_a_dynamic_file_and_writes_the_trace(compiler, demo_files, tmp_path, monkeypatch, capsys):
    from ovpack.ov_backends.commands import preflight as command

    monkeypatch.setattr(command, "default_root", lambda: tmp_path / "results")
    arguments = [
        str(demo_files["text_encoder"]),
        "--shape",
        "embeds=[1,77,64]",
        "--platform",
        "Lunar Lake",
        "--tiles",
        "2",
    ]
    assert main(["preflight", *arguments, "--trace", str(tmp_path / "trace.json"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["results"][0]
    assert data["compiles"] and data["tiles"] == 2 and data["schedule"]["latency_s"] > 0
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {"M", "X"} == {event["ph"] for event in events}, "what Perfetto reads: names, and tasks with a duration"


def test_the_table_of_operators_is_of_this_compiler_and_still_true(compiler, results):
    """A few of it, made again."""
    from ovpack.ov_backends.compiler.npu_operators import try_one
    from ovpack.ov_backends.compiler.npu_probes import probes

    table = operator_support("4000")
    wanted = {("Convolution", "i8"), ("Softmax", "f16"), ("TopK", "f16"), ("Transpose", "f16"), ("Unique", "f32")}
    tried = {}
    for probe in probes():
        for kind in probe.kinds:
            operator, model = probe.model(kind)
            if (operator, kind) in wanted and not probe.variant:
                tried[operator, kind] = try_one(operator, model, LUNAR_LAKE, compiler, results)
    assert set(tried) == wanted
    assert {key: (s.engine, s.is_taken) for key, s in tried.items()} == {
        key: (s.engine, s.is_taken) for key in wanted if (s := table.support(*key))
    }
