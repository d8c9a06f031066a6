from __future__ import annotations

import logging

import pytest

from pagewire.gpu_executor.kernels.cpu import cpu_ops, native_library
from pagewire.gpu_executor.kernels.ops import select_ops
from pagewire.ipc.errors import ConfigError


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise native_library.LibraryMissing("the compiled CPU kernels are missing; install g++")

    monkeypatch.setattr(cpu_ops, "NativeEngine", refuse)


def test_auto_takes_the_compiled_kernels() -> None:
    assert select_ops("auto").name == "cpu"
    assert select_ops("reference").name == "reference"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"fastest.*reference"):
        select_ops("fastest")


def test_without_the_library_auto_warns_once_and_names_the_remedy(
    without_library: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert select_ops("auto").name == "reference"
    (record,) = caplog.records
    assert "slower" in record.getMessage()
    assert "install g++" in record.getMessage()


def test_without_the_library_the_explicit_choice_is_refused(without_library: None) -> None:
    with pytest.raises(ConfigError, match=r"--kernels cpu: .*install g\+\+"):
        select_ops("cpu")


def test_an_instruction_set_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"'mmx'.*portable"):
        select_ops("cpu", instruction_set="mmx")
