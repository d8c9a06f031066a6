"""Which Triton this process has: whether it can be used at all, and whether it compiles kernels or interprets them.

Triton settles that once, when it is imported: functions decorated under TRITON_INTERPRET=1 run as plain Python on the
CPU, all others are compiled for a GPU when they are first launched. So a process that wants kernels on a CPU says so
(`prepare_triton`) before anything imports Triton. This module is the one of its folder that can be imported first.
"""

from __future__ import annotations

import importlib.util
import os
import sys

from pagewire.ipc.errors import ConfigError

_SWITCH = "TRITON_INTERPRET"
# Whether a * b + c becomes one operation, rounded once. Triton 3.10 will no longer do so by itself, and results should
# not change with its version; a kernel that needs each operation rounded is launched with enable_fp_fusion=False.
_FUSION = "TRITON_DEFAULT_FP_FUSION"
_PARAM = "kernels"


def prepare_triton(*, interpreted: bool) -> None:
    """Import Triton in the wanted mode, so that the kernels' modules can be imported after it.

    Args:
        interpreted: whether kernels shall run as Python on the CPU (slow, exact) instead of being compiled.

    Raises:
        ConfigError: Triton is not installed, can't be loaded, or was imported before in the other mode.
    """
    if "triton" not in sys.modules:
        if importlib.util.find_spec("triton") is None:
            raise ConfigError(
                "--kernels triton needs Triton, which is not installed here. torch's builds for GPUs bring it; beside"
                " torch's CPU build `pip install triton` (Linux) gives kernels that are interpreted, for tests."
                " --kernels auto takes the CPU kernels.",
                param=_PARAM,
            )
        if interpreted:
            os.environ[_SWITCH] = "1"
        elif os.environ.pop(_SWITCH, None) is not None:
            # A variable of the shell, meant for a CPU: on a GPU it would cost a factor of thousands without a word.
            sys.stderr.write(f"pagewire: {_SWITCH} is ignored: kernels for a GPU are compiled\n")
    os.environ.setdefault(_FUSION, "1")
    try:
        found = is_interpreted()
    except (ImportError, OSError) as exc:
        raise ConfigError(
            f"--kernels triton: the installed Triton can't be loaded ({exc}). Install the version that this torch"
            " asks for (`pip show torch` names it).",
            param=_PARAM,
        ) from exc
    if found is not interpreted:
        modes = {True: "interpreted", False: "compiled"}
        raise ConfigError(
            f"Triton was imported before in this process, and its kernels are {modes[found]}; for this device they"
            f" have to be {modes[interpreted]}. Set {_SWITCH}={int(interpreted)} before the process starts.",
            param=_PARAM,
        )


def is_interpreted() -> bool:
    """Say whether the kernels of this process run as Python on the CPU.

    Raises:
        ImportError: Triton is not installed, or does not fit this Python.
    """
    import triton
    import triton.language as tl

    # A function of Triton's own library shows how Triton was imported; the environment may have changed since.
    return not isinstance(tl.softmax, triton.JITFunction)
