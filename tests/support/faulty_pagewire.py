"""The command line `pagewire`, whose engine core is `faulty_core`."""

from __future__ import annotations

import functools
import sys

from pagewire.frontend.cli.main import run
from pagewire.frontend.supervisor import launch
from pagewire.frontend.supervisor.engine_process import EngineProcess

if __name__ == "__main__":
    launch.EngineProcess = functools.partial(EngineProcess, core_module="tests.support.faulty_core")
    sys.exit(run(sys.argv[1:]))
