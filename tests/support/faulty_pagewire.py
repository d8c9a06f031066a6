"""The command line `pagewire`, whose engine core is `faulty_core`."""

from __future__ import annotations

import functools
import sys

from pagewire.frontend.cli.main import run
from pagewire.frontend.supervisor import launch
from pagewire.frontend.supervisor.engine_process import start_cores

if __name__ == "__main__":
    assert launch.start_cores is start_cores, "the command starts its cores by what is replaced here"
    launch.start_cores = functools.partial(start_cores, core_module="tests.support.faulty_core")
    sys.exit(run(sys.argv[1:]))
