"""The bundled workflow on an emulated NPU: an image that shows what was asked, and the truth about where it ran."""

from __future__ import annotations

from client import EMULATED, image_of, messages_until_done
from prompts import SAMPLER, bundled
from shapes import Scene, read_scene

SUBMODEL_KEYS = {
    "requested_device", "actual_device", "precision", "fallback", "device_switches", "cache", "seconds", "first_ms",
    "steady_ms", "calls", "torch_reasons",
}  # fmt: skip


def prepared_s(report: dict) -> float:
    return sum(sum(submodel["seconds"].values()) for submodel in report["submodels"].values())


def test_the_image_shows_the_prompt_and_the_report_says_where_it_ran(start_server, run, report_of):
    # a server of its own: ComfyUI does not run the text encoder again for a prompt that another test has asked for
    with start_server("first image", EMULATED) as server:
        outputs = run(server, bundled())
        assert read_scene(image_of(server, outputs)) == Scene("circle", "red", "blue")
    report = report_of(outputs)
    assert report["schema"] == 1
    assert set(report["submodels"]) == {"text_encoder", "unet", "vae_decoder"}
    for submodel in report["submodels"].values():
        assert set(submodel) >= SUBMODEL_KEYS
        assert submodel["calls"]["torch"] == 0 and submodel["fallback"] == []
    unet = report["submodels"]["unet"]
    assert (unet["requested_device"], unet["actual_device"]) == ("NPU", "NPU (emulated on CPU)")
    assert unet["calls"]["openvino"] == 20
    assert unet["first_ms"] > 0 and unet["steady_ms"] > 0
    assert "NPU (emulated on CPU)" in outputs[SAMPLER]["text"][0]


def test_three_seeds_compile_once(start_server, run, report_of):
    with start_server("three seeds", EMULATED) as server:
        reports = [report_of(run(server, bundled(n7={"seed": seed})))["submodels"]["unet"] for seed in (11, 12, 13)]
    assert {r["counters"]["compilations"] for r in reports} == {1}
    assert {r["counters"]["conversions"] for r in reports} == {1}
    assert [sum(r["seconds"].values()) for r in reports[1:]] == [0, 0]


def test_a_second_server_loads_all_from_the_cache_in_a_quarter_of_the_time(start_server, run, report_of, tmp_path):
    reports = []
    for name in ("first", "second"):
        with start_server(name, EMULATED, cache=tmp_path / "shared cache") as server:
            reports.append(report_of(run(server, bundled())))
    first, second = reports
    assert [s["cache"]["state"] for s in first["submodels"].values()] == ["miss"] * 3
    assert [s["cache"]["state"] for s in second["submodels"].values()] == ["hit"] * 3
    assert [s["counters"] for s in second["submodels"].values()] == [{"conversions": 0, "compilations": 0}] * 3
    assert prepared_s(second) <= prepared_s(first) / 4, f"{prepared_s(first):.2f} s, then {prepared_s(second):.2f} s"


def test_the_node_talks_while_it_prepares_and_samples(start_server):
    texts: list[str] = []
    with start_server("talking", EMULATED) as server:
        messages_until_done(server, bundled(), texts.append)
    said = "\n".join(texts)
    for part in ("Converting the UNet", "Compiling the UNet for NPU (emulated on CPU), first run only", "calls"):
        assert part in said, said
    assert "UNet: NPU (emulated on CPU) fp16" in texts[-1]
