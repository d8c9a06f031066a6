from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pagewire.gpu_executor.kernels.cpu import native_library
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing, load_library, source_digest
from pagewire.ipc.errors import MachineError

FOLDER = Path(native_library.__file__).parent
ROOT = Path(__file__).resolve().parents[5]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A library with its sources beside it, as an editable install has them."""
    library = FOLDER / "_native.so"
    if not library.exists():
        pytest.skip("the library was not built")
    shutil.copytree(FOLDER / "csrc", tmp_path / "csrc")
    return Path(shutil.copy(library, tmp_path))


def test_a_missing_library_is_named_with_the_remedy(tmp_path: Path):
    with pytest.raises(LibraryMissing, match=r"install g\+\+ or clang\+\+ and reinstall"):
        load_library(tmp_path / "_native.so")


def test_a_file_that_is_no_library_is_named_with_the_remedy(tmp_path: Path):
    path = tmp_path / "_native.so"
    path.write_bytes(b"no ELF file")
    with pytest.raises(LibraryMissing, match=r"can't be loaded .*reinstall"):
        load_library(path)


def test_a_library_beside_its_sources_is_taken(copied: Path):
    library = load_library(copied)
    assert library.pagewire_source_digest().decode() == source_digest(copied.with_name("csrc"))


@pytest.mark.parametrize("name", ["capi.cpp", "kernels/elementwise.inl", "new.h"])
def test_a_changed_source_is_noticed(copied: Path, name: str):
    with (copied.with_name("csrc") / name).open("a") as source:
        source.write("// changed\n")
    with pytest.raises(MachineError, match=r"compiled from other sources .*make kernels"):
        load_library(copied)


def test_without_sources_the_library_is_taken(copied: Path):
    shutil.rmtree(copied.with_name("csrc"))
    load_library(copied)
