"""Triton's hooks tell of each compilation once, with the kernel's name.

In a process of its own: in the tests' process Triton interprets. A GPU is acted out as far as compiling for it goes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILING = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Hopper:
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

driver.set_active(Hopper())
from pagewire.gpu_executor.kernels.triton.compile_hooks import watch_compilations
from pagewire.gpu_executor.kernels.triton.copy_blocks import copy_blocks_kernel

class Watch:
    begin = staticmethod(lambda kernel: print("begin", kernel))
    end = staticmethod(lambda kernel: print("end", kernel))

watch_compilations(Watch())
for has_sources in (True, False, True):
    copy_blocks_kernel.warmup(
        *[torch.int64] * 6, 3, BLOCK_WORDS=128, HAS_SOURCES=has_sources, HAS_DESTINATIONS=True, grid=(1,)
    )
"""


@pytest.mark.slow  # a process that imports torch and compiles
def test_each_compilation_is_told_once(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMPILING], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["begin copy_blocks_kernel", "end copy_blocks_kernel"] * 2
