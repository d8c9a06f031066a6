from __future__ import annotations

import pytest
from msgspec.structs import replace

from pagewire.engine_core.request import ChildStatus, Request
from pagewire.ipc.requests import ResumedChild
from tests.support.builders import build_request
from tests.support.engine_driver import ALICE


def build(message, max_model_len=20, has_priority=False):
    return Request(ALICE, message, arrival=7, now=0.0, max_model_len=max_model_len, has_priority=has_priority)


@pytest.mark.parametrize(("max_tokens", "expected"), [(None, 20), (3, 15), (8, 20), (100, 20)])
def test_length_limit_is_the_nearer_of_max_tokens_and_context(max_tokens, expected):
    assert build(build_request(1, range(12), max_tokens=max_tokens)).max_num_tokens == expected


def test_request_does_not_keep_the_senders_list():
    message = build_request(1, [1, 2])
    build(message).children[0].token_ids.append(3)
    assert message.inputs.prompt_token_ids == [1, 2]


def test_priority_orders_only_under_the_priority_policy():
    message = build_request(1, [1], priority=5)
    assert build(message).children[0].order_key == (0, 7, 0)
    assert build(message, has_priority=True).children[0].order_key == (5, 7, 0)


def test_prefill_of_a_fork_counts_for_all_its_children():
    request = build(build_request(1, [1], n=4))
    assert request.children[0].num_seqs == 4
    request.is_forked = True
    assert request.children[0].num_seqs == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], ChildStatus.PREEMPTED),
        ([ChildStatus.FINISHED], ChildStatus.RUNNING),
        ([ChildStatus.RUNNING], ChildStatus.WAITING),
        ([ChildStatus.RUNNING, ChildStatus.PREEMPTED], ChildStatus.WAITING),
    ],
)
def test_illegal_transition_is_an_error(before, after):
    child = build(build_request(1, [1])).children[0]
    for status in before:
        child.move_to(status)
    with pytest.raises(AssertionError, match="can't go from"):
        child.move_to(after)


def test_prompt_logprobs_are_needed_until_all_positions_have_one():
    assert not build(build_request(1, [1, 2])).needs_prompt_logprobs
    assert build(build_request(1, [1, 2], prompt_logprobs=0)).needs_prompt_logprobs
    assert not build(build_request(1, [1], prompt_logprobs=0)).needs_prompt_logprobs


def test_deadline_counts_from_the_receipt():
    message = build_request(1, [1], timeout_s=2.5)
    request = Request(ALICE, message, arrival=7, now=100.0, max_model_len=9, has_priority=False)
    assert request.deadline_s == 102.5
    assert build(build_request(1, [1])).deadline_s is None


def test_resumed_request_has_its_unfinished_children_with_their_tokens():
    message = build_request(1, [1, 2], n=4, priority=3, prompt_logprobs=1)
    resumed = [ResumedChild(1, [5]), ResumedChild(3, [6, 7])]
    request = build(replace(message, is_readded=True, resumed_children=resumed), has_priority=True)
    assert {index: child.token_ids for index, child in request.children.items()} == {1: [1, 2, 5], 3: [1, 2, 6, 7]}
    assert [child.order_key for child in request.children.values()] == [(3, 7, 1), (3, 7, 3)]
    assert (request.num_unfinished, request.is_started, request.is_forked) == (2, True, True)
    assert not request.needs_prompt_logprobs
    assert request.sampling.num_prompt_logprobs is None
    assert request.children[3].num_output_tokens == 2
