"""The cache gives back what was stored, says why it cannot, and never stands in the way of the image."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path

import pytest
from ovpack.ov_backends.compiler.cache import (
    DEFAULT_LIMIT_GB,
    MANIFEST,
    STALE_S,
    CacheMiss,
    CompileCache,
    Entry,
    default_limit_bytes,
    default_root,
    entry_key,
)
from second_process import SecondProcess

IDENTITY = {
    "submodel": "unet",
    "model": "UNetModel 1",
    "weights": "0123456789abcdef",
    "device": "NPU",
    "architecture": "4000",
    "driver": "3917",
    "openvino": "2026.1.0",
    "shape": "sample=[1,4,64,64]",
    "precision": "fp16",
}
PAYLOAD = b"compiled" * 1000

pytestmark = pytest.mark.usefixtures("clean_environment")


def put(cache: CompileCache, payload: bytes = PAYLOAD, **changes: str) -> Entry:
    return cache.store("blob", IDENTITY | changes, lambda folder: _write(folder, payload), "new", 1.5)


def _write(folder: Path, payload: bytes) -> None:
    (folder / "model.blob").write_bytes(payload)


def keys(cache: CompileCache) -> set[str]:
    return {entry.path.name for entry in cache.entries()}


def unfinished(cache: CompileCache) -> list[Path]:
    return list((cache.root / "tmp").glob("*"))


# Hit and miss


def test_what_was_stored_is_found_with_its_story(cache):
    put(cache)
    found = cache.find("blob", IDENTITY)
    assert isinstance(found, Entry)
    assert (found.path / "model.blob").read_bytes() == PAYLOAD
    assert found.manifest["identity"] == IDENTITY
    assert (found.manifest["why"], found.manifest["seconds"], found.manifest["bytes"]) == ("new", 1.5, len(PAYLOAD))


def test_the_order_of_an_identity_does_not_matter():
    assert entry_key(IDENTITY) == entry_key(dict(reversed(IDENTITY.items())))


def test_the_first_of_all_is_new(cache):
    assert cache.find("blob", IDENTITY) == CacheMiss("new")


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"driver": "4023"}, "driver changed: 3917 -> 4023"),
        ({"openvino": "2026.4.1"}, "openvino changed: 2026.1.0 -> 2026.4.1"),
        ({"weights": "fedcba9876543210"}, "weights changed: 01234567 -> fedcba98"),
        ({"weights": "fedcba9876543210", "driver": "4023"}, "weights changed: 01234567 -> fedcba98"),
        ({"shape": "sample=[1,4,96,64]"}, "shape changed: sample=[1,4,64,64] -> sample=[1,4,96,64]"),
        ({"precision": "fp32"}, "precision changed: fp16 -> fp32"),
        ({"architecture": "5010"}, "architecture changed: 4000 -> 5010"),
        ({"driver": ""}, "driver changed: 3917 -> nothing"),
        ({"model": "UNetModel 2"}, "new"),
        ({"submodel": "vae_decoder"}, "new"),
    ],
)
def test_a_miss_says_what_changed(cache, changes, reason):
    put(cache)
    assert str(cache.find("blob", IDENTITY | changes)) == reason


def test_a_miss_is_explained_by_the_most_similar_entry(cache):
    put(cache, driver="3000", shape="sample=[1,4,32,32]", precision="fp32")
    put(cache)
    put(cache, driver="3001", openvino="2025.4.0")
    assert str(cache.find("blob", IDENTITY | {"driver": "4023"})) == "driver changed: 3917 -> 4023"


# Damage


def _truncated(entry: Path) -> None:
    (entry / "model.blob").write_bytes(PAYLOAD[:-1])


def _empty(entry: Path) -> None:
    (entry / "model.blob").write_bytes(b"")


def _garbage(entry: Path) -> None:
    (entry / "model.blob").write_bytes(b"x" * len(PAYLOAD))


def _no_blob(entry: Path) -> None:
    (entry / "model.blob").unlink()


def _no_manifest(entry: Path) -> None:
    (entry / MANIFEST).unlink()


def _half_a_manifest(entry: Path) -> None:
    (entry / MANIFEST).write_text((entry / MANIFEST).read_text(encoding="utf-8")[:100], encoding="utf-8")


def _binary_manifest(entry: Path) -> None:
    (entry / MANIFEST).write_bytes(b"\xff\xfe\x00garbage")


def _list_as_manifest(entry: Path) -> None:
    (entry / MANIFEST).write_text("[]", encoding="utf-8")


def _manifest_without_files(entry: Path) -> None:
    (entry / MANIFEST).write_text('{"kind": "blob"}', encoding="utf-8")


DAMAGES = [
    (_truncated, "model.blob has 7999 bytes instead of 8000"),
    (_empty, "model.blob has 0 bytes instead of 8000"),
    (_garbage, "model.blob has other contents than were written"),
    (_no_blob, "No such file"),
    (_no_manifest, "manifest.json: No such file"),
    (_half_a_manifest, "manifest.json"),
    (_binary_manifest, "manifest.json"),
    (_list_as_manifest, "not the manifest of an entry"),
    (_manifest_without_files, "not the manifest of an entry"),
]
damaged = pytest.mark.parametrize("damage, said", DAMAGES, ids=lambda d: getattr(d, "__name__", ""))


@damaged
def test_a_damaged_entry_is_named_removed_and_can_be_made_again(cache, caplog, damage, said):
    damage(put(cache).path)
    miss = cache.find("blob", IDENTITY)
    assert isinstance(miss, CacheMiss) and miss.what.startswith("corrupt: ") and said in miss.what
    assert [r.levelname for r in caplog.records] == ["WARNING"] and "blob of the unet is damaged" in caplog.text
    assert keys(cache) == set() and unfinished(cache) == []
    put(cache)
    assert isinstance(cache.find("blob", IDENTITY), Entry)


@damaged
def test_a_damaged_neighbour_is_no_obstacle(cache, damage, said):
    damage(put(cache, driver="1").path)
    assert isinstance(cache.find("blob", IDENTITY), CacheMiss)
    put(cache)
    assert isinstance(cache.find("blob", IDENTITY), Entry)


# Several processes

MAKE = """
cache, identity = CompileCache(Path(sys.argv[1]), 10**9), {"submodel": "unet", "model": "1"}
with cache.making("blob", identity, lambda: say("waiting")):
    found = cache.find("blob", identity)
    if isinstance(found, Entry):
        say("hit " + (found.path / "model.blob").read_text())
    else:
        say("making")
        input()
        cache.store("blob", identity, lambda folder: (folder / "model.blob").write_text("once"), "new", 0.0)
        say("made")
