"""The engine core with planted faults: certain prompts end it, and others its executor (see `poisoned_executor`)."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pagewire.engine_core import __main__ as core
from pagewire.engine_core import loop
from pagewire.engine_core.engine import Engine
from pagewire.ipc.channels import ClientId
from pagewire.ipc.requests import AddRequest

# A prompt that begins with one of these ...
KILLER = 411  # ... kills the core
RAISER = 412  # ... makes it raise

DIES_FROM_EPOCH = "TEST_CORE_DIES_FROM_EPOCH"  # an environment variable: cores from this one on end at once


class FaultyEngine(Engine):
    """Looks at each request before it is accepted."""

    def add_request(self, client: ClientId, request: AddRequest, now: float) -> None:
        first_token = next(iter(request.inputs.prompt_token_ids), None)
        if first_token == KILLER:
            os.kill(os.getpid(), signal.SIGKILL)
        if first_token == RAISER:
            raise RuntimeError("a planted fault")
        super().add_request(client, request, now)


def make_core(*args: Any, core_epoch: int, **options: Any) -> loop.EngineCore:
    if core_epoch >= int(os.environ.get(DIES_FROM_EPOCH, "1000")):
        os._exit(9)
    return loop.EngineCore(*args, core_epoch=core_epoch, executor_module="tests.support.poisoned_executor", **options)


if __name__ == "__main__":
    loop.Engine = FaultyEngine
    core.EngineCore = make_core
    sys.exit(core.main())
