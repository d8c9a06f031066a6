"""`AsyncEngineClient`: attach to an engine core and ask it for tokens; needs only pyzmq and msgspec.

    client = await AsyncEngineClient.connect("ipc:///tmp/pagewire.sock")
    async with client.generate([1, 2, 3], SamplingParams(max_tokens=8)) as stream:
        async for delta in stream:
            print(delta.token_ids)

It speaks token ids. Text options need a tokenizer and are refused by name; `TextGenerator` turns them into ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from pagewire.ipc.channels import CoreConnection
from pagewire.ipc.endpoints import check_address
from pagewire.ipc.errors import EngineDead, EngineError, ErrorInfo, PagewireError
from pagewire.ipc.outputs import CoreMessage, EngineInfo, Goodbye, Ready, StepOutputs, StepStats, UtilityResult
from pagewire.ipc.requests import AbortRequests, AddRequest, CallUtility, ClientMessage, GenerateTask, Ping
from pagewire.ipc.sampling_params import SamplingParams

from .handshake import shake_hands
from .request_builder import RequestBuilder, check_types
from .token_stream import Mailbox, TokenStream

PING_INTERVAL_S = 0.25
SILENCE_LIMIT_S = 10.0  # a loaded machine may hold the core up for seconds; a dead process is noticed by its parent


class AsyncEngineClient:
    """A connection to one engine core, on one asyncio event loop. Make it with `connect`, end it with `aclose`.

    Attributes:
        address: where the core listens.
        info: what the core serves and its limits.
        core_epoch: which life of the core this is.
        stats: the core's state at the last step that concerned this client; None before the first.
    """

    def __init__(
        self,
        connection: CoreConnection,
        ready: Ready,
        *,
        address: str,
        ping_interval_s: float,
        silence_limit_s: float,
    ) -> None:
        self.address = address
        self.info: EngineInfo = ready.info
        self.core_epoch = ready.core_epoch
        self.stats: StepStats | None = None
        self._connection = connection
        self._builder = RequestBuilder(ready.info)
        self._ping_interval_s = ping_interval_s
        self._max_silent_pings = max(1, round(silence_limit_s / ping_interval_s))
        self._num_silent_pings = 0
        self._ids = itertools.count(1)
        self._live: dict[int, Mailbox] = {}
        self._has_live = asyncio.Event()
        self._calls: dict[int, asyncio.Future[UtilityResult]] = {}
        self._stats_listeners: list[Callable[[StepStats], None]] = []
        self._changed: list[Mailbox] = []  # by the messages that are being taken; told once, after the last of them
        self._is_taking = False
        self._death: ErrorInfo | None = None
        self._is_dead = asyncio.Event()
        connection.receive_with(self._take_all, self._on_failure)
        self._keep_alive_task = asyncio.create_task(self._keep_alive())
        self._keep_alive_task.add_done_callback(self._on_task_end)

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        name: str = "",
        timeout_s: float | None = 10.0,
        ping_interval_s: float = PING_INTERVAL_S,
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> AsyncEngineClient:
        """Attach to the core that listens on `address`.

        Args:
            address: ipc:///path/to.sock or tcp://host:port.
            name: says in the engine's log who this is.
            timeout_s: how long to wait for the core, which answers when its model is loaded; None waits for good.
            ping_interval_s: time between signs of life while requests are live.
            silence_limit_s: a core that says nothing for so long while requests are live is taken for dead.

        Raises:
            EngineDead: nothing answers there.
            ProtocolError: the core speaks another version.
            PagewireError: what else the core refuses this client for.
            ConfigError: the address is malformed.
        """
        check_address(address)
        with contextlib.ExitStack() as on_failure:
            connection = CoreConnection(address)
            on_failure.callback(connection.close)
            ready = await shake_hands(connection, name=name, address=address, timeout_s=timeout_s)
            on_failure.pop_all()
        return cls(
            connection,
            ready,
            address=address,
            ping_interval_s=ping_interval_s,
            silence_limit_s=silence_limit_s,
        )

    def resolve(self, params: SamplingParams, *, bad_words_token_ids: Sequence[Sequence[int]] = ()) -> GenerateTask:
        """Turn what a user asked into the engine's terms, see `RequestBuilder.resolve`."""
        return self._builder.resolve(params, bad_words_token_ids=bad_words_token_ids)

    def make_request(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | GenerateTask,
        *,
        label: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> AddRequest:
        """Build a request that the engine will take, without sending it; see `RequestBuilder.build`."""
        return self._builder.build(
            next(self._ids),
            prompt_token_ids,
            params,
            label=label,
            priority=priority,
            cache_salt=cache_salt,
            timeout_s=timeout_s,
        )

    def submit(self, request: AddRequest) -> TokenStream:
        """Send a request of `make_request`, once.

        Raises:
            EngineDead: the core is gone.
        """
        self._check_alive()
        mailbox = Mailbox(request, self._post, self._forget, self._tell_of_change)
        self._live[request.request_id] = mailbox
        self._has_live.set()
        self._post(request)
        return TokenStream(mailbox)

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | GenerateTask,
        *,
        label: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> TokenStream:
        """Ask for tokens: `make_request` and `submit` in one."""
        return self.submit(
            self.make_request(
                prompt_token_ids, params, label=label, priority=priority, cache_salt=cache_salt, timeout_s=timeout_s
            )
        )

    def abort(self, request_ids: Sequence[int]) -> None:
        """End requests. Their streams finish with reason abort; ids that are not live are passed over."""
        live = [request_id for request_id in request_ids if request_id in self._live]
        if live:
            self._post(AbortRequests(request_ids=live))

    async def call_utility(
        self, method: str, *args: int | float | str | bool | None, timeout_s: float | None = 30.0
    ) -> Any:  # Any: each utility documents its result
        """Call a utility of the core, see `pagewire.engine_core.utilities`.

        Raises:
            PagewireError: what the utility answered, or that the core is gone or gave no answer in time.
        """
        self._check_alive()
        call_id = next(self._ids)
        call = CallUtility(call_id=call_id, method=method, args=list(args))
        check_types(call)
        answer: asyncio.Future[UtilityResult] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        self._post(call)
        try:
            async with asyncio.timeout(timeout_s):
                result = await answer
        except TimeoutError:
            raise EngineError(
                f"The engine at {self.address} gave no answer to {method} within {timeout_s:g} s."
            ) from None
        finally:
            del self._calls[call_id]
        if result.error is not None:
            raise PagewireError.from_info(result.error)
        return result.result

    def add_stats_listener(self, listener: Callable[[StepStats], None]) -> None:
        """Have `listener` called with the core's stats after each step that concerns this client."""
        self._stats_listeners.append(listener)

    @property
    def num_live_requests(self) -> int:
        """Requests whose end is still to come."""
        return len(self._live)

    @property
    def death(self) -> PagewireError | None:
        """Why the core is gone; None while it is there."""
        return None if self._death is None else PagewireError.from_info(self._death)

    async def wait_dead(self) -> None:
        """Wait until the core is known to be gone; `death` then says why."""
        await self._is_dead.wait()

    def mark_dead(self, error: PagewireError) -> None:
        """Fail all that is live and all that comes, as the core is gone; for those who see its process end."""
        if self._death is not None:
            return
        self._death = error.to_info()
        self._is_dead.set()
        for mailbox in list(self._live.values()):
            mailbox.fail(self._death)
        for call_id, answer in self._calls.items():
            if not answer.done():
                answer.set_result(UtilityResult(call_id=call_id, error=self._death))

    async def aclose(self) -> None:
        """Leave the engine; live requests fail here and are aborted there. Closing twice is fine."""
        self.mark_dead(EngineDead("This client was closed."))
        self._keep_alive_task.cancel()
        await asyncio.gather(self._keep_alive_task, return_exceptions=True)
        self._connection.close()

    async def __aenter__(self) -> AsyncEngineClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _check_alive(self) -> None:
        if self._death is not None:
            raise PagewireError.from_info(self._death)

    def _post(self, message: ClientMessage) -> None:
        if self._death is None:
            self._connection.send(message)

    def _forget(self, request_id: int) -> None:
        del self._live[request_id]

    async def _keep_alive(self) -> None:
        while self._death is None:
            await self._has_live.wait()
            self._num_silent_pings = 0
            while self._live:
                if self._num_silent_pings >= self._max_silent_pings:
                    silent_s = self._num_silent_pings * self._ping_interval_s
                    self.mark_dead(EngineDead(f"The engine at {self.address} has not answered for {silent_s:g} s."))
                    return
                # Counted in turns of this loop, not by the clock: if this process was held up, so was its reading.
                self._num_silent_pings += 1
                if not self._connection.has_unsent:
                    self._post(Ping())
                await asyncio.sleep(self._ping_interval_s)
            self._has_live.clear()

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._on_failure(error)

    def _on_failure(self, error: Exception) -> None:
        if isinstance(error, PagewireError):
            self.mark_dead(error)
        else:
            self.mark_dead(EngineDead(f"The connection to the engine at {self.address} failed: {error!r}."))

    def _take_all(self, messages: list[CoreMessage]) -> None:
        # A reader hears of what came together once: steps that this process was too slow for cost it less.
        self._num_silent_pings = 0
        self._is_taking = True
        try:
            for message in messages:
                if self._death is not None:
                    break
                if type(message) is StepOutputs:  # nearly all are
                    self._take_outputs(message)
                else:
                    self._take(message)
        finally:
            self._is_taking = False
            changed, self._changed = self._changed, []
            for mailbox in changed:
                mailbox.notify()

    def _tell_of_change(self, mailbox: Mailbox) -> None:
        if self._is_taking:
            self._changed.append(mailbox)
        else:
            mailbox.notify()

    def _take(self, message: CoreMessage) -> None:
        match message:
            case UtilityResult():
                answer = self._calls.get(message.call_id)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case Goodbye():
                self.mark_dead(PagewireError.from_info(message.error))
            case StepOutputs():
                self._take_outputs(message)
            case Ping() | Ready():
                pass

    def _take_outputs(self, outputs: StepOutputs) -> None:
        # Requests that are not live here were closed by their reader; the core learns of it by the abort under way.
        live = self._live
        for request_id in outputs.accepted:
            if request_id in live:
                live[request_id].put_accepted()
        for start in outputs.starts:
            if start.request_id in live:
                live[start.request_id].put_start(start)
        for delta in outputs.deltas:
            if delta.request_id in live:
                live[delta.request_id].put_delta(delta)
        for end in outputs.ends:
            if end.request_id in live:
                live[end.request_id].put_end(end)
        if outputs.stats is not None:
            self.stats = outputs.stats
            for listener in self._stats_listeners:
                listener(outputs.stats)
