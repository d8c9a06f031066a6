"""Who answers which utility call: the engine at once; adapters and rest when executors have done what they ask."""

from __future__ import annotations

import time
from collections.abc import Callable

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.channels import ClientId
from pagewire.ipc.outputs import StepOutputs, UtilityResult
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.steps import AdapterLoaded, ExecutorReady

from ..adapters.calls import METHODS as ADAPTER_METHODS
from ..adapters.calls import AdapterCalls
from ..adapters.registry import AdapterRegistry
from ..engine import Engine
from ..executors.supervisor import ExecutorSupervisor
from ..rest.calls import METHODS as REST_METHODS
from ..rest.calls import RestCalls
from .registry import ClientRegistry


class Calls:
    """See the module.

    Args:
        clients: are answered.
        executors: do what is asked.
        adapters: that there are.
        num_ranks: executors of the core.
        tell_adapters: tells every client which adapters there are now.
    """

    def __init__(
        self,
        clients: ClientRegistry,
        executors: ExecutorSupervisor,
        adapters: AdapterRegistry,
        num_ranks: int,
        tell_adapters: Callable[[list[Adapter]], None],
    ) -> None:
        self._clients = clients
        self._adapters = adapters
        self._of_adapters = AdapterCalls(
            adapters, num_ranks, order=executors.tell, answer=self._answer, tell=tell_adapters
        )
        self._of_rest = RestCalls(executors, answer=self._answer, executors_ended=self._of_adapters.executors_lost)

    def call(self, engine: Engine, client: ClientId, call: CallUtility, now: float) -> None:
        """Answer a call, now or later."""
        if call.method in ADAPTER_METHODS:
            self._of_adapters.call(client, call)
        elif call.method in REST_METHODS:
            self._of_rest.call(engine, client, call, now)
            if not call.method.startswith("is_"):
                self._clients.send_to_all(StepOutputs(stats=engine.stats), now)
        else:
            self._clients.send(client, engine.call_utility(client, call), now)

    def executors_lost(self) -> None:
        """Note that the executors are gone."""
        self._of_adapters.executors_lost()

    def executors_ready(self, ready: ExecutorReady) -> None:
        """Note that others are there."""
        self._of_adapters.executors_ready(ready.executor_epoch, ready.failed_adapters, ready.adapter_digests)

    def adapter_loaded(self, message: AdapterLoaded) -> None:
        """Take the answer of one executor."""
        self._of_adapters.loaded(message)

    def let_go(self, engine: Engine) -> None:
        """Have the executors forget adapters that nobody has any more."""
        if self._adapters.has_leaving:
            self._of_adapters.let_go(engine.adapters_in_use())

    def look_after(self, engine: Engine, now: float) -> None:
        """Do what is due of what was called for."""
        if self._of_rest.look_after(engine, now):
            self._clients.send_to_all(StepOutputs(stats=engine.stats), now)

    def _answer(self, client: ClientId, result: UtilityResult) -> None:
        self._clients.send(client, result, time.monotonic())
