"""`AsyncEngineClient`: attach to an engine core and ask it for tokens; needs only pyzmq and msgspec.

    client = await AsyncEngineClient.connect("ipc:///tmp/pagewire.sock")
    async with client.generate([1, 2, 3], SamplingParams(max_tokens=8)) as stream:
        async for delta in stream:
            print(delta.token_ids)

It speaks token ids. Text options need a tokenizer and are refused by name; `TextGenerator` turns them into ids.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from pagewire.ipc.core_connection import CoreConnection
from pagewire.ipc.curve import ClientKeys
from pagewire.ipc.endpoints import check_address
from pagewire.ipc.errors import EngineDead, PagewireError
from pagewire.ipc.outputs import CoreKey, EngineInfo, Ready, StepStats
from pagewire.ipc.requests import AddRequest, CallUtility, GenerateTask
from pagewire.ipc.sampling_params import SamplingParams

from .core_link import LinkOptions, SilenceReports
from .handshake import Attacher, Introduction
from .request_builder import RequestBuilder, check_types
from .session import Session
from .token_stream import TokenStream


class AsyncEngineClient:
    """A client of one engine, on one asyncio event loop. Make it with `connect`, end it with `aclose`.

    It outlives the engine's core: when that dies and is started again, its requests go on where they were. Their
    streams pause meanwhile, and new requests wait.

    Attributes:
        address: where the core listens.
    """

    def __init__(
        self, introduction: Introduction, options: LinkOptions, connection: CoreConnection, ready: Ready
    ) -> None:
        self.address = introduction.address
        self._session = Session(introduction, options, connection, ready)
        self._builder = RequestBuilder(ready.info)
        self._ids = itertools.count(1)

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        name: str = "",
        keys: ClientKeys | None = None,
        timeout_s: float | None = 10.0,
        options: LinkOptions | None = None,
    ) -> AsyncEngineClient:
        """Attach to the core that listens on `address`.

        Args:
            address: ipc:///path/to.sock or tcp://host:port.
            name: says in the engine's log who this is.
            keys: for an engine that listens on tcp:// with keys; `read_client_keys` reads them from files.
            timeout_s: how long to wait for the core, which answers when its model is loaded; None waits for good.
            options: how long to have patience with a core that says nothing, and with an engine that has none.

        Raises:
            EngineDead: nothing answers there.
            ProtocolError: the core speaks another version.
            PagewireError: what else the core refuses this client for.
            ConfigError: the address is malformed, or its engine does not allow these keys.
        """
        check_address(address, has_keys=keys is not None)
        introduction = Introduction(address=address, name=name, keys=keys)
        options = LinkOptions() if options is None else options
        attacher = Attacher(
            introduction,
            turn_s=options.ping_interval_s,
            silence_limit_s=options.silence_limit_s,
            on_turn=SilenceReports(options).turn_passed,
        )
        try:
            async with asyncio.timeout(timeout_s):
                connection, ready = await attacher.attach()
        except TimeoutError:
            its_key = " with the public key that was given for it" if keys is not None else ""
            raise EngineDead(
                f"No engine answered at {address} within {timeout_s:g} s. Check the address and that an engine runs "
                f"there (`pagewire engine --listen {address}`){its_key}; if it is still "
                "loading its model, wait longer (timeout_s)."
            ) from None
        return cls(introduction, options, connection, ready)

    @property
    def info(self) -> EngineInfo:
        """What the engine serves and its limits."""
        return self._session.info

    @property
    def core_epoch(self) -> int:
        """Which life of the core this is, or was last."""
        return self._session.core[1]

    @property
    def core(self) -> CoreKey:
        """Which core this is, or was last, of all that there ever were at the address."""
        return self._session.core

    @property
    def num_core_restarts(self) -> int:
        """How often the engine's core had to be started again."""
        return self._session.num_core_restarts

    @property
    def stats(self) -> StepStats | None:
        """The core's state at the last step that concerned this client; None before the first."""
        return self._session.stats

    @property
    def is_serving(self) -> bool:
        """Whether a core is there, takes steps as far as it says, and says something when it should."""
        return self._session.is_serving

    async def probe(self, timeout_s: float) -> bool:
        """Return whether the core was heard of lately, or shows a sign of life within `timeout_s`."""
        return await self._session.link.probe(timeout_s)

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
        """Send a request of `make_request`, once; at a time without a core, to the next one.

        Raises:
            EngineDead: there will be no core any more.
            Overloaded: there is none now, and too many requests wait for the next.
        """
        self._session.check_alive()
        mailbox = self._session.live.add(request)
        self._session.link.watch()
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
        self._session.live.abort(request_ids)

    async def call_utility(
        self, method: str, *args: int | float | str | bool | None, timeout_s: float | None = 30.0
    ) -> Any:  # Any: each utility documents its result
        """Call a utility of the core, see `pagewire.engine_core.utilities`; at a time without a core, of the next one.

        Raises:
            PagewireError: what the utility answered; or the core is gone, or gave no answer in time.
        """
        self._session.check_alive()
        call = CallUtility(call_id=next(self._ids), method=method, args=list(args))
        check_types(call)
        return await self._session.calls.call(call, timeout_s)

    def add_stats_listener(self, listener: Callable[[StepStats], None]) -> None:
        """Have `listener` called with the core's stats after each step that concerns this client."""
        self._session.add_stats_listener(listener)

    @property
    def num_live_requests(self) -> int:
        """Requests whose end is still to come."""
        return len(self._session.live)

    @property
    def death(self) -> PagewireError | None:
        """Why there will be no core any more; None while there is one, or one is awaited."""
        return self._session.death

    async def wait_dead(self) -> None:
        """Wait until there will be no core any more; `death` then says why."""
        await self._session.is_dead.wait()

    def mark_dead(self, error: PagewireError) -> None:
        """Fail all that is live and all that comes; for those who know that no core will come."""
        self._session.mark_dead(error)

    async def aclose(self) -> None:
        """Leave the engine; live requests fail here and are aborted there. Closing twice is fine."""
        self._session.mark_dead(EngineDead("This client was closed."))
        await self._session.link.aclose()

    async def __aenter__(self) -> AsyncEngineClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
