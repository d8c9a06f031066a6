"""`AsyncEngineClient`: attach to an engine core and ask it for tokens; needs only pyzmq and msgspec.

    client = await AsyncEngineClient.connect("ipc:///tmp/pagewire.sock")
    async with client.generate([1, 2, 3], SamplingParams(max_tokens=8)) as stream:
        async for delta in stream:
            print(delta.token_ids)

It speaks token ids. Text options need a tokenizer and are refused by name; `TextGenerator` turns them into ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.curve import ClientKeys
from pagewire.ipc.errors import EngineDead, PagewireError
from pagewire.ipc.outputs import CoreKey, EngineInfo, StepStats
from pagewire.ipc.requests import AddRequest, EmbedTask, GenerateTask, Task
from pagewire.ipc.sampling_params import SamplingParams

from .attach import attach_to_all
from .core_link import LinkOptions
from .embedding import PromptEmbedding, receive_embedding
from .fleet import CoreListener, Fleet, MakeRouter
from .request_builder import RequestBuilder
from .router import PrefixRouter
from .session import Session
from .token_stream import TokenStream


class AsyncEngineClient:
    """A client of one engine, on one asyncio event loop. Make it with `connect`, end it with `aclose`.

    It outlives the engine's cores: when one dies, its requests go on in another one where they were, or in the next
    one if there is no other. Their streams pause meanwhile, and new requests wait.

    Args:
        sessions: attached, one a core; the first one's address is the engine's.
        make_router: what divides requests among several cores.

    Attributes:
        address: where the engine's first core listens.
    """

    def __init__(self, sessions: Sequence[Session], make_router: MakeRouter = PrefixRouter) -> None:
        self.address = sessions[0].address
        self._fleet = Fleet(sessions, make_router)
        self._builder = RequestBuilder(self._fleet.info)
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
        make_router: MakeRouter = PrefixRouter,
    ) -> AsyncEngineClient:
        """Attach to the engine that listens on `address`, to all of its cores.

        Args:
            address: ipc:///path/to.sock or tcp://host:port.
            name: says in the engine's log who this is.
            keys: for an engine that listens on tcp:// with keys; `read_client_keys` reads them from files.
            timeout_s: how long to wait for a core, which answers when its model is loaded; None waits for good.
            options: how long to have patience with a core that says nothing, and with an engine that has none.
            make_router: what divides requests among several cores.

        Raises:
            EngineDead: nothing answers there.
            ProtocolError: the core speaks another version.
            PagewireError: what else the core refuses this client for.
            ConfigError: the address is malformed, or its engine does not allow these keys.
        """
        options = LinkOptions() if options is None else options
        sessions = await attach_to_all(address, name=name, keys=keys, timeout_s=timeout_s, options=options)
        return cls(sessions, make_router)

    @property
    def info(self) -> EngineInfo:
        """What the engine serves and its limits; of several cores, those that each keeps."""
        if len(self._fleet.sessions) == 1:
            return self._fleet.sessions[0].info
        return self._fleet.info

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The LoRA adapters that requests may name now; of several cores, those of the first."""
        return self._fleet.sessions[0].adapters

    @property
    def core_epoch(self) -> int:
        """Which life of the core this is, or was last; of several, of the first."""
        return self.core[1]

    @property
    def core(self) -> CoreKey:
        """Which core this is, or was last, of all that there ever were at the address; of several, the first."""
        return self.cores[0]

    @property
    def cores(self) -> tuple[CoreKey, ...]:
        """The same of each core."""
        return tuple(session.core for session in self._fleet.sessions)

    @property
    def num_core_restarts(self) -> int:
        """How often a core of the engine had to be started again."""
        return sum(session.num_core_restarts for session in self._fleet.sessions)

    @property
    def stats(self) -> StepStats | None:
        """The state of all cores at the last step that concerned this client; None before the first."""
        return self._fleet.stats

    @property
    def is_serving(self) -> bool:
        """Whether a core is there, takes steps as far as it says, and says something when it should."""
        return self._fleet.is_serving

    async def probe(self, timeout_s: float) -> bool:
        """Return whether a core was heard of lately, or shows a sign of life within `timeout_s`."""
        return await self._fleet.probe(timeout_s)

    def resolve(self, params: SamplingParams, *, bad_words_token_ids: Sequence[Sequence[int]] = ()) -> GenerateTask:
        """Turn what a user asked into the engine's terms, see `RequestBuilder.resolve`."""
        return self._builder.resolve(params, bad_words_token_ids=bad_words_token_ids)

    def make_request(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | Task,
        *,
        label: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
        adapter: str = "",
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
            adapter=adapter,
        )

    def submit(self, request: AddRequest) -> TokenStream:
        """Send a request of `make_request`, once; at a time without a core, to the next one.

        Raises:
            EngineDead: there will be no core any more.
            Overloaded: there is none now, and too many requests wait for the next.
        """
        return TokenStream(self._fleet.submit(request))

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | GenerateTask,
        *,
        label: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
        adapter: str = "",
    ) -> TokenStream:
        """Ask for tokens: `make_request` and `submit` in one."""
        return self.submit(
            self.make_request(
                prompt_token_ids,
                params,
                label=label,
                priority=priority,
                cache_salt=cache_salt,
                timeout_s=timeout_s,
                adapter=adapter,
            )
        )

    async def embed(
        self,
        prompt_token_ids: Sequence[int],
        task: EmbedTask | None = None,
        *,
        label: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
        adapter: str = "",
    ) -> PromptEmbedding:
        """Return the vector of a prompt; one that is cancelled is aborted.

        Args:
            prompt_token_ids: up to the model's whole context.
            task: how its tokens' hidden states become one vector; by default the last one's, of length 1.
            label: the user's own id for the request, for logs alone.
            priority: lower runs first, under the priority policy.
            cache_salt: requests of different salts share no cached blocks.
            timeout_s: seconds after which it fails with `DeadlineExceeded`; None for no limit.
            adapter: name of the LoRA adapter that changes the weights; empty: none.

        Raises:
            RequestError: the prompt can't be served, or was aborted.
            EngineError: the engine failed.
        """
        request = self.make_request(
            prompt_token_ids,
            EmbedTask() if task is None else task,
            label=label, priority=priority, cache_salt=cache_salt, timeout_s=timeout_s, adapter=adapter,
        )  # fmt: skip
        return await receive_embedding(self.submit(request))

    def abort(self, request_ids: Sequence[int]) -> None:
        """End requests. Their streams finish with reason abort; ids that are not live are passed over."""
        self._fleet.abort(request_ids)

    async def call_utility(
        self, method: str, *args: int | float | str | bool | None, timeout_s: float | None = 30.0
    ) -> Any:  # Any: each utility documents its result
        """Call a utility of the core (`pagewire.engine_core.clients.utilities`); without a core, of the next one.

        Of several cores each is asked: numbers of their answers add up, lists are joined, see `combine_answers`.

        Raises:
            PagewireError: what the utility answered; or the core is gone, or gave no answer in time.
        """
        return await self._fleet.call_utility(method, *args, timeout_s=timeout_s)

    async def call_each(self, method: str, *, timeout_s: float) -> list[Any]:  # Any: each utility documents its result
        """Call a utility of every core; return an answer each, in their order.

        It is None from a core that isn't there or gives none in time.
        """
        return await self._fleet.call_each(method, timeout_s=timeout_s)

    def add_stats_listener(self, listener: Callable[[StepStats], None]) -> None:
        """Have `listener` called with the stats of all cores after each step that concerns this client."""
        self._fleet.add_stats_listener(listener)

    def add_core_listener(self, listener: CoreListener) -> None:
        """Have `listener` called with (which core from 0 on, its key, its stats) after each such step."""
        self._fleet.add_core_listener(listener)

    @property
    def num_live_requests(self) -> int:
        """Requests whose end is still to come."""
        return sum(len(session.live) for session in self._fleet.sessions)

    @property
    def death(self) -> PagewireError | None:
        """Why there will be no core any more; None while there is one, or one is awaited."""
        return self._fleet.death

    async def wait_dead(self) -> None:
        """Wait until there will be no core any more; `death` then says why."""
        await self._fleet.is_dead.wait()

    def mark_dead(self, error: PagewireError) -> None:
        """Fail all that is live and all that comes; for those who know that no core will come."""
        self._fleet.mark_dead(error)

    async def aclose(self) -> None:
        """Leave the engine; live requests fail here and are aborted there. Closing twice is fine."""
        self._fleet.mark_dead(EngineDead("This client was closed."))
        await self._fleet.aclose()

    async def __aenter__(self) -> AsyncEngineClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
