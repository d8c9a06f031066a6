from __future__ import annotations

import pytest

from pagewire.engine_core.drafts.draft_model_policy import DraftModelPolicy
from pagewire.engine_core.request import Child, Request
from pagewire.engine_core.steps.costs import StepCosts, StepShape
from tests.support.builders import build_request
from tests.support.engine_driver import ALICE

DECODE_S = 0.010
MAX_DRAFTS = 4


def child_with_room() -> Child:
    message = build_request(1, [1, 2, 3], max_tokens=1000)
    request = Request(ALICE, message, arrival=1, now=0.0, max_model_len=2000, has_priority=False)
    return request.children[0]


def policy_that_knows(*, num_decodes: int, unit_s: float, rate: float) -> DraftModelPolicy:
    """Return a policy that has seen what guesses and checks take, and how often they are right."""
    policy = DraftModelPolicy(MAX_DRAFTS)
    for _ in range(2):
        policy.observe_step(StepShape(num_decodes=num_decodes), DECODE_S)
    for _ in range(4):
        policy.observe_step(
            StepShape(num_decodes=num_decodes, num_guesses=num_decodes), DECODE_S + unit_s * num_decodes
        )
    for index in range(100):
        policy.observe(child_with_room(), 1, int(index < 100 * rate))
    return policy


def wanted(policy: DraftModelPolicy, *, num_decodes: int, num_asked: int = 1) -> list[int]:
    return [policy.want(child_with_room(), 0, num_decodes, StepCosts()) for _ in range(num_asked)]


def test_decodes_are_measured_alone_then_a_few_guesses_then_as_many_are_made_as_pay():
    policy = DraftModelPolicy(MAX_DRAFTS)
    assert wanted(policy, num_decodes=1) == [0]
    for _ in range(2):
        policy.observe_step(StepShape(num_decodes=1), DECODE_S)
    assert wanted(policy, num_decodes=1) == [2]
    for _ in range(2):
        policy.observe_step(StepShape(num_decodes=1, num_guesses=2), 1.1 * DECODE_S)
    assert wanted(policy, num_decodes=1) == [MAX_DRAFTS]


@pytest.mark.parametrize(
    ("unit_s", "rate", "num_wanted"), [(0.0002, 1.0, MAX_DRAFTS), (0.0002, 0.0, 0), (0.02, 1.0, 0)]
)
def test_guesses_are_asked_for_where_what_they_bring_is_worth_their_time(unit_s: float, rate: float, num_wanted: int):
    assert wanted(policy_that_knows(num_decodes=1, unit_s=unit_s, rate=rate), num_decodes=1) == [num_wanted]


def test_where_they_do_not_pay_one_is_asked_for_ever_more_seldom():
    policy = policy_that_knows(num_decodes=4, unit_s=0.02, rate=0.5)
    asked = [place for place, number in enumerate(wanted(policy, num_decodes=4, num_asked=1000), start=1) if number]
    assert asked == [128, 128 + 256, 128 + 256 + 512]


def test_no_guess_goes_beyond_the_request():
    policy = policy_that_knows(num_decodes=1, unit_s=0.0, rate=1.0)
    message = build_request(1, [1, 2, 3], max_tokens=4)
    child = Request(ALICE, message, arrival=1, now=0.0, max_model_len=2000, has_priority=False).children[0]
    assert policy.want(child, 0, 1, StepCosts()) == 2  # one token is being drawn, and one more after the guesses
