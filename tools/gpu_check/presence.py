"""Whether there is a GPU to check, asked in a process of its own: its context on the device ends with it.

python -m tools.gpu_check.presence        exit code 2, and the reason, if there is none
"""

from __future__ import annotations

import subprocess
import sys

from pagewire.gpu_executor.devices.select import select_device
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.ipc.errors import ConfigError, MachineError

NO_GPU = 2
"""Exit code: there is none that can be checked."""


def why_no_gpu() -> str | None:
    """Return why this machine can't run the check; None if it can."""
    asked = subprocess.run([sys.executable, "-m", "tools.gpu_check.presence"], capture_output=True, text=True)
    if asked.returncode == 0:
        return None
    lines = asked.stderr.strip().splitlines()
    if asked.returncode == NO_GPU and lines:
        return lines[-1]
    return f"what looked for a GPU ended with exit code {asked.returncode}: {lines[-1] if lines else 'no message'}"


def main() -> int:
    """Ask here, say why not, and return the exit code."""
    try:
        select_device("cuda", "triton", HostLimits())
    except (ConfigError, MachineError) as exc:
        sys.stderr.write(f"there is no GPU to check: {exc.message}\n")
        return NO_GPU
    return 0


if __name__ == "__main__":
    sys.exit(main())
