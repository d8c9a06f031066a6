"""What a client knows of the cores at one address: it outlives each of them, and every connection to one."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.core_connection import CoreConnection
from pagewire.ipc.errors import ClientGivenUp, EngineDead, ErrorInfo, PagewireError
from pagewire.ipc.outputs import (
    CoreMessage,
    EngineInfo,
    Goodbye,
    PrefixCacheChanges,
    Ready,
    StepOutputs,
    StepStats,
    UtilityResult,
)
from pagewire.ipc.requests import CallUtility, Ping, WatchPrefixCache

from .core_link import CoreLink, LinkOptions
from .handshake import Introduction
from .live_requests import LiveRequests
from .request_builder import check_types
from .utility_calls import UtilityCalls

logger = logging.getLogger(__name__)

# What a new core may find otherwise than the last: how long its start took, how much memory was free, and which
# adapters can be asked for.
_MAY_DIFFER = {"startup": (), "memory": "", "adapters": ()}


class SessionOwner(Protocol):
    """Who has several sessions, one a core, and lets one's requests go on in another."""

    def core_lost(self, session: Session) -> None:
        """The core is gone, or hangs; the session waits for the next one."""
        ...

    def core_attached(self, session: Session) -> None:
        """A core is there that takes requests."""
        ...

    def session_died(self, session: Session) -> None:
        """No core will come any more; what is left of the session's requests fails after this call."""
        ...

    def stats_came(self, session: Session, stats: StepStats) -> None:
        """The core's figures have changed."""
        ...

    def cache_changed(self, session: Session, changes: PrefixCacheChanges) -> None:
        """So has what its prefix cache holds."""
        ...


