"""What clients may ask about adapters, and who waits for a load: every rank reads the files before it is done.

load_adapter     name, path, base_model_name, load_inplace -> True once every executor has it
unload_adapter   name -> True; requests that have the adapter run to their ends
list_adapters    name, load_id, path, base_model_name and digest of each that can be asked for
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.channels import ClientId
from pagewire.ipc.errors import EngineError, ErrorInfo, InvalidRequest, Overloaded, PagewireError
from pagewire.ipc.outputs import UtilityResult
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.steps import AdapterLoaded, LoadAdapter, UnloadAdapter

from .ranks import files_differ
from .registry import AdapterRegistry

METHODS = frozenset({"load_adapter", "unload_adapter", "list_adapters"})


class _LoadArguments(msgspec.Struct, array_like=True):
    name: str
    path: str
    base_model_name: str = ""
    load_inplace: bool = False


@dataclass(slots=True)
class _Load:
    client: ClientId
    call_id: int
    num_awaited: int
    digest: str = ""
    error: ErrorInfo | None = None


class AdapterCalls:
    """Answers the calls of the module's list, some of them later.

    Args:
        registry: which adapters there are.
        num_ranks: executors that read an adapter.
        order: sends to all executors.
        answer: sends a result to a client.
        tell: tells every client which adapters there are now.
    """

    def __init__(
        self,
        registry: AdapterRegistry,
        num_ranks: int,
        *,
        order: Callable[[LoadAdapter | UnloadAdapter], None],
        answer: Callable[[ClientId, UtilityResult], None],
        tell: Callable[[list[Adapter]], None],
    ) -> None:
        self._registry = registry
        self._num_ranks = num_ranks
        self._order = order
        self._answer = answer
        self._tell = tell
        self._loads: dict[int, _Load] = {}  # by load id
        self._epoch: int | None = None  # of executors that are ready

    def call(self, client: ClientId, call: CallUtility) -> None:
        """Answer a call, now or when the executors have done what it asks."""
        try:
            result = self._start(client, call)
        except PagewireError as exc:
            self._answer(client, UtilityResult(call_id=call.call_id, error=exc.to_info()))
            return
        if result is not None:
            self._answer(client, UtilityResult(call_id=call.call_id, result=result))

    def loaded(self, message: AdapterLoaded) -> None:
        """Take the answer of one executor."""
        load = self._loads.get(message.load_id)
        if load is None:
            return
        load.num_awaited -= 1
        load.error = load.error or message.error
        if load.digest and message.digest and message.digest != load.digest:
            load.error = load.error or files_differ()
        load.digest = load.digest or message.digest
        if not load.num_awaited:
            self._end(message.load_id, load)

    def executors_ready(
        self, epoch: int, failed: Mapping[int, ErrorInfo], digests: Mapping[int, str] | None = None
    ) -> None:
        """Note that executors take orders, which adapters they can't read any more, and what they read of others."""
        self._epoch = epoch
        self._registry.note_digests(digests or {})
        if failed:
            self._registry.lose(failed)
            self._tell(self._registry.listed)

    def executors_lost(self) -> None:
        """Fail the loads under way; the next executors have the adapters that were loaded before."""
        self._epoch = None
        for load_id, load in list(self._loads.items()):
            load.error = EngineError("The executors ended while they loaded the adapter; try again.").to_info()
            self._end(load_id, load)

    def let_go(self, used: Collection[int]) -> None:
        """Have the executors forget adapters that have no name and no request; see `AdapterRegistry.let_go`."""
        if self._epoch is None:  # executors that start may have been given them already, and have to hear of it
            return
        for load_id in self._registry.let_go(used):
            self._order(UnloadAdapter(executor_epoch=self._epoch, load_id=load_id))

    def _start(self, client: ClientId, call: CallUtility) -> Any:  # Any: as the module documents
        match call.method:
            case "list_adapters" if not call.args:
                return [msgspec.structs.asdict(adapter) for adapter in self._registry.listed]
            case "unload_adapter" if len(call.args) == 1:
                self._registry.unload(str(call.args[0]))
                self._tell(self._registry.listed)
                return True
            case "load_adapter":
                self._load(client, call)
                return None
        raise InvalidRequest(f"{call.method} does not take the arguments {call.args}.", param="args")

    def _load(self, client: ClientId, call: CallUtility) -> None:
        try:
            given = msgspec.convert(call.args, _LoadArguments)
        except msgspec.ValidationError as exc:
            raise InvalidRequest(f"{call.method}: {exc}.", param="args") from exc
        if self._epoch is None:
            raise Overloaded("There are no executors now: they start again, or the engine sleeps.", retry_after_s=5)
        adapter = self._registry.begin(given.name, given.path, given.base_model_name, is_inplace=given.load_inplace)
        self._loads[adapter.load_id] = _Load(client, call.call_id, self._num_ranks)
        self._order(LoadAdapter(executor_epoch=self._epoch, adapter=adapter))

    def _end(self, load_id: int, load: _Load) -> None:
        del self._loads[load_id]
        self._registry.finish(load_id, is_loaded=load.error is None, digest=load.digest)
        if load.error is None:
            self._tell(self._registry.listed)
        elif self._epoch is not None:  # some ranks may have it
            self._order(UnloadAdapter(executor_epoch=self._epoch, load_id=load_id))
        result = UtilityResult(call_id=load.call_id, result=None if load.error else True, error=load.error)
        self._answer(load.client, result)
