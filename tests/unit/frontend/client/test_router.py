"""The router sends requests where their prefix is, keeps every core busy, and decides alike from alike."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pagewire.frontend.client.router import SLACK_REQUESTS, STATS_FRESH_S, PrefixRouter
from pagewire.ipc.outputs import PrefixCacheChanges, StepStats

BLOCK_SIZE = 16


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def build(num_cores: int = 2) -> PrefixRouter:
    return PrefixRouter(num_cores, BLOCK_SIZE, Clock())


def place(router: PrefixRouter, request_id: int, keys: Sequence[int] = (), num_cores: int = 2) -> int:
    return router.place(request_id, keys, len(keys) * BLOCK_SIZE + 5, range(num_cores))


PREFIXES = [list(range(100 * prefix, 100 * prefix + 12)) for prefix in range(4)]
# (what happens, which prefix or request, which core)
EVENTS = st.lists(
    st.tuples(st.sampled_from(["place", "place", "start", "end", "cache", "forget"]), st.integers(0, 30)), max_size=60
)


def replay(events: list[tuple[str, int]], num_cores: int) -> tuple[list[int], list[int]]:
    """The choices, and how many living requests each core had most above the one with fewest."""
    router = build(num_cores)
    choices: list[int] = []
    living: dict[int, int] = {}
    excess: list[int] = []
    for request_id, (event, number) in enumerate(events):
        match event:
            case "place":
                core = place(router, request_id, PREFIXES[number % 4], num_cores)
                counts = [sum(other == index for other in living.values()) for index in range(num_cores)]
                excess.append(counts[core] - (min(counts) + min(counts) // 2))
                living[request_id] = core
                choices.append(core)
            case "start":
                router.started(number)
            case "end":
                router.ended(number)
                living.pop(number, None)
            case "cache":
                router.take_changes(number % num_cores, PrefixCacheChanges(stored=PREFIXES[number % 4]))
            case "forget":
                router.take_changes(number % num_cores, PrefixCacheChanges(is_snapshot=True))
    return choices, excess


@given(EVENTS, st.integers(2, 4))
def test_no_core_gets_far_more_than_another_whatever_is_cached(events: list[tuple[str, int]], num_cores: int):
    _, excess = replay(events, num_cores)
    assert all(surplus <= SLACK_REQUESTS for surplus in excess)


@given(EVENTS, st.integers(2, 4))
def test_same_history_gives_the_same_choices(events: list[tuple[str, int]], num_cores: int):
    assert replay(events, num_cores)[0] == replay(events, num_cores)[0]


@given(EVENTS)
def test_nothing_is_left_of_requests_that_have_ended(events: list[tuple[str, int]]):
    router = build()
    for request_id, (_, number) in enumerate(events):
        place(router, request_id, PREFIXES[number % 4])
    for request_id in range(len(events)):
        router.ended(request_id)
    assert [(core.num_requests, core.num_waiting_tokens, len(core.expected)) for core in router._cores] == [
        (0, 0, 0)
    ] * 2


def test_request_goes_where_its_prefix_is_cached():
    router = build()
    router.take_changes(1, PrefixCacheChanges(stored=PREFIXES[0]))
    for request_id in range(3):
        assert place(router, request_id, PREFIXES[0]) == 1
        router.ended(request_id)


def test_longer_of_two_cached_heads_wins():
    router = build()
    router.take_changes(0, PrefixCacheChanges(stored=PREFIXES[0][:5]))
    router.take_changes(1, PrefixCacheChanges(stored=PREFIXES[0][:10]))
    assert place(router, 1, PREFIXES[0]) == 1


def test_tail_without_its_head_is_worth_nothing():
    router = build()
    router.take_changes(1, PrefixCacheChanges(stored=PREFIXES[0][1:]))
    assert place(router, 1, PREFIXES[0]) == 0


def test_prefix_that_is_on_its_way_counts_as_cached():
    router = build()
    first = place(router, 1, PREFIXES[0])
    router.started(1)
    assert place(router, 2, PREFIXES[1]) != first, "another prefix goes where nothing is to do"
    assert place(router, 3, PREFIXES[0]) == first


def test_evicted_prefix_attracts_nobody():
    router = build()
    router.take_changes(1, PrefixCacheChanges(stored=PREFIXES[0]))
    router.take_changes(1, PrefixCacheChanges(evicted=PREFIXES[0]))
    assert place(router, 1, PREFIXES[0]) == 0


def test_nothing_cached_means_round_robin():
    router = build(3)
    choices = []
    for request_id in range(6):
        choices.append(place(router, request_id, num_cores=3))
        router.ended(request_id)
    assert choices == [0, 1, 2, 0, 1, 2]


def test_work_that_waits_outweighs_a_short_cached_head():
    router = build()
    router.take_changes(0, PrefixCacheChanges(stored=PREFIXES[0][:2]))
    place(router, 1, PREFIXES[0])  # ten more blocks to compute
    assert place(router, 2, PREFIXES[0][:2] + PREFIXES[1]) == 1


def test_requests_of_other_clients_count_while_the_core_speaks_of_them():
    clock = Clock()
    router = PrefixRouter(2, BLOCK_SIZE, clock)
    router.take_stats(0, StepStats(num_running=5))
    assert place(router, 1) == 1
    router.ended(1)
    clock.now = STATS_FRESH_S + 0.1
    assert place(router, 2) == 0, "what it said is old"


def test_moved_request_counts_at_its_new_core_alone():
    router = build()
    assert router.place(1, PREFIXES[0], 700, [0]) == 0
    assert router.place(1, PREFIXES[0], 700, [1]) == 1
    assert place(router, 2) == 0
