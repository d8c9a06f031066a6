from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path

import pytest

from pagewire.checkpoint.sources.inventory import (
    drop_damaged_files,
    list_models,
    partial_downloads,
    remove_model,
    remove_partial_download,
)
from pagewire.checkpoint.sources.packaged import SMOLLM2
from pagewire.checkpoint.sources.resumed_file import PARTIAL_SUFFIX

COMMIT = "c" * 40


def store(cache: Path, repo_id: str, files: dict[str, bytes], commit: str = COMMIT, *, is_main: bool = True) -> Path:
    """Put files into the cache as the hub's library does: blobs by digest, and links to them."""
    folder = cache / f"models--{repo_id.replace('/', '--')}"
    for name, data in files.items():
        blob = folder / "blobs" / hashlib.sha256(data).hexdigest()
        link = folder / "snapshots" / commit / name
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(blob)
    if is_main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "hub"
    store(folder, "acme/tiny", {"config.json": b"{}", "model.safetensors": b"weights"})
    store(folder, "acme/tiny-GGUF", {"config.json": b"{}", "t-Q4_0.gguf": b"four", "t-Q8_0.gguf": b"eight"})
    store(folder, "acme/only-config", {"config.json": b"{ }"})
    index = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    store(folder, "acme/half", {"config.json": b"{}", "model.safetensors.index.json": index,
                                "model-00001-of-00002.safetensors": b"half"})  # fmt: skip
    return folder


def names(cache: Path) -> list[str]:
    return [model.name for model in list_models(cache, cache / "packaged")]


def test_whole_models_are_listed_by_the_names_that_commands_take(cache: Path):
    assert names(cache) == ["acme/tiny", "acme/tiny-GGUF:Q4_0", "acme/tiny-GGUF:Q8_0"]
    tiny = list_models(cache, cache / "packaged")[0]
    assert tiny.num_bytes == len(b"{}weights")
    assert tiny.path == cache / "models--acme--tiny" / "snapshots" / COMMIT
    assert tiny.revision == COMMIT


def test_an_empty_machine_has_no_models(tmp_path: Path):
    assert list_models(tmp_path / "none", tmp_path / "none") == []
    assert partial_downloads(tmp_path / "none") == {}


def test_what_broken_downloads_left_is_told(cache: Path):
    (cache / "models--acme--half" / "blobs" / f"{'0' * 64}{PARTIAL_SUFFIX}").write_bytes(b"12345")
    assert partial_downloads(cache) == {"acme/half": 5}


def test_what_broken_downloads_left_goes_and_the_rest_stays(cache: Path):
    file = cache / "models--acme--half" / "blobs" / f"{'0' * 64}{PARTIAL_SUFFIX}"
    file.write_bytes(b"12345")
    with file.open("ab") as fetching:
        fcntl.flock(fetching, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="being fetched"):
            remove_partial_download("acme/half", cache)
    assert remove_partial_download("acme/half", cache) == 5
    assert partial_downloads(cache) == {}
    assert (cache / "models--acme--half" / "snapshots" / COMMIT / "config.json").is_file()
    lone = cache / "models--acme--new" / "blobs" / f"{'1' * 64}{PARTIAL_SUFFIX}"
    lone.parent.mkdir(parents=True)
    lone.write_bytes(b"1")
    assert remove_partial_download("acme/new", cache) == 1
    assert not lone.parent.parent.exists()


def test_one_gguf_file_goes_and_the_others_stay(cache: Path):
    four = next(model for model in list_models(cache, cache) if model.name.endswith("Q4_0"))
    assert remove_model(four) == len(b"four")
    assert "acme/tiny-GGUF:Q8_0" in names(cache)
    assert "acme/tiny-GGUF:Q4_0" not in names(cache)


def test_the_last_model_takes_its_repository_along(cache: Path):
    remove_model(next(model for model in list_models(cache, cache) if model.name == "acme/tiny"))
    assert not (cache / "models--acme--tiny").exists()


def test_a_blob_that_another_revision_uses_stays(cache: Path):
    folder = store(cache, "acme/tiny", {"model.safetensors": b"weights"}, "d" * 40, is_main=False)
    freed = remove_model(next(model for model in list_models(cache, cache) if model.name == "acme/tiny"))
    assert freed == len(b"{}")
    assert (folder / "snapshots" / ("d" * 40) / "model.safetensors").read_bytes() == b"weights"


def test_every_revision_is_listed_the_default_branch_first(cache: Path):
    store(cache, "acme/tiny", {"config.json": b"{}", "model.safetensors": b"older"}, "a" * 40, is_main=False)
    assert [each.revision for each in list_models(cache, cache) if each.name == "acme/tiny"] == [COMMIT, "a" * 40]


def test_a_file_outside_of_the_cache_stays_though_it_is_linked_into_it(cache: Path, tmp_path: Path):
    outside = tmp_path / "own.safetensors"
    outside.write_bytes(b"own weights")
    tiny = next(model for model in list_models(cache, cache) if model.name == "acme/tiny")
    (tiny.path / "model.safetensors").unlink()
    (tiny.path / "model.safetensors").symlink_to(outside)
    assert remove_model(tiny) == len(b"{}")
    assert outside.exists()
    assert not tiny.path.exists()


def test_damaged_weights_are_dropped_to_be_fetched_again(cache: Path):
    tiny = next(model for model in list_models(cache, cache) if model.name == "acme/tiny")
    assert drop_damaged_files(tiny) == []
    (tiny.path / "model.safetensors").resolve().write_bytes(b"wEights")
    assert drop_damaged_files(tiny) == ["model.safetensors"]
    assert "acme/tiny" not in names(cache)


def test_the_packaged_model_is_listed_if_it_is_whole(tmp_path: Path):
    path = tmp_path / SMOLLM2.file_name
    path.write_bytes(b"part")
    assert list_models(tmp_path / "none", tmp_path) == []
    with path.open("r+b") as file:
        file.truncate(SMOLLM2.num_bytes)  # a hole: it takes no room
    (packaged,) = list_models(tmp_path / "none", tmp_path)
    assert packaged.name == SMOLLM2.name
    remove_model(packaged)
    assert not path.exists()