class Session:
    """One client's requests, calls and figures, from one core to the next.

    Attributes:
        address: where they listen.
        info: what the engine serves and its limits.
        core: which core this is, or was last.
        adapters: LoRA adapters that requests may name now.
        num_core_restarts: how often there was another one.
        stats: the core's state at the last step that concerned this client; None before the first.
        live: requests whose end is still to come.
        calls: utility calls that wait for their answer.
        is_dead: set when there will be no core any more.
        is_orphaned: whether the core has ended, and its requests wait for another one.
    """

    def __init__(
        self, introduction: Introduction, options: LinkOptions, connection: CoreConnection, ready: Ready
    ) -> None:
        self.info: EngineInfo = ready.info
        self.core = ready.core
        self.adapters: tuple[Adapter, ...] = ready.info.adapters
        self.num_core_restarts = ready.core_epoch - 1
        self.stats: StepStats | None = None
        self.is_dead = asyncio.Event()
        self.is_orphaned = False
        self._death: ErrorInfo | None = None
        self._owner: SessionOwner | None = None
        self._watches_cache = False
        self._was_given_up = False  # by a core that goes on
        self._call_ids = itertools.count(1)
        self.address = introduction.address
        self._stats_listeners: list[Callable[[StepStats], None]] = []
        self.link = CoreLink(introduction, options, connection, self)
        self.live = LiveRequests(self.link.send, options)
        self.calls = UtilityCalls(self.link.send)

    @property
    def death(self) -> PagewireError | None:
        """Why there will be no core any more; None while there is one, or one is awaited."""
        return None if self._death is None else PagewireError.from_info(self._death)

    @property
    def is_serving(self) -> bool:
        """Whether a core is there, takes steps as far as it says, and says something when it should."""
        return self.link.is_attached and not self.link.is_quiet and (self.stats is None or self.stats.is_serving)

    @property
    def is_available(self) -> bool:
        """Whether a request that is sent now is taken up at once."""
        return self.is_serving and not self.live.is_isolating

    def join(self, owner: SessionOwner, *, watches_cache: bool) -> None:
        """Be one of several, from now on; with `watches_cache`, its owner is told what the prefix cache holds."""
        self._owner = owner
        self._watches_cache = watches_cache
        self._watch_cache()

    def add_stats_listener(self, listener: Callable[[StepStats], None]) -> None:
        """Have `listener` called with the core's stats after each step that concerns this client."""
        self._stats_listeners.append(listener)

    def check_alive(self) -> None:
        """Raise why the engine is dead, if it is."""
        if self._death is not None:
            raise PagewireError.from_info(self._death)

    def mark_dead(self, error: PagewireError) -> None:
        """Fail all that is live and all that comes; the first cause stands."""
        if self._death is not None:
            return
        self._death = error.to_info()
        self.is_dead.set()
        self.link.stop()
        if self._owner is not None:
            self.live.core_lost(was_serving=False)  # whatever the reason is, no request is
            self._owner.session_died(self)
        self.live.fail_all(self._death)
        self.calls.fail_all(self._death)

    async def call_utility(
        self, method: str, *args: int | float | str | bool | None, timeout_s: float | None
    ) -> Any:  # Any: each utility documents its result
        """Call a utility of the core; at a time without one, of the next.

        Raises:
            PagewireError: what the utility answered; or the core is gone, or gave no answer in time.
        """
        self.check_alive()
        call = CallUtility(call_id=next(self._call_ids), method=method, args=list(args))
        check_types(call)
        return await self.calls.call(call, timeout_s)

    async def aclose(self) -> None:
        """Leave the core; live requests fail here and are aborted there. Closing twice is fine."""
        self.mark_dead(EngineDead("This client was closed."))
        await self.link.aclose()

    def has_live(self) -> bool:
        """Whether a core must show that it is there."""
        return len(self.live) > 0

    def take_messages(self, messages: list[CoreMessage]) -> None:
        """Take what came together from the core."""
        self.live.begin_taking()
        try:
            for message in messages:
                if self._death is not None:
                    break
                if type(message) is StepOutputs:  # nearly all are
                    self._take_outputs(message)
                else:
                    self._take(message)
        finally:
            self.live.end_taking()

    def core_lost(self) -> None:
        """Keep what is live for the next core."""
        stats = self.stats
        self.live.core_lost(was_serving=stats is None or (stats.is_serving and not _rests(stats)))
        self.calls.core_lost()
        self.is_orphaned = not self._was_given_up
        if self._owner is not None and self.is_orphaned:
            self._owner.core_lost(self)

    def core_attached(self, ready: Ready) -> None:
        """Go on with a core that knows nothing of this client.

        Raises:
            EngineDead: another engine listens there now.
        """
        if _facts(ready.info) != _facts(self.info):
            raise EngineDead(
                f"Another engine listens at {self.address} now: {_difference(self.info, ready.info)}. Attach anew."
            )
        is_another = ready.core != self.core
        if is_another:  # the cores of an engine that has taken the last one's place count as well
            engine_id, epoch = self.core
            self.num_core_restarts += ready.core_epoch - (epoch if ready.engine_id == engine_id else 0)
        self.info, self.core, self.adapters = ready.info, ready.core, ready.info.adapters
        if len(self.live):
            logger.info("%d requests go on in core epoch %d", len(self.live), ready.core_epoch)
        if is_another and self.stats is not None:
            self._have_it_rest(self.stats)
        if is_another:  # its figures are known: those of the last one would be shown until its first step
            self._take_stats(StepStats(num_blocks=ready.info.num_blocks))
        elif self.stats is not None:  # one that does not serve says so behind its Ready
            self.stats = msgspec.structs.replace(self.stats, is_serving=True)
        self.is_orphaned = self._was_given_up = False
        self.live.core_attached(is_another=is_another)
        self.calls.core_attached()
        self._watch_cache()
        if self._owner is not None:
            self._owner.core_attached(self)

    def turn_passed(self) -> None:
        """Look after what depends on time alone."""
        self.live.fail_late()

    def link_failed(self, error: Exception) -> None:
        """Give up: what ended the link is no core's end."""
        if isinstance(error, PagewireError):
            self.mark_dead(error)
        else:
            self.mark_dead(EngineDead(f"The connection to the engine at {self.address} failed: {error!r}."))

    def _take(self, message: CoreMessage) -> None:
        match message:
            case UtilityResult():
                self.calls.take(message)
            case Goodbye():
                error = PagewireError.from_info(message.error)
                if isinstance(error, ClientGivenUp):  # the core is there, and takes the requests again
                    self._was_given_up = True
                    self.link.lose("has given this client up")
                else:
                    self.mark_dead(error)
            case StepOutputs():
                self._take_outputs(message)
            case PrefixCacheChanges() if self._owner is not None:
                self._owner.cache_changed(self, message)
            case Ping() | Ready() | PrefixCacheChanges():
                pass

    def _take_outputs(self, outputs: StepOutputs) -> None:
        if outputs.adapters is not None:
            self.adapters = tuple(outputs.adapters)
        self.live.take(outputs)
        if outputs.stats is not None:
            self._take_stats(outputs.stats)

    def _take_stats(self, stats: StepStats) -> None:
        self.stats = stats
        for listener in self._stats_listeners:
            listener(stats)
        if self._owner is not None:
            self._owner.stats_came(self, stats)

    def _have_it_rest(self, stats: StepStats) -> None:
        """Tell a core of the rest that the last one had; all clients do so, and nobody waits for the answer."""
        orders: list[tuple[str, list[int | float | str | bool | None]]] = []
        if stats.is_paused:
            orders.append(("pause", ["keep", False]))
        if stats.sleep_level:
            orders.append(("sleep", [stats.sleep_level, "keep"]))
        for method, args in orders:
            self.link.send(CallUtility(call_id=next(self._call_ids), method=method, args=args))

    def _watch_cache(self) -> None:
        if self._watches_cache:
            self.link.send(WatchPrefixCache())


def _rests(stats: StepStats) -> bool:
    return stats.is_paused or stats.sleep_level > 0


def _facts(info: EngineInfo) -> EngineInfo:
    """Return what clients and their running requests rely on."""
    return msgspec.structs.replace(info, **_MAY_DIFFER)


def _difference(before: EngineInfo, after: EngineInfo) -> str:
    """Name the first fact that has changed."""
    for name in EngineInfo.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if name not in _MAY_DIFFER and old != new:
            return f"{name} is {new}, and was {old}"
    return "the same"
