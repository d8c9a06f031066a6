"""What Triton lacks to launch kernels on a GPU is told in one line, with the remedy."""

from __future__ import annotations

import subprocess

import pytest

from pagewire.gpu_executor.kernels.triton.driver import start_driver
from pagewire.ipc.errors import MachineError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("Failed to find C compiler. Please specify via CC environment variable."), "Failed to find C"),
        (AssertionError("libcuda.so cannot found!\nPlease make sure GPU is set up"), "libcuda.so cannot found"),
        (subprocess.CalledProcessError(1, ["gcc", "driver.c"]), "the compiler failed"),
        (PermissionError(13, "Permission denied", "/root/.triton/cache"), r"/root/\.triton/cache.*TRITON_CACHE_DIR"),
    ],
)
def test_a_driver_that_can_not_be_set_up_is_the_machines_fault(error: Exception, text: str) -> None:
    def probe() -> None:
        raise error

    with pytest.raises(MachineError, match=text) as caught:
        start_driver(probe)
    assert "gcc and python3-dev" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_driver_that_is_there_is_left_alone() -> None:
    calls: list[str] = []
    start_driver(lambda: calls.append("asked"))
    assert calls == ["asked"]
