"""Kernels of every instruction set compute what they state to the last bit, whether or not this machine has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kernel_check.checker import (
    Toolchain,
    arm_toolchain,
    build_checker,
    emulated_toolchain,
    run_checker,
)

EMULATED = ("avx512", "avx512_vnni", "amx", "neon", "neon_dot")
ARM = ("neon", "neon_dot")

pytestmark = pytest.mark.slow


def cache_folder(config: pytest.Config) -> Path:
    return config.cache.mkdir("kernel_check")


@pytest.fixture(scope="module")
def emulated(pytestconfig: pytest.Config) -> tuple[Toolchain, Path]:
    toolchain = emulated_toolchain()
    if toolchain is None:
        pytest.skip("no C++ compiler")
    return toolchain, build_checker(toolchain, EMULATED, cache_folder(pytestconfig))


@pytest.mark.parametrize("instruction_set", ["portable", *EMULATED])
def test_kernels_compute_what_they_state_on_emulated_instructions(emulated, instruction_set):
    checked = run_checker(*emulated, instruction_set)
    assert checked.returncode == 0, checked.stdout
    assert f"{instruction_set}: as expected" in checked.stdout


def test_arm_kernels_compute_what_they_state_on_real_instructions(pytestconfig):
    toolchain = arm_toolchain()
    if toolchain is None:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64")
    program = build_checker(toolchain, ARM, cache_folder(pytestconfig))
    for instruction_set in ARM:
        checked = run_checker(toolchain, program, instruction_set)
        assert checked.returncode == 0, checked.stdout
