"""A GPU is taken if it will do, and whoever asks for one that is not there hears why."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch

from pagewire.gpu_executor.compute_dtype import cpu_has_native_bf16
from pagewire.gpu_executor.devices import select
from pagewire.gpu_executor.devices.base import Device
from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.devices.requirements import DeviceFacts
from pagewire.gpu_executor.devices.select import SelectedDevice, select_device
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.ipc.errors import ConfigError, MachineError
from pagewire.ipc.steps import RankPlacement

H200 = DeviceFacts(
    name="NVIDIA H200",
    capability=(9, 0),
    architecture=None,
    built_for=("sm_80", "sm_90"),
    versions={"torch": "2.13.0+cu130", "CUDA": "13.0", "Triton": "3.9.0"},
)
K80 = DeviceFacts(name="Tesla K80", capability=(3, 7), architecture=None, built_for=(), versions={"torch": "2.13.0"})
NONE = "torch sees no GPU; choose --device cpu"


class FakeCuda(CpuDevice):
    """A GPU that was chosen."""

    def __init__(self, index: int) -> None:
        super().__init__(HostLimits())
        self.torch_device = torch.device("cuda", index)


@pytest.fixture(autouse=True)
def _no_real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "CudaDevice", FakeCuda)


def chosen(requested: str, kernels: str, found: DeviceFacts | str) -> SelectedDevice:
    return select_device(requested, kernels, HostLimits(), find_gpu=lambda _: found)


def kind(device: Device) -> str:
    return str(device.torch_device)


@pytest.mark.parametrize("requested", ["auto", "cuda"])
@pytest.mark.parametrize("kernels", ["auto", "triton", "reference"])
def test_a_gpu_that_will_do_is_taken(requested: str, kernels: str) -> None:
    device, has_bfloat16 = chosen(requested, kernels, H200)
    assert (kind(device), has_bfloat16) == ("cuda:0", True)


@pytest.mark.parametrize(
    ("requested", "kernels"), [("cpu", "auto"), ("cpu", "triton"), ("cpu", "reference"), ("auto", "cpu")]
)
def test_who_asks_for_the_cpu_or_its_kernels_gets_it_beside_a_gpu(requested: str, kernels: str) -> None:
    assert kind(chosen(requested, kernels, H200).device) == "cpu"


@pytest.mark.parametrize("kernels", ["auto", "cpu", "reference"])
def test_without_a_gpu_auto_runs_on_the_cpu_and_says_nothing(kernels: str, caplog: pytest.LogCaptureFixture) -> None:
    device, has_bfloat16 = chosen("auto", kernels, NONE)
    assert (kind(device), has_bfloat16) == ("cpu", cpu_has_native_bf16())
    assert caplog.records == []


def test_a_gpu_that_will_not_do_is_passed_over_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    assert kind(chosen("auto", "auto", K80).device) == "cpu"
    assert "Tesla K80 has compute capability 3.7" in caplog.text


@pytest.mark.parametrize(("found", "text"), [(NONE, "torch sees no GPU"), (K80, r"capability 3\.7.*at least 7\.0")])
def test_a_gpu_that_is_asked_for_and_can_not_be_had_is_refused(found: DeviceFacts | str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--device cuda: .*{text}") as caught:
        chosen("cuda", "auto", found)
    assert "--device cpu" in caught.value.message
    assert caught.value.exit_code == 2


def test_triton_is_interpreted_only_if_the_cpu_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"--kernels triton: torch sees no GPU.*--device cpu"):
        chosen("auto", "triton", NONE)
    assert not chosen("cpu", "triton", NONE).has_bfloat16  # numpy, which interprets, has none


@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_a_gpu_that_is_taken_ends_the_start_by_the_drivers_reason(
    monkeypatch: pytest.MonkeyPatch, requested: str
) -> None:
    def refuse(index: int) -> Device:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nfor debugging ...")

    monkeypatch.setattr(select, "CudaDevice", refuse)
    with pytest.raises(MachineError, match=r"NVIDIA H200 can't be used: .*busy or unavailable\. Free it"):
        chosen(requested, "auto", H200)


def test_what_is_outside_of_the_tested_range_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        chosen("cuda", "auto", H200)
        assert caplog.records == []
        chosen("cuda", "auto", dataclasses.replace(H200, versions={**H200.versions, "torch": "99.0"}))
    assert "torch 99.0" in caplog.text


def test_torch_without_gpus_is_the_reason_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ConfigError, match=r"built for CPUs alone; install .*CUDA or ROCm"):
        select_device("cuda", "auto", HostLimits())


@pytest.mark.parametrize(
    ("hidden", "text"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3"}, "CUDA_VISIBLE_DEVICES='3'; unset it"),
        ({"HIP_VISIBLE_DEVICES": ""}, "HIP_VISIBLE_DEVICES=''; unset it"),
        ({}, "install its driver"),
    ],
)
def test_hidden_gpus_and_a_missing_driver_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, hidden: dict[str, str], text: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in hidden.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=text):
        select_device("cuda", "auto", HostLimits())


def test_each_executor_of_a_host_gets_the_gpu_of_its_number() -> None:
    placement = RankPlacement(rank=5, index_on_host=1, num_on_host=2)
    device, _ = select_device("auto", "auto", HostLimits(), placement, lambda _: H200)
    assert kind(device) == "cuda:1"


@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_fewer_gpus_than_executors_are_refused_on_all_of_them(monkeypatch: pytest.MonkeyPatch, requested: str) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for index in range(4):
        placement = RankPlacement(rank=index, index_on_host=index, num_on_host=4)
        with pytest.raises(ConfigError, match=r"4 executors .* torch sees 2: lower --tensor-parallel-size"):
            select_device(requested, "auto", HostLimits(), placement)
    cpu, _ = select_device("cpu", "auto", HostLimits(), placement)
    assert kind(cpu) == "cpu"


def test_a_gpu_that_will_not_do_does_not_leave_its_executor_on_the_cpu_while_others_have_theirs() -> None:
    placement = RankPlacement(rank=1, index_on_host=1, num_on_host=2)
    with pytest.raises(ConfigError, match="GPU 1 can't be used: Tesla K80"):
        select_device("auto", "auto", HostLimits(), placement, lambda _: K80)
