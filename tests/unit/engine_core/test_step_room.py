from __future__ import annotations

import pytest

from pagewire.engine_core.step_costs import StepCosts, StepShape
from pagewire.engine_core.step_room import MAX_SLOWDOWN, MIN_PREFILL_TOKENS, StepRoom

TARGET_S = 0.05
TOKEN_S = 0.001


@pytest.fixture
def costs():
    """1 ms a token of either kind."""
    costs = StepCosts()
    for num_decodes, num_tokens in [(0, 100), (10, 0), (10, 100), (3, 7), (16, 0)] * 10:
        shape = StepShape(num_decodes=num_decodes, num_prefill_tokens=num_tokens)
        costs.observe(shape, TOKEN_S * (num_decodes + num_tokens))
    return costs


def room_of(costs, num_decodes, *, budget=512, target_s=TARGET_S):
    room = StepRoom(budget, target_s, costs)
    for _ in range(num_decodes):
        assert room.tokens_for(20, 1) == 1
        room.take(20, 1)
    return room


def test_without_decodes_a_prefill_takes_the_whole_budget(costs):
    assert room_of(costs, 0).tokens_for(0, 3000) == 512


def test_prefills_fill_a_step_with_few_decodes_up_to_the_target(costs):
    room = room_of(costs, 4)
    assert room.tokens_for(0, 3000) == pytest.approx(46, abs=1)
    assert room.tokens_for(0, 30) == 30
    room.take(0, 30)
    assert room.tokens_for(0, 3000) == pytest.approx(16, abs=1)


def test_many_decodes_allow_a_multiple_of_their_own_time(costs):
    assert room_of(costs, 100).tokens_for(0, 3000) == pytest.approx((MAX_SLOWDOWN - 1) * 100, abs=2)


def test_a_full_step_has_no_room(costs):
    room = room_of(costs, 4)
    assert room.has_room()
    room.take(0, 50)
    assert not room.has_room()
    assert room.tokens_for(0, 3000) == 0
    assert not room_of(costs, 8, budget=8).has_room()


def test_a_prefill_always_gets_on(costs):
    costs.observe(StepShape(num_decodes=4), 0.004)
    room = room_of(costs, 1, target_s=0.002)
    assert room.tokens_for(0, 3000) == MIN_PREFILL_TOKENS
    assert room_of(costs, 1, target_s=0.002, budget=9).tokens_for(0, 3000) == 8


def test_no_target_means_no_limit(costs):
    assert room_of(costs, 4, target_s=0.0).tokens_for(0, 3000) == 508


def test_nothing_is_limited_before_a_step_came_back():
    assert room_of(StepCosts(), 4).tokens_for(0, 3000) == 508


def test_what_a_preempted_child_gives_back_can_be_taken_again(costs):
    room = room_of(costs, 4)
    room.take(0, 30)
    room.give_back(0, 30)
    assert room.num_tokens == 508
    assert room.tokens_for(0, 3000) == pytest.approx(46, abs=1)
