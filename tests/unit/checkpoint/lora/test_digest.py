from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.checkpoint.lora.digest import digest_adapter, stamp_adapter


def write(directory: Path, config: bytes = b"{}", weights: bytes = b"weights") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_bytes(config)
    (directory / "adapter_model.safetensors").write_bytes(weights)
    return directory


def test_the_digest_is_that_of_both_files_and_of_nothing_else(tmp_path: Path) -> None:
    one = write(tmp_path / "one")
    (one / "README.md").write_text("hello")
    same = digest_adapter(write(tmp_path / "same"))
    assert digest_adapter(one) == same
    others = [
        write(tmp_path / "b", b"{} "),
        write(tmp_path / "c", weights=b"weightz"),
        write(tmp_path / "d", b"{}w", b"eights"),
    ]
    assert len({same, *map(digest_adapter, others)}) == 4


def test_a_stamp_changes_with_the_files(tmp_path: Path) -> None:
    stamp = stamp_adapter(write(tmp_path / "one"))
    assert stamp_adapter(tmp_path / "one") == stamp
    assert stamp_adapter(write(tmp_path / "one", weights=b"more weights")) != stamp
    with pytest.raises(FileNotFoundError):
        stamp_adapter(tmp_path)
