"""How many drafts a step checks."""

from __future__ import annotations

import pytest

from pagewire.engine_core.drafts.speculation import DraftPolicy
from pagewire.engine_core.request import Child, Request
from pagewire.engine_core.steps.costs import StepCosts, StepShape
from tests.support.builders import build_request
from tests.support.engine_driver import ALICE


def child_with(num_drafts: int, *, max_tokens: int = 100, rate: float | None = None) -> Child:
    message = build_request(1, [1, 2, 3], max_tokens=max_tokens)
    child = Request(ALICE, message, arrival=1, now=0.0, max_model_len=1000, has_priority=False).children[0]
    child.draft_token_ids = list(range(10, 10 + num_drafts))
    if rate is not None:
        for _ in range(60):
            child.acceptance.observe(10, round(10 * rate) if rate < 1 else 10)
    return child


def costs_of(*, base_s: float, decode_s: float, draft_s: float) -> StepCosts:
    """Return costs learned from steps of such a machine."""
    costs = StepCosts()
    for turn in range(400):
        num_decodes, num_drafts = 1 + turn % 5, (turn // 5) % 4
        shape = StepShape(num_decodes=num_decodes, num_drafts=num_drafts)
        costs.observe(shape, base_s + decode_s * num_decodes + draft_s * num_drafts)
    return costs


def granted(policy: DraftPolicy, child: Child, num_decodes: int, num_fitting: int, costs: StepCosts) -> list[int]:
    """Return the drafts of a child among others that have none."""
    others = [child_with(0) for _ in range(num_decodes - 1)]
    return policy.grant([*others, child], num_fitting, costs).get(child, [])


CHEAP = costs_of(base_s=0.008, decode_s=0.0005, draft_s=0.0005)
DEAR = costs_of(base_s=0.001, decode_s=0.005, draft_s=0.005)


def test_costs_tell_drafts_from_decodes():
    assert CHEAP.draft_s == pytest.approx(0.0005, rel=0.05)
    assert CHEAP.decodes_s(2) == pytest.approx(0.009, rel=0.05)


def test_all_drafts_are_checked_where_they_cost_next_to_nothing():
    assert granted(DraftPolicy(5), child_with(8, rate=1.0), 1, 100, CHEAP) == [10, 11, 12, 13, 14]


def test_nothing_is_known_of_costs_at_first_and_drafts_are_tried():
    assert len(granted(DraftPolicy(5), child_with(3), 1, 100, StepCosts())) == 3


@pytest.mark.parametrize(
    ("num_drafts", "max_tokens", "num_fitting", "expected"),
    [(0, 100, 9, 0), (4, 100, 2, 2), (4, 100, 0, 0), (4, 100, -3, 0), (4, 3, 9, 2), (4, 1, 9, 0)],
)
def test_drafts_end_where_the_offer_the_room_or_the_request_does(
    num_drafts: int, max_tokens: int, num_fitting: int, expected: int
):
    child = child_with(num_drafts, max_tokens=max_tokens, rate=1.0)
    assert len(granted(DraftPolicy(9), child, 1, num_fitting, CHEAP)) == expected


def test_a_draft_as_dear_as_a_decode_does_not_pay():
    assert granted(DraftPolicy(4), child_with(4, rate=0.5), 4, 100, DEAR) == []
    assert granted(DraftPolicy(4), child_with(4, rate=1.0), 4, 100, DEAR) == []
    assert granted(DraftPolicy(4), child_with(4, rate=1.0), 1, 100, DEAR) == []


def test_more_company_leaves_fewer_drafts():
    policy = DraftPolicy(8)
    numbers = [len(granted(policy, child_with(8, rate=0.7), n, 100, CHEAP)) for n in (1, 4, 16, 64)]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > numbers[-1]


def test_a_child_that_comes_to_a_repetition_is_found_out_without_a_check():
    policy, child = DraftPolicy(4), child_with(4, rate=0.0)
    assert granted(policy, child, 1, 100, CHEAP) == []
    policy.compare(child, [])
    policy.compare(child, [99])
    assert granted(policy, child, 1, 100, CHEAP) == []
    for _ in range(8):
        policy.compare(child, [child.draft_token_ids[0]])
    assert len(granted(policy, child, 1, 100, CHEAP)) == 4
    assert policy.counts.num_drafts == child.request.num_draft_tokens == 0


def test_a_step_with_drafts_is_awaited_by_all_and_that_has_to_pay_too():
    def num_granted(num_decodes: int, *, runs_ahead: bool, num_drafting: int = 1) -> int:
        children = [child_with(1 if i < num_drafting else 0, rate=0.7) for i in range(num_decodes)]
        return len(DraftPolicy(1, runs_ahead=runs_ahead).grant(children, 100, CHEAP))

    assert num_granted(1, runs_ahead=True) == 1
    assert num_granted(6, runs_ahead=True) == 0  # half a token of one child against that of the step's six
    assert num_granted(6, runs_ahead=False) == 1
    assert num_granted(6, runs_ahead=True, num_drafting=6) == 6  # together they make up for it


def test_costs_that_seem_too_high_are_measured_again_where_drafts_are_likely_right():
    policy, child, hopeless = DraftPolicy(8), child_with(8, rate=1.0), child_with(8, rate=0.0)
    assert [len(granted(policy, child, 8, 100, DEAR)) for _ in range(64)] == ([0] * 31 + [4]) * 2
    assert not any(granted(policy, hopeless, 8, 100, DEAR) for _ in range(64))
    assert not any(granted(policy, child, 8, 100, DEAR) for _ in range(31))
    child.num_pending_tokens = 1
    assert granted(policy, child, 8, 100, DEAR)  # awaited
    child.num_pending_tokens = 0
    assert granted(policy, child, 8, 100, DEAR)  # checked
    assert not granted(policy, child, 8, 100, DEAR)


def test_what_was_checked_is_counted_for_the_request_and_in_all():
    policy, child = DraftPolicy(4), child_with(4)
    policy.observe(child, 3, 2)
    policy.observe(child, 2, 0)
    assert (policy.counts.num_checks, policy.counts.num_drafts, policy.counts.accepted_at) == (2, 5, [1, 1, 0])
    assert (child.request.num_draft_tokens, child.request.num_accepted_tokens) == (5, 2)
