"""A converted model is kept by what its weights are, and comes back equal."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from ovpack.ov_backends import devices, progress
from ovpack.ov_backends.compiler.cache import CompileCache
from ovpack.ov_backends.compiler.ir import IR, XML, Source, hash_tensors, load_or_convert
from ovpack.ov_backends.errors import ConversionError
from second_process import SecondProcess
from small_models import dense_expected, dense_input, dense_model

pytestmark = pytest.mark.usefixtures("clean_environment")


class Converter:
    """Converts nothing but counts how often it is asked to."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        return dense_model()


def load(cache: CompileCache, convert=dense_model, weights: str = "a" * 32) -> IR:
    return load_or_convert(Source("unet", weights, "Dense", convert), cache, lambda text: None)


def error_of(ir: IR) -> float:
    x = dense_input()
    return float(np.abs(devices.core().compile_model(ir.read(), "CPU")(x)[0] - dense_expected(x)).max())


# The hash


def test_the_hash_knows_values_shapes_names_and_types():
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
    variants = [
        weights,
        weights | {"b": torch.tensor([1.0, 1.0000001])},
        weights | {"a": torch.arange(6.0).reshape(3, 2)},
        weights | {"a": torch.arange(6.0).reshape(2, 3).half()},
        weights | {"c": torch.ones(2)},
        {"a": weights["a"], "c": weights["b"]},
    ]
    hashes = [hash_tensors(variant) for variant in variants]
    assert len(set(hashes)) == len(variants), hashes


def test_the_hash_forgets_memory_layout_and_order():
    a, b = torch.randn(4, 6), torch.randn(3)
    transposed = a.t().contiguous().t()
    assert not transposed.is_contiguous()
    assert hash_tensors({"a": a, "b": b}) == hash_tensors({"b": b, "a": transposed})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_the_hash_takes_every_type_scalars_and_empty_tensors(dtype):
    tensors = {"scalar": torch.ones((), dtype=dtype), "empty": torch.ones((0, 3), dtype=dtype)}
    assert hash_tensors(tensors) == hash_tensors({name: tensor.clone() for name, tensor in tensors.items()})


def test_the_hash_is_taken_in_comfyuis_inference_mode_and_of_parameters():
    with torch.inference_mode():
        inside = hash_tensors({"a": torch.ones(3)})
    assert inside == hash_tensors({"a": torch.nn.Parameter(torch.ones(3))})


# Through the cache


def test_weights_are_converted_once(cache):
    convert = Converter()
    first, second = load(cache, convert), load(cache, convert)
    assert (first.reason, second.reason, second.convert_s, convert.count) == ("new", "", 0.0, 1)
    assert first.convert_s > 0 and error_of(second) < 2e-3


def test_weights_are_stored_in_half_precision(cache):
    entry = load(cache).entry
    assert 64 * 64 * 2 <= (entry.path / XML).with_suffix(".bin").stat().st_size < 64 * 64 * 4


def test_every_read_gives_a_model_of_its_own(cache):
    ir = load(cache)
    reshaped = ir.read()
    reshaped.reshape({"x": [3, 64]})
    assert ir.read().input("x").get_partial_shape().is_dynamic


def test_other_weights_are_converted_and_the_reason_given(cache):
    load(cache)
    assert load(cache, weights="b" * 32).reason == "weights changed: aaaaaaaa -> bbbbbbbb"


def test_a_damaged_ir_is_converted_again(cache, caplog):
    xml = load(cache).entry.path / XML
    xml.write_bytes(xml.read_bytes()[: xml.stat().st_size // 2])
    convert = Converter()
    again = load(cache, convert)
    assert again.reason.startswith("corrupt: ") and convert.count == 1 and error_of(again) < 2e-3
    assert "damaged" in caplog.text
    assert load(cache, convert).reason == "" and convert.count == 1


def test_two_threads_that_need_the_same_weights_convert_them_once(cache):
    waiting, convert = threading.Event(), Converter()

    def slow():
        assert waiting.wait(30)
        return convert()

    def note(text: str) -> None:
        if text.startswith("Waiting for another process"):
            waiting.set()

    source = Source("unet", "a" * 32, "Dense", slow)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: load_or_convert(source, cache, note), range(2)))
    assert convert.count == 1 and {ir.reason for ir in made} == {"new", ""}


SECOND = """
from small_models import dense_model
from ovpack.ov_backends.compiler.ir import Source, load_or_convert

def convert():
    say("converting")
    return dense_model()

ir = load_or_convert(Source("unet", "a" * 32, "Dense", convert), CompileCache(Path(sys.argv[1]), 10**9), lambda t: None)
say(ir.read().get_friendly_name() and "read")
"""


def test_second_process_reads_the_ir(cache):
    load(cache)
    with SecondProcess(SECOND, cache.root) as second:
        assert second.finish() == ["read"]


def test_a_path_with_spaces_and_letters_of_any_alphabet_works(tmp_path):
    cache = CompileCache(tmp_path / "Mein Modèle 图像 ü", 10**9)
    load(cache)
    ir = load(cache)
    assert ir.reason == "" and error_of(ir) < 2e-3


def test_a_root_that_cannot_be_written_still_gives_the_model(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    ir = load(CompileCache(tmp_path / "file" / "cache", 10**9))
    assert ir.reason.startswith("new; not kept: ") and ir.entry is None and ir.is_readable
    assert error_of(ir) < 1e-5
    assert "could not be kept" in caplog.text


def test_a_conversion_that_fails_leaves_the_cache_as_it_was(cache):
    def convert():
        raise ConversionError("no")

    with pytest.raises(ConversionError):
        load(cache, convert)
    assert cache.entries() == []
    assert load(cache).reason == "new"


class Interrupted(Exception):
    """What the host raises when the user presses Cancel."""


def test_an_interrupt_while_converting_stops_there_and_the_next_run_works(cache, monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.01)
    beat, texts = threading.Event(), []

    def convert():
        assert beat.wait(30)
        return dense_model()

    def interrupt(text: str) -> None:
        texts.append(text)
        if text.endswith(" s"):
            beat.set()
            raise Interrupted

    with pytest.raises(Interrupted):
        load_or_convert(Source("unet", "a" * 32, "Dense", convert), cache, interrupt)
    assert texts == [
        "Converting the UNet to OpenVINO, once for these weights",
        "Converting the UNet to OpenVINO, once for these weights, 0 s",
    ]
    assert cache.entries() == [] and load(cache).reason == "new" and load(cache).reason == ""


def test_weights_are_kept_as_they_are_where_that_is_asked(cache):
    """A model file's own precision is its owner's choice; FP16 weights cost 1e-4 of each value."""
    source = Source("model", "b" * 32, "Dense", dense_model, compress_to_fp16=False)
    exact = load_or_convert(source, cache, lambda text: None)
    assert error_of(exact) < 1e-6 < 1e-5 < error_of(load(cache))
