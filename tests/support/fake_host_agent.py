"""An agent whose executors are fakes."""

from __future__ import annotations

import sys

from pagewire.gpu_executor.host_agent.__main__ import main

if __name__ == "__main__":
    sys.exit(main(executor_module="tests.support.fake_executor_process"))
