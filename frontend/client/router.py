"""Which of several cores gets a request: the one that has most of its prompt cached, unless it has too much to do.

A pure state machine: what happens is told to it, time comes from its clock, and the same calls give the same choices.

Of the cores that may be chosen, that of the highest

    score = 2 x cached tokens - waiting tokens - 16 x requests

gets the request. Cached tokens are those of the prompt's longest head that the core has in its prefix cache, or will
have, as a request that begins alike is on its way there. Waiting tokens are those of prompts that the core has yet to
compute. A token that is computed a second time counts twice: this request waits for it, and so does whatever comes
behind it. Each living request counts for 16 tokens, as it takes a row of the steps that the new one will be in.

A core may be chosen while it has at most 4 + half as many requests more than the one that has fewest: so no prefix,
however long and however popular, keeps one core busy while another one idles. Of equal scores the core with fewest
requests wins, and of those the one that was chosen longest ago, which is round robin where nothing is cached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pagewire.ipc.outputs import PrefixCacheChanges, StepStats

CACHED_WEIGHT = 2
REQUEST_TOKENS = 16
SLACK_REQUESTS = 4
STATS_FRESH_S = 1.0  # a core says nothing to clients that wait for nothing, so that what it said last grows old


class Router(Protocol):
    """Divides requests among cores, which are numbered from 0 on."""

    needs_keys: bool
    """Whether it looks at the blocks of prompts; making their keys costs about a microsecond a block."""

    def place(self, request_id: int, keys: Sequence[int], num_tokens: int, available: Sequence[int]) -> int:
        """Choose a core for a request, and count it there from now on; one that was placed before is moved.

        Args:
            request_id: the client's.
            keys: `block_key` of the blocks that the prompt fills and a cache may hold, first to last; maybe not all.
            num_tokens: of the prompt.
            available: the cores to choose from, ascending; at least one.
        """
        ...

    def started(self, request_id: int) -> None:
        """Note that a request's prompt is computed."""
        ...

    def ended(self, request_id: int) -> None:
        """Note that a request has ended; one that is not placed is passed over."""
        ...

    def take_stats(self, core: int, stats: StepStats) -> None:
        """Note a core's figures: it may have other clients."""
        ...

    def take_changes(self, core: int, changes: PrefixCacheChanges) -> None:
        """Note what a core's prefix cache holds."""
        ...


@dataclass(slots=True)
class _Core:
    cached: set[int] = field(default_factory=set)
    expected: Counter[int] = field(default_factory=Counter)  # blocks of requests that are on their way
    num_requests: int = 0
    num_waiting_tokens: int = 0
    stats: StepStats | None = None
    stats_at: float = 0.0
    chosen_at: int = 0  # counts choices


@dataclass(slots=True)
class _Placement:
    core: int
    keys: Sequence[int]
    num_new_tokens: int  # not cached when it was placed
    has_started: bool = False


class PrefixRouter:
    """See the module.

    Args:
        num_cores: as many as there are.
        block_size: tokens a block holds.
        clock: seconds, monotonic.
    """

    needs_keys = True

    def __init__(self, num_cores: int, block_size: int, clock: Callable[[], float]) -> None:
        self._cores = [_Core() for _ in range(num_cores)]
        self._block_size = block_size
        self._clock = clock
        self._placed: dict[int, _Placement] = {}
        self._num_choices = 0

    def place(self, request_id: int, keys: Sequence[int], num_tokens: int, available: Sequence[int]) -> int:
        """See `Router`."""
        self.ended(request_id)
        index = self.choose(keys, available)
        core = self._cores[index]
        num_new_tokens = num_tokens - self._num_cached_tokens(core, keys)
        self._num_choices += 1
        core.chosen_at = self._num_choices
        core.num_requests += 1
        core.num_waiting_tokens += num_new_tokens
        core.expected.update(keys)
        self._placed[request_id] = _Placement(index, keys, num_new_tokens)
        return index

    def choose(self, keys: Sequence[int], available: Sequence[int]) -> int:
        """Return the best core for a prompt, without counting it there."""
        loads = {index: self._load(self._cores[index]) for index in available}
        fewest = min(num_requests for num_requests, _ in loads.values())
        most_allowed = fewest + SLACK_REQUESTS + fewest // 2

        def rank(index: int) -> tuple[int, int, int]:
            core = self._cores[index]
            num_requests, num_waiting_tokens = loads[index]
            score = CACHED_WEIGHT * self._num_cached_tokens(core, keys)
            score -= num_waiting_tokens + REQUEST_TOKENS * num_requests
            return score, -num_requests, -core.chosen_at

        return max((index for index in available if loads[index][0] <= most_allowed), key=rank)

    def started(self, request_id: int) -> None:
        """See `Router`. What it computed is cached from now on, though the core may say so a little later."""
        placement = self._placed.get(request_id)
        if placement is not None and not placement.has_started:
            placement.has_started = True
            self._arrive(placement)
            self._cores[placement.core].cached.update(placement.keys)

    def ended(self, request_id: int) -> None:
        """See `Router`."""
        placement = self._placed.pop(request_id, None)
        if placement is None:
            return
        self._cores[placement.core].num_requests -= 1
        if not placement.has_started:
            self._arrive(placement)

    def take_stats(self, core: int, stats: StepStats) -> None:
        """See `Router`."""
        self._cores[core].stats = stats
        self._cores[core].stats_at = self._clock()

    def take_changes(self, core: int, changes: PrefixCacheChanges) -> None:
        """See `Router`."""
        cached = self._cores[core].cached
        if changes.is_snapshot:
            cached.clear()
        cached.difference_update(changes.evicted)
        cached.update(changes.stored)

    def _arrive(self, placement: _Placement) -> None:
        """Expect no more what a request was to compute."""
        core = self._cores[placement.core]
        core.num_waiting_tokens -= placement.num_new_tokens
        for key in placement.keys:
            if core.expected[key] > 1:
                core.expected[key] -= 1
            else:
                del core.expected[key]

    def _load(self, core: _Core) -> tuple[int, int]:
        """Return the requests and the waiting tokens of a core: this client's, and those of all if they are known."""
        stats = core.stats
        if stats is None or self._clock() - core.stats_at > STATS_FRESH_S:
            return core.num_requests, core.num_waiting_tokens
        return (
            max(core.num_requests, stats.num_running + stats.num_waiting),
            max(core.num_waiting_tokens, stats.num_waiting_tokens),
        )

    def _num_cached_tokens(self, core: _Core, keys: Sequence[int]) -> int:
        num_blocks = 0
        for key in keys:
            if key not in core.cached and key not in core.expected:
                break
            num_blocks += 1
        return num_blocks * self._block_size
