"""Triton is there in the mode that the device needs, or the start says why not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pagewire.gpu_executor.kernels.triton.backend import is_interpreted, prepare_triton
from pagewire.ipc.errors import ConfigError


def in_fresh_process(code: str, **environment: str) -> str:
    """Run code in a process that has not imported Triton, and return what it prints."""
    prelude = "from pagewire.gpu_executor.kernels.triton.backend import is_interpreted, prepare_triton\n"
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], env=inherited | environment, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def test_kernels_of_the_test_process_are_interpreted():
    assert is_interpreted()
    prepare_triton(interpreted=True)


def test_children_of_the_test_process_decide_for_themselves():
    assert "TRITON_INTERPRET" not in os.environ


@pytest.mark.parametrize("interpreted", [True, False])
def test_a_fresh_process_gets_the_mode_that_it_asks_for(interpreted: bool):
    assert in_fresh_process(f"prepare_triton(interpreted={interpreted}); print(is_interpreted())") == f"{interpreted}\n"


def test_the_shells_variable_does_not_slow_a_gpu_down():
    told = in_fresh_process("prepare_triton(interpreted=False); print(is_interpreted())", TRITON_INTERPRET="1")
    assert told == "False\npagewire: TRITON_INTERPRET is ignored: kernels for a GPU are compiled\n"


def test_the_other_mode_is_refused_once_triton_was_imported():
    with pytest.raises(
        ConfigError, match=r"interpreted; for this device they have to be compiled\. Set TRITON_INTERPRET=0"
    ):
        prepare_triton(interpreted=False)


def test_without_triton_the_remedy_is_named():
    told = in_fresh_process(
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "from pagewire.ipc.errors import ConfigError\n"
        "try: prepare_triton(interpreted=True)\n"
        "except ConfigError as exc: print(exc.message)"
    )
    assert "pip install triton" in told


def test_a_triton_that_does_not_load_is_named():
    told = in_fresh_process(
        "import sys\n"
        "sys.modules['triton'] = None\n"
        "from pagewire.ipc.errors import ConfigError\n"
        "try: prepare_triton(interpreted=True)\n"
        "except ConfigError as exc: print(exc.message)"
    )
    assert "can't be loaded" in told
