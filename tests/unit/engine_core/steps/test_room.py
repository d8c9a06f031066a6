from __future__ import annotations

import random

import pytest

from pagewire.engine_core.steps.costs import StepCosts, StepShape
from pagewire.engine_core.steps.room import MAX_SLOWDOWN, MIN_PREFILL_TOKENS, StepRoom

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


def device_s(shape):
    """A GPU of the field: weights are read once a step, whoever uses them; only many tokens keep it computing."""
    reads_s, computes_s = 0.006, 3e-5 * (shape.num_decodes + shape.num_prefill_tokens)
    return max(reads_s, computes_s) + 3e-9 * shape.num_attended


def test_target_holds_on_a_device_whose_time_is_no_sum_of_its_rows():
    """Small steps are bound by memory and large ones by products: what is learned of both has to serve in between."""
    rng = random.Random(3)
    costs = StepCosts()
    mixed_s = []
    for index in range(400):
        room = StepRoom(8192, TARGET_S, costs)
        for _ in range(rng.choice([1, 8, 32, 128])):
            room.take(rng.randrange(200, 2000), 1)
        num_wanted = rng.choice([0, 0, 100, 1024, 8000])
        if num_wanted and room.has_room():
            room.take(0, room.tokens_for(0, num_wanted))
        costs.observe(room.shape, device_s(room.shape))
        if index > 50 and num_wanted == 8000:
            mixed_s.append(device_s(room.shape))
    assert max(mixed_s) < 1.25 * TARGET_S
    assert min(mixed_s) > 0.75 * TARGET_S, "the device is used as far as the decodes can wait"


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


@pytest.mark.parametrize(("num_decodes", "expected"), [(0, 100), (4, 46), (40, 80)])
def test_one_prompt_gets_no_more_than_its_most(costs, num_decodes, expected):
    room = StepRoom(512, TARGET_S, costs, max_prefill_tokens=100)
    for _ in range(num_decodes):
        room.take(20, 1)
    assert room.tokens_for(0, 3000) == pytest.approx(min(expected, 100), abs=1)
    room.take(0, 10)
    assert room.tokens_for(0, 30) <= 30
