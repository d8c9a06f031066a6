"""Pictures of the engine, one a second, for all who watch it: made once, and not at all while nobody does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from pagewire.ipc.errors import Overloaded
from pagewire.ipc.outputs import StepStats

from ..client.engine_client import AsyncEngineClient
from ..http.engine_totals import EngineTotals
from ..http.figures import Figures

logger = logging.getLogger(__name__)

MAX_VIEWERS = 32
INTERVAL_S = 1.0
# A core that takes longer is shown as one that does not answer, and the others go on.
_ANSWER_TIMEOUT_S = 2.0

_COUNTERS = (
    "num_steps", "num_prompt_tokens", "num_generation_tokens", "prefix_cache_queries", "prefix_cache_hits",
    "num_preemptions", "num_draft_tokens", "num_executor_restarts",
)  # fmt: skip

_LATENCIES = {"first_token_s": "time_to_first_token_seconds", "inter_token_s": "inter_token_latency_seconds"}

Inbox = asyncio.Queue[bytes | None]
"""What a viewer reads: the latest picture, at most one; None is the end."""


class EngineFeed:
    """See the module.

    Args:
        client: its cores are shown, each by its utility `view`.
        figures: tells what all frontends have counted; latencies are taken from it.
        totals: what is known of the cores, alive or not; it learns what they say here.
        interval_s: seconds from one picture to the next.
        max_viewers: who comes beyond is refused.
        wall_clock: Unix time.
    """

    def __init__(
        self,
        client: AsyncEngineClient,
        figures: Callable[[], Awaitable[Figures]],
        totals: EngineTotals,
        *,
        interval_s: float = INTERVAL_S,
        max_viewers: int = MAX_VIEWERS,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._figures = figures
        self._latencies = {name: _Mean(histogram) for name, histogram in _LATENCIES.items()}
        self._totals = totals
        self._interval_s = interval_s
        self._max_viewers = max_viewers
        self._wall_clock = wall_clock
        self._inboxes: set[Inbox] = set()
        self._task: asyncio.Task[None] | None = None
        self._latest: bytes | None = None
        self._is_over = False

    def join(self) -> Inbox:
        """Let a viewer in; `leave` must follow.

        Raises:
            Overloaded: there are too many.
        """
        if len(self._inboxes) >= self._max_viewers:
            raise Overloaded(f"{self._max_viewers} viewers watch the engine, which is the limit; close one of them.")
        inbox: Inbox = asyncio.Queue(1)
        self._inboxes.add(inbox)
        if self._is_over or self._latest is not None:
            inbox.put_nowait(None if self._is_over else self._latest)
        if self._task is None and not self._is_over:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._run_ended)
        return inbox

    def leave(self, inbox: Inbox) -> None:
        """Let a viewer go. With the last one the engine is left in peace."""
        self._inboxes.discard(inbox)
        if not self._inboxes:
            self._stop()

    def end(self) -> None:
        """End all streams, and those that come."""
        self._is_over = True
        self._stop()
        self._hand_out(None)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = self._latest = None

    async def _run(self) -> None:
        while True:
            self._latest = msgspec.json.encode(await self._picture())
            self._hand_out(self._latest)
            await asyncio.sleep(self._interval_s)

    def _run_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task is not self._task:
            return
        # What a picture fails of is a mistake of ours: it is told, and whoever comes next tries again.
        logger.error("no picture of the engine could be made", exc_info=task.exception())
        self._task = self._latest = None
        self._hand_out(None)

    def _hand_out(self, picture: bytes | None) -> None:
        for inbox in self._inboxes:
            if inbox.full():  # a viewer that is slower sees fewer pictures
                inbox.get_nowait()
            inbox.put_nowait(picture)

    async def _picture(self) -> dict[str, Any]:  # Any: JSON
        views = await self._client.call_each("view", timeout_s=_ANSWER_TIMEOUT_S)
        for rank, (view, core) in enumerate(zip(views, self._client.cores, strict=True)):
            if view is not None:
                self._totals.update(StepStats(**view["stats"]), core, rank)
        figures = await self._figures()
        info = self._client.info
        return {
            "time_s": self._wall_clock(),
            "model": info.served_model_names[0],
            "device": info.device_name or info.device,
            "block_size": info.block_size,
            "max_num_seqs": info.max_num_seqs,
            "is_serving": self._client.is_serving,
            "num_core_restarts": self._client.num_core_restarts,
            "totals": {name: self._totals.total(name) for name in _COUNTERS},
            "latencies": {name: mean.since_last(figures) for name, mean in self._latencies.items()},
            "cores": views,
        }


class _Mean:
    """The mean of what a histogram counted since it was last looked at; None at first, and if nothing was counted."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before: tuple[float, int] | None = None

    def since_last(self, figures: Figures) -> float | None:
        histogram = figures.histograms[self._name,]
        now = (histogram.sum, sum(histogram.counts))
        before, self._before = self._before, now
        # A frontend that does not answer this time takes its counts along.
        if before is None or now[1] <= before[1]:
            return None
        return (now[0] - before[0]) / (now[1] - before[1])
