"""One backend is chosen, and what it can't do is refused by the flag that asked for it."""

from __future__ import annotations

import logging
import sys
import types

import pytest
import torch

from pagewire.gpu_executor.kernels.cpu import cpu_ops, native_library
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.kernels.triton import backend, driver
from pagewire.ipc.errors import ConfigError

GPU = torch.device("cuda", 0)


class FakeTritonOps(ReferenceOps):
    """Notes what it was made with."""

    name = "triton"

    def __init__(self, device: torch.device, *, is_batch_invariant: bool, attention_backend: str) -> None:
        self.made_with = (device, is_batch_invariant, attention_backend)


@pytest.fixture
def triton_modes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Triton's place is taken; returns whether it was asked to interpret, each time that it was asked."""
    modes: list[bool] = []
    monkeypatch.setattr(backend, "prepare_triton", lambda *, interpreted: modes.append(interpreted))
    module = types.ModuleType("triton_ops")
    module.TritonOps = FakeTritonOps  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pagewire.gpu_executor.kernels.triton.triton_ops", module)
    monkeypatch.setattr(driver, "start_driver", lambda: None)
    return modes


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise native_library.LibraryMissing("the compiled CPU kernels are missing; install g++")

    monkeypatch.setattr(cpu_ops, "NativeEngine", refuse)


def test_auto_takes_the_compiled_kernels_on_a_cpu() -> None:
    assert select_ops("auto").name == "cpu"
    assert select_ops("reference").name == "reference"


def test_auto_takes_the_triton_kernels_on_a_gpu(triton_modes: list[bool]) -> None:
    for asked, given in (("auto", "triton"), ("triton", "triton"), ("flashinfer", "flashinfer")):
        is_batch_invariant = given == "triton"
        ops = select_ops("auto", device=GPU, is_batch_invariant=is_batch_invariant, attention_backend=asked)
        assert isinstance(ops, FakeTritonOps)
        assert ops.made_with == (GPU, is_batch_invariant, given)
    assert triton_modes == [False, False, False]


def test_triton_on_a_cpu_is_interpreted_and_says_how_slow_that_is(
    triton_modes: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert select_ops("triton").name == "triton"
    assert triton_modes == [True]
    assert "interpreted" in caplog.text


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


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("cpu", {"device": GPU}, r"--kernels cpu: .*give --kernels triton, or --device cpu"),
        ("auto", {"device": GPU, "instruction_set": "avx2"}, r"--cpu-instruction-set avx2: .*leave it out"),
        ("reference", {"device": GPU, "instruction_set": "avx2"}, r"--cpu-instruction-set avx2: .*leave it out"),
        ("triton", {"instruction_set": "avx2"}, r"--cpu-instruction-set avx2: .*leave it out"),
        ("auto", {"attention_backend": "triton"}, r"--attention-backend triton belongs to the triton kernels"),
        ("cpu", {"attention_backend": "flashinfer"}, r"--attention-backend flashinfer belongs .*--device cuda"),
        ("reference", {"device": GPU, "attention_backend": "flash_attn"}, r"--attention-backend flash_attn belongs"),
        ("triton", {"attention_backend": "flashinfer"}, r"--attention-backend flashinfer needs a GPU"),
        (
            "triton",
            {"device": GPU, "attention_backend": "flash_attn", "is_batch_invariant": True},
            r"--batch-invariant: flash_attn .*leave --attention-backend out",
        ),
    ],
)
def test_what_can_not_work_is_refused_with_the_remedy(
    triton_modes: list[bool], name: str, options: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        select_ops(name, **options)  # type: ignore[arg-type]
    assert triton_modes == []


@pytest.mark.parametrize("name", ["auto", "cpu", "reference"])
def test_batch_invariance_is_what_a_cpu_has_anyway(name: str) -> None:
    select_ops(name, is_batch_invariant=True)
