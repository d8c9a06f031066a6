"""The cores that a client has, one or several, as if they were one: who gets a request, and who goes on with it.

Each core has a session of its own, with a journal of what was asked there. When one ends, its requests go on in the
others at once, ids and streams as they are, and new ones avoid it until its successor is there. The fleet is dead when
no session has a core to come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from pagewire.ipc.block_hash import BlockDigest, block_key, cache_extras, extend_digests
from pagewire.ipc.errors import EngineError, PagewireError
from pagewire.ipc.outputs import CoreKey, PrefixCacheChanges, StepStats
from pagewire.ipc.requests import AddRequest, EmbedTask, Task

from .combining import combine_answers, combine_infos, sum_stats
from .router import PrefixRouter, Router
from .session import Session
from .token_stream import Mailbox

logger = logging.getLogger(__name__)

MakeRouter = Callable[[int, int, Callable[[], float]], Router]
CoreListener = Callable[[int, CoreKey, StepStats], None]

# Of longer prompts the head decides: making the keys of more would hold up the event loop for milliseconds.
MAX_KEYS = 2048


class Fleet:
    """See the module.

    Args:
        sessions: attached, one a core.
        make_router: makes what divides requests among several cores, of their number, the block size and a clock.

    Attributes:
        sessions: one a core, in their order.
        info: what the engine serves, and limits that each core keeps.
        is_dead: set when there will be no core any more.
    """

    def __init__(self, sessions: Sequence[Session], make_router: MakeRouter = PrefixRouter) -> None:
        self.sessions = list(sessions)
        self.info = combine_infos([session.info for session in sessions])
        self.is_dead = asyncio.Event()
        self._death: PagewireError | None = None
        self._are_uneven = any(session.info.max_model_len != self.info.max_model_len for session in sessions)
        self._stats_listeners: list[Callable[[StepStats], None]] = []
        self._core_listeners: list[CoreListener] = []
        self._router: Router | None = None
        if len(self.sessions) > 1:
            self._router = make_router(len(self.sessions), self.info.block_size, asyncio.get_running_loop().time)
        needs_keys = self._router is not None and self._router.needs_keys and self.info.enable_prefix_caching
        self._needs_keys = needs_keys
        for session in self.sessions:
            session.live.progress = self._router
            session.join(self, watches_cache=needs_keys)

    @property
    def death(self) -> PagewireError | None:
        """Why there will be no core any more; None while there is one, or one is awaited."""
        return self._death

    @property
    def is_serving(self) -> bool:
        """Whether a core is there, takes steps as far as it says, and says something when it should."""
        return any(session.is_serving for session in self.sessions)

    @property
    def stats(self) -> StepStats | None:
        """The figures of all cores that are there; None before the first."""
        sessions = self.sessions
        if len(sessions) > 1:
            sessions = [session for session in sessions if session.link.is_attached]
        known = [session.stats for session in sessions if session.stats is not None]
        return sum_stats(known) if known else None

    def add_stats_listener(self, listener: Callable[[StepStats], None]) -> None:
        """Have `listener` called with the figures of all cores when those of one have changed."""
        self._stats_listeners.append(listener)

    def add_core_listener(self, listener: CoreListener) -> None:
        """Have `listener` called with (which core, its key, its figures) when they have changed."""
        self._core_listeners.append(listener)

    def submit(self, request: AddRequest) -> Mailbox:
        """Send a request to the core that is to answer it; at a time without one, to the next.

        Raises:
            EngineDead: there will be no core any more.
            Overloaded: there is none now, and too many requests wait for the next.
        """
        if self._death is not None:
            raise PagewireError.from_info(self._death.to_info())
        if self._are_uneven:
            request = self._fit(request)
        session = self.sessions[self._place(request, self._candidates())]
        try:
            mailbox = session.live.add(request)
        except PagewireError:
            if self._router is not None:
                self._router.ended(request.request_id)
            raise
        session.link.watch()
        return mailbox

    def abort(self, request_ids: Iterable[int]) -> None:
        """End requests; ids that are not live are passed over."""
        request_ids = list(request_ids)
        for session in self.sessions:
            session.live.abort(request_ids)

    async def call_utility(
        self, method: str, *args: int | float | str | bool | None, timeout_s: float | None
    ) -> Any:  # Any: each utility documents its result
        """Call a utility of every core, and return their answers as one; see `combine_answers`.

        Raises:
            PagewireError: what a core answered; or one is gone, or gave no answer in time.
        """
        if self._death is not None:
            raise PagewireError.from_info(self._death.to_info())
        sessions = [session for session in self.sessions if session.death is None]
        answers = await asyncio.gather(
            *(session.call_utility(method, *args, timeout_s=timeout_s) for session in sessions)
        )
        return combine_answers(method, answers)

    async def call_each(self, method: str, *, timeout_s: float) -> list[Any]:  # Any: each utility documents its result
        """Call a utility of every core; return an answer each, None from one that isn't there or gives none in time."""

        async def call(session: Session) -> Any:  # Any: as above
            if not session.link.is_attached:
                return None
            try:
                return await session.call_utility(method, timeout_s=timeout_s)
            except EngineError:
                return None

        return list(await asyncio.gather(*map(call, self.sessions)))

    async def probe(self, timeout_s: float) -> bool:
        """Return whether a core was heard of lately, or shows a sign of life within `timeout_s`."""
        return any(await asyncio.gather(*(session.link.probe(timeout_s) for session in self.sessions)))

    def mark_dead(self, error: PagewireError) -> None:
        """Fail all that is live and all that comes; the first cause stands."""
        if self._death is None:
            self._death = error
            for session in self.sessions:
                session.mark_dead(error)
            self.is_dead.set()

    async def aclose(self) -> None:
        """Leave every core, after `mark_dead`. Closing twice is fine."""
        await asyncio.gather(*(session.aclose() for session in self.sessions))

    def core_lost(self, session: Session) -> None:
        """See `SessionOwner`."""
        self._rescue(session)

    def core_attached(self, session: Session) -> None:
        """See `SessionOwner`."""
        for other in self.sessions:
            if other is not session and other.is_orphaned and other.death is None:
                self._rescue(other)

    def session_died(self, session: Session) -> None:
        """See `SessionOwner`."""
        if self._death is not None:
            return
        cause = session.death
        assert cause is not None
        if all(other.death is not None for other in self.sessions):
            self._death = cause
            self.is_dead.set()
            return
        logger.error("core %d of %d is gone: %s", self.sessions.index(session), len(self.sessions), cause)
        self._move(session, self._candidates(), is_final=True)
        for listener in self._core_listeners:
            listener(self.sessions.index(session), ("", 0), StepStats(is_serving=False))

    def stats_came(self, session: Session, stats: StepStats) -> None:
        """See `SessionOwner`."""
        if self._router is not None:
            self._router.take_stats(self.sessions.index(session), stats)
        for listener in self._core_listeners:
            listener(self.sessions.index(session), session.core, stats)
        if self._stats_listeners and (total := self.stats) is not None:
            for stats_listener in self._stats_listeners:
                stats_listener(total)

    def cache_changed(self, session: Session, changes: PrefixCacheChanges) -> None:
        """See `SessionOwner`."""
        if self._router is not None:
            self._router.take_changes(self.sessions.index(session), changes)

    def _candidates(self) -> list[int]:
        """Return the cores to choose from: those that are there, else those that are to come."""
        return self._attached() or [index for index, session in enumerate(self.sessions) if session.death is None]

    def _attached(self) -> list[int]:
        """Return the cores that are there; if some take up a request at once, those."""
        attached = [index for index, session in enumerate(self.sessions) if session.link.is_attached]
        return [index for index in attached if self.sessions[index].is_available] or attached

    def _rescue(self, session: Session) -> None:
        """Have the requests of a core that is lost go on in others, if there are any."""
        targets = self._attached()
        if targets:
            self._move(session, targets, is_final=False)

    def _move(self, session: Session, targets: Sequence[int], *, is_final: bool) -> None:
        moved: dict[int, list[Mailbox]] = {}
        for mailbox in session.live.release(is_final=is_final):
            moved.setdefault(self._place(mailbox.entry.request, targets), []).append(mailbox)
        for index, mailboxes in moved.items():
            logger.warning("%d requests go on in core %d of %d", len(mailboxes), index, len(self.sessions))
            self.sessions[index].live.adopt(mailboxes)
            self.sessions[index].link.watch()

    def _place(self, request: AddRequest, available: Sequence[int]) -> int:
        if self._router is None:
            return 0
        num_tokens = len(request.inputs.prompt_token_ids)
        return self._router.place(request.request_id, self._keys(request), num_tokens, available)

    def _keys(self, request: AddRequest) -> list[int]:
        """Return the keys of the blocks that a cache may have for a request."""
        if not self._needs_keys or _computes_all(request.task):
            return []
        token_ids = request.inputs.prompt_token_ids
        block_size = self.info.block_size
        digests: list[BlockDigest] = []
        # The last token is always computed.
        num_blocks = min((len(token_ids) - 1) // block_size, MAX_KEYS)
        extras = cache_extras(salt=request.cache_salt, adapter=self._load_id(request.adapter))
        extend_digests(digests, token_ids, block_size, extras, num_blocks)
        return [block_key(digest) for digest in digests]

    def _load_id(self, adapter: str) -> str:
        """Return what keeps an adapter's blocks apart: cores that were told the same number their loads alike."""
        loaded = {each.name: str(each.load_id) for each in self.sessions[0].adapters} if adapter else {}
        return loaded.get(adapter, "")

    def _fit(self, request: AddRequest) -> AddRequest:
        """Have an answer end where the smallest context does, whichever core it comes from."""
        room, task = self.info.max_model_len - len(request.inputs.prompt_token_ids), request.task
        if isinstance(task, EmbedTask) or (task.max_tokens is not None and task.max_tokens <= room):
            return request
        return msgspec.structs.replace(request, task=msgspec.structs.replace(task, max_tokens=room))


def _computes_all(task: Task) -> bool:
    """Say whether a prompt is computed whole, whatever the cache has of it."""
    if isinstance(task, EmbedTask):
        return task.pooling == "mean"
    return task.sampling.num_prompt_logprobs is not None
