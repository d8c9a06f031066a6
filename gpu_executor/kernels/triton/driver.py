"""Triton's hold on a GPU: set up at start, where what it lacks can still be told in one line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from pagewire.ipc.errors import MachineError

_CANT_BUILD = "Triton can't build what it launches kernels by"
_REMEDY = "Install a C compiler and this Python's headers (gcc and python3-dev), or choose --device cpu."


def start_driver(probe: Callable[[], object] | None = None) -> None:
    """Have Triton set up its driver for the current GPU; later calls find it there.

    Triton builds a module of a few hundred lines of C for that, unless its cache has it from an earlier start.

    Args:
        probe: uses the driver; None: asks it for the current GPU.

    Raises:
        MachineError: it lacks a C compiler, this Python's headers, a place for its cache, or the GPU's library.
    """
    try:
        (probe or _ask_for_gpu)()
    except subprocess.CalledProcessError as exc:
        raise MachineError(f"{_CANT_BUILD}: the compiler failed ({exc}). {_REMEDY}") from exc
    except OSError as exc:
        raise MachineError(
            f"{_CANT_BUILD}: {exc}. {_REMEDY} TRITON_CACHE_DIR names another directory for the result."
        ) from exc
    except (RuntimeError, AssertionError) as exc:  # no compiler; no libcuda.so
        raise MachineError(f"{_CANT_BUILD}: {str(exc).splitlines()[0].rstrip('.!')}. {_REMEDY}") from exc


def _ask_for_gpu() -> None:
    from triton.runtime import driver

    driver.active.get_current_device()
