"""A GPU that can't be used is refused with the device, the floor and the remedy; one that was not tested is told of."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from pagewire.gpu_executor.devices import requirements
from pagewire.gpu_executor.devices.requirements import (
    DeviceFacts,
    check_requirements,
    installed_triton,
    read_device_facts,
    refusal,
)
from pagewire.ipc.errors import ConfigError

CUDA_12_8 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
CUDA_12_6 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
TESTED = {"torch": "2.13.0+cu128", "CUDA": "12.8", "Triton": "3.9.0"}


def nvidia(name: str, capability: tuple[int, int], built_for: tuple[str, ...] = CUDA_12_8, **versions: str):
    return DeviceFacts(name, capability, None, built_for, TESTED | versions)


def amd(name: str, architecture: str, **versions: str):
    known = {"torch": "2.13.0+rocm7.1", "ROCm": "7.1.25424", "Triton": "3.9.0"}
    return DeviceFacts(name, (9, 4), architecture, ("gfx90a", "gfx942", "gfx950", "gfx1100"), known | versions)


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0)),
        ("NVIDIA L40S", (8, 9)),  # runs the code for sm_86: same major version
        ("NVIDIA H200", (9, 0)),
        ("NVIDIA B200", (10, 0)),
        ("NVIDIA GeForce RTX 5090", (12, 0)),
        ("a device of the future", (13, 0)),  # by the PTX for compute_120
    ],
)
def test_tested_libraries_and_a_recent_gpu_are_fine(name: str, capability: tuple[int, int]):
    assert check_requirements(nvidia(name, capability)) == []


def test_an_mi300_is_fine():
    assert check_requirements(amd("AMD Instinct MI300X", "gfx942")) == []


def test_below_the_floor_the_device_and_the_least_capability_are_named():
    with pytest.raises(ConfigError) as caught:
        check_requirements(nvidia("NVIDIA GeForce GTX 1080", (6, 1), CUDA_12_6))
    assert caught.value.exit_code == 2
    assert caught.value.message == (
        "NVIDIA GeForce GTX 1080 has compute capability 6.1, and the GPU kernels need at least 7.0: choose another GPU"
        " by CUDA_VISIBLE_DEVICES, or --device cpu"
    )


@pytest.mark.parametrize(("name", "capability"), [("Tesla V100-SXM2-32GB", (7, 0)), ("Tesla T4", (7, 5))])
def test_at_the_floor_it_runs_and_is_said_to_be_slow(name: str, capability: tuple[int, int]):
    facts = nvidia(name, capability, CUDA_12_6)
    (line,) = check_requirements(facts)
    assert "has no matrix instructions" in line
    assert not facts.has_bfloat16


def test_an_amd_device_without_matrix_instructions_is_said_to_be_slow():
    (line,) = check_requirements(amd("Radeon RX 7900 XTX", "gfx1100"))
    assert "Radeon RX 7900 XTX (gfx1100) is slow here" in line


def test_a_torch_without_code_for_the_device_is_refused_before_its_first_kernel():
    reason = refusal(nvidia("Tesla V100-SXM2-32GB", (7, 0)))
    assert reason is not None
    assert "is sm_70, and torch 2.13.0+cu128 was built without code for it (it has sm_75, sm_80" in reason
    assert refusal(amd("AMD Instinct MI50", "gfx906")) is not None


@pytest.mark.parametrize(
    ("built_for", "capability", "runs"),
    [
        (("sm_80",), (8, 9), True),
        (("sm_86",), (8, 0), False),  # made for a newer minor version
        (("sm_80",), (9, 0), False),
        (("sm_80", "compute_80"), (9, 0), True),
        (("sm_90a",), (9, 0), True),
        (("sm_100a",), (10, 3), False),
        (("sm_100f",), (10, 3), True),
        (("compute_90",), (8, 0), False),
        ((), (8, 0), True),
        (("unknown",), (8, 0), False),
    ],
)
def test_code_runs_on_its_major_version_and_ptx_on_all_newer_ones(
    built_for: tuple[str, ...], capability: tuple[int, int], runs: bool
):
    assert (refusal(nvidia("GPU", capability, built_for)) is None) is runs


@pytest.mark.parametrize(
    ("library", "version", "least"), [("torch", "2.5.1", "2.6"), ("Triton", "3.1.0", "3.3"), ("CUDA", "11.8", "12.0")]
)
def test_a_library_below_its_floor_is_refused_by_name(library: str, version: str, least: str):
    with pytest.raises(ConfigError, match=rf"{library} {version} is too old .* {least} is the least"):
        check_requirements(nvidia("NVIDIA H200", (9, 0), **{library: version}))


@pytest.mark.parametrize(("library", "version"), [("torch", "2.14.0a0+git1"), ("torch", "2.9.1"), ("Triton", "3.10.0")])
def test_outside_of_the_tested_range_it_goes_on_and_says_so(library: str, version: str):
    (line,) = check_requirements(nvidia("NVIDIA H200", (9, 0), **{library: version}))
    assert line.startswith(f"{library} {version} is outside of what this version was tested with (")


def test_the_tests_run_with_the_versions_that_are_stated():
    installed = {"torch": torch.__version__, "Triton": installed_triton()}
    for library, (first, last) in requirements.TESTED_VERSIONS.items():
        version = installed[library]
        if version is not None:
            assert first <= requirements._minor_version(version) <= last


class _Torch:
    """The part of torch that knows a device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, properties: dict[str, Any], **versions: str | None) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(**properties))
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["gfx942"] if versions["hip"] else ["sm_90"])
        for name, version in versions.items():
            monkeypatch.setattr(torch.version, name, version)


def test_torch_is_asked_about_an_nvidia_device(monkeypatch: pytest.MonkeyPatch):
    _Torch(monkeypatch, {"name": "NVIDIA H200", "major": 9, "minor": 0, "gcnArchName": "x"}, cuda="12.8", hip=None)
    facts = read_device_facts(0)
    assert (facts.name, facts.capability, facts.architecture, facts.built_for) == (
        "NVIDIA H200", (9, 0), None, ("sm_90",)
    )  # fmt: skip
    assert facts.versions["CUDA"] == "12.8"
    assert facts.versions["torch"] == torch.__version__


def test_torch_is_asked_about_an_amd_device(monkeypatch: pytest.MonkeyPatch):
    name = {"name": "AMD Instinct MI300X", "major": 9, "minor": 4, "gcnArchName": "gfx942:sramecc+:xnack-"}
    _Torch(monkeypatch, name, cuda=None, hip="7.1.25424")
    facts = read_device_facts(0)
    assert facts.architecture == "gfx942"
    assert facts.versions["ROCm"] == "7.1.25424"
    assert facts.has_bfloat16
    assert refusal(facts) is None