"""


def test_two_processes_that_need_the_same_entry_make_it_once(tmp_path):
    with SecondProcess(MAKE, tmp_path) as first, SecondProcess("input()" + MAKE, tmp_path) as second:
        first.hear("making")
        second.go_on()
        second.hear("waiting")
        first.go_on()
        assert first.finish() == ["made"]
        assert second.finish()[-1] == "hit once"


KILLED = """
cache, identity = CompileCache(Path(sys.argv[1]), 10**9), {"submodel": "unet", "model": "1"}

def write(folder):
    (folder / "model.blob").write_bytes(b"half")
    say("writing")
    input()

with cache.making("blob", identity, lambda: None):
    cache.store("blob", identity, write, "new", 0.0)
"""


def test_a_process_killed_while_writing_leaves_no_entry_and_no_lock(cache):
    identity = {"submodel": "unet", "model": "1"}
    with SecondProcess(KILLED, cache.root) as process:
        process.hear("writing")
    assert unfinished(cache), "it was killed before it wrote"
    assert cache.find("blob", identity) == CacheMiss("new") and cache.entries() == []
    with cache.making("blob", identity, lambda: pytest.fail("the lock outlived its process")):
        cache.store("blob", identity, lambda folder: _write(folder, PAYLOAD), "new", 0.0)
    assert isinstance(cache.find("blob", identity), Entry)


def test_remains_of_a_killed_process_go_after_a_day(cache):
    for name, age in (("old", STALE_S + 60), ("being written", 60)):
        folder = cache.root / "tmp" / name
        folder.mkdir(parents=True)
        _write(folder, b"half")
        os.utime(folder, (time.time() - age, time.time() - age))
    put(cache)
    assert [folder.name for folder in unfinished(cache)] == ["being written"]


# A disk that does not take it


def test_a_full_disk_is_told_and_leaves_nothing_behind(cache):
    def write(folder: Path) -> None:
        _write(folder, b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        cache.store("blob", IDENTITY, write, "new", 0.0)
    assert unfinished(cache) == [] and cache.entries() == []


def test_a_root_that_cannot_be_written_is_a_plain_miss_without_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = CompileCache(tmp_path / "file" / "cache", 10**9)
    with cache.making("blob", IDENTITY, lambda: pytest.fail("nobody to wait for")):
        assert cache.find("blob", IDENTITY) == CacheMiss("new")
        with pytest.raises(OSError):
            put(cache)
    assert cache.evict() == [] and caplog.records == []


# Size


def aged(cache: CompileCache, age_s: float, **changes: str) -> Path:
    """An entry of 8,000 bytes last used so long ago, and used by nobody now."""
    path = put(cache, **changes).path
    os.utime(path / MANIFEST, (time.time() - age_s, time.time() - age_s))
    return path


def test_the_least_recently_used_go_first(cache):
    oldest, middle, newest = (aged(cache, age, driver=str(age)) for age in (300, 200, 100))
    cache.find("blob", IDENTITY | {"driver": "300"})  # used again
    cache.limit_bytes = 2 * len(PAYLOAD)
    assert [entry.path for entry in cache.evict()] == [middle]
    assert oldest.exists() and newest.exists() and not middle.exists()


def test_storing_keeps_the_limit_but_never_removes_what_was_just_stored(cache):
    aged(cache, 100, driver="1")
    cache.limit_bytes = 10
    entry = put(cache)
    assert keys(cache) == {entry.path.name}


def test_what_this_process_uses_is_not_evicted(cache):
    aged(cache, 100)
    used = cache.find("blob", IDENTITY)
    cache.limit_bytes = 0
    assert cache.evict() == []
    del used
    assert [entry.path.name for entry in cache.evict()] == [entry_key(IDENTITY)]


USE = """
cache = CompileCache(Path(sys.argv[1]), 10**9)
entry = cache.find("blob", eval(sys.argv[2]))
say(type(entry).__name__)
input()
"""


def test_what_another_process_uses_is_not_evicted_until_that_process_is_gone(cache):
    aged(cache, 100)
    cache.limit_bytes = 0
    with SecondProcess(USE, cache.root, IDENTITY) as process:
        process.hear("Entry")
        assert cache.evict() == []
    assert [entry.path.name for entry in cache.evict()] == [entry_key(IDENTITY)]


def test_leases_of_ended_processes_do_not_pile_up(cache):
    put(cache)
    for _ in range(5):
        cache.find("blob", IDENTITY)
    cache.evict()
    assert list((cache.root / "leases").iterdir()) == []


# Settings


def test_the_cache_folder_can_be_set(monkeypatch, tmp_path):
    monkeypatch.setenv("OVNPU_CACHE_DIR", str(tmp_path / "my cache"))
    assert default_root() == tmp_path / "my cache"


def test_without_a_setting_it_is_in_the_users_cache_folder():
    import platformdirs

    root = default_root()
    assert root.name.lower() in ("ovnpu", "cache") and root.is_relative_to(platformdirs.user_cache_path().parent)


@pytest.mark.parametrize("text, limit_gb", [("", DEFAULT_LIMIT_GB), ("5", 5), ("0.5", 0.5), ("0", 0), (" 7 ", 7)])
def test_the_limit_can_be_set(monkeypatch, caplog, text, limit_gb):
    monkeypatch.setenv("OVNPU_CACHE_LIMIT_GB", text)
    assert default_limit_bytes() == limit_gb * 10**9
    assert caplog.records == []


@pytest.mark.parametrize("text", ["lots", "20 GB", "-1", "nan", "inf", "1e999"])
def test_a_limit_that_is_no_size_is_told_and_the_default_taken(monkeypatch, caplog, text):
    monkeypatch.setenv("OVNPU_CACHE_LIMIT_GB", text)
    assert default_limit_bytes() == DEFAULT_LIMIT_GB * 10**9
    assert text in caplog.text and "20" in caplog.text


def test_a_path_with_spaces_and_letters_of_any_alphabet_works(tmp_path):
    cache = CompileCache(tmp_path / "Mein Modèle 图像 ü", 10**9)
    put(cache)
    assert isinstance(cache.find("blob", IDENTITY), Entry)
    assert cache.entries()[0].path.is_relative_to(tmp_path / "Mein Modèle 图像 ü")


def test_an_eviction_is_told_once_in_the_log(cache, caplog):
    aged(cache, 100)
    cache.limit_bytes = 0
    with caplog.at_level(logging.INFO, "ovnpu"):
        cache.evict()
    assert len(caplog.records) == 1 and "removed" in caplog.text and "blob of the unet" in caplog.text
