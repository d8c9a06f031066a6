from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from pagewire.ipc.errors import ContextTooLong, InvalidRequest
from pagewire.ipc.requests import AddRequest, EmbedTask, GenerateTask, ResumedChild, TokenInputs
from pagewire.ipc.sampling_params import INT64_MAX, INT64_MIN, MAX_BAD_WORDS, MAX_N, Sampling
from pagewire.ipc.validation import (
    MAX_LABEL_CHARS,
    MAX_SALT_CHARS,
    MAX_TOKEN_IDS,
    RequestLimits,
    validate_request,
)

LIMITS = RequestLimits(max_model_len=32, vocab_size=100, max_logprobs=5, has_priorities=False, max_num_seqs=8)


def request(prompt: list[int] | None = None, *, task: dict[str, Any] | None = None, **sampling: Any) -> AddRequest:
    return AddRequest(
        request_id=1,
        inputs=TokenInputs(prompt_token_ids=[1, 2, 3] if prompt is None else prompt),
        task=GenerateTask(sampling=Sampling(**sampling), **(task or {})),
    )


def test_a_plain_request_passes():
    validate_request(request(), LIMITS)


def test_a_prompt_may_fill_the_context_but_for_one_token():
    validate_request(request([1] * 31), LIMITS)
    with pytest.raises(ContextTooLong, match=r"32 tokens.*contains 32 input tokens"):
        validate_request(request([1] * 32), LIMITS)


def test_an_empty_prompt_is_refused():
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        validate_request(request([]), LIMITS)


@pytest.mark.parametrize("token_id", [-1, 100, 2**63, -(2**63)])
def test_a_token_id_outside_the_vocabulary_is_refused_wherever_it_stands(token_id: int):
    validate_request(request([0, 99]), LIMITS)
    wrong = [token_id]
    for bad, param in (
        (request(wrong), "prompt"),
        (request(task={"eos_token_ids": wrong}), "eos_token_ids"),
        (request(task={"stop_token_ids": wrong}), "stop_token_ids"),
        (request(end_token_ids=wrong), "stop_token_ids"),
        (request(logit_bias={token_id: 1.0}), "logit_bias"),
        (request(allowed_token_ids=wrong), "allowed_token_ids"),
        (request(bad_words_token_ids=[wrong]), "bad_words"),
    ):
        with pytest.raises(InvalidRequest, match=f"{param} contains token id {token_id}") as caught:
            validate_request(bad, LIMITS)
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0), ("temperature", 2.1), ("temperature", math.nan), ("temperature", 1e-300),
        ("top_p", 0.0), ("top_p", 1.1), ("top_p", math.nan), ("min_p", -0.1), ("min_p", math.nan),
        ("presence_penalty", 3.0), ("frequency_penalty", -3.0), ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf), ("top_k", -1), ("top_k", 2**64 - 1), ("min_tokens", -1),
        ("min_tokens", 2**64 - 1), ("seed", 2**63), ("logit_bias", {1: math.nan}), ("logit_bias", {1: 1e300}),
        ("logit_bias", dict.fromkeys(range(MAX_TOKEN_IDS + 1), 1.0)), ("allowed_token_ids", []),
        ("allowed_token_ids", [1] * 101),
    ],
)  # fmt: skip
def test_a_value_that_no_honest_client_sends_is_refused(name: str, value: object):
    limits = replace(LIMITS, vocab_size=2 * MAX_TOKEN_IDS) if name == "logit_bias" else LIMITS
    with pytest.raises(InvalidRequest) as caught:
        validate_request(request(**{name: value}), limits)
    assert caught.value.param == name


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0}, {"temperature": 0.01}, {"temperature": 2.0}, {"top_k": INT64_MAX}, {"seed": INT64_MIN},
        {"logit_bias": {0: -100.0, 99: 100.0}}, {"allowed_token_ids": [0, 99]}, {"num_logprobs": 5},
        {"num_logprobs": 0}, {"bad_words_token_ids": [[1], [2, 3]]},
    ],
)  # fmt: skip
def test_the_ends_of_each_range_are_inside(sampling: dict[str, Any]):
    validate_request(request(**sampling), LIMITS)


@pytest.mark.parametrize(("n", "fits"), [(0, False), (1, True), (8, True), (9, False), (10**9, False)])
def test_children_run_together_so_n_is_bounded_by_max_num_seqs(n: int, fits: bool):
    if fits:
        validate_request(request(task={"n": n}), LIMITS)
        return
    with pytest.raises(InvalidRequest, match="n must be from 1 to 8"):
        validate_request(request(task={"n": n}), LIMITS)


def test_n_is_bounded_whatever_max_num_seqs_is():
    with pytest.raises(InvalidRequest, match=f"from 1 to {MAX_N}"):
        validate_request(request(task={"n": MAX_N + 1}), replace(LIMITS, max_num_seqs=10**6))


@pytest.mark.parametrize("max_tokens", [0, -1, 2**64 - 1])
def test_max_tokens_is_positive(max_tokens: int):
    validate_request(request(task={"max_tokens": 10**9}), LIMITS)  # clamped later
    with pytest.raises(InvalidRequest, match="max_tokens"):
        validate_request(request(task={"max_tokens": max_tokens}), LIMITS)


@pytest.mark.parametrize("name", ["num_logprobs", "num_prompt_logprobs"])
@pytest.mark.parametrize("count", [6, -1, -2])
def test_logprobs_beyond_the_engines_limit_are_refused(name: str, count: int):
    with pytest.raises(InvalidRequest, match="at most 5"):
        validate_request(request(**{name: count}), LIMITS)


def test_without_a_limit_the_whole_vocabulary_may_be_asked_for():
    unlimited = replace(LIMITS, max_logprobs=-1)
    validate_request(request(num_logprobs=-1, num_prompt_logprobs=100), unlimited)
    with pytest.raises(InvalidRequest, match="at most 100"):
        validate_request(request(num_logprobs=101), unlimited)


def test_a_priority_needs_the_policy():
    prioritized = replace(request(), priority=3)
    with pytest.raises(InvalidRequest, match="--scheduling-policy priority"):
        validate_request(prioritized, LIMITS)
    validate_request(prioritized, replace(LIMITS, has_priorities=True))
    with pytest.raises(InvalidRequest, match="64-bit"):
        validate_request(replace(prioritized, priority=2**63), replace(LIMITS, has_priorities=True))


def test_texts_that_the_core_keeps_are_bounded():
    validate_request(replace(request(), label="x" * MAX_LABEL_CHARS, cache_salt="x" * MAX_SALT_CHARS), LIMITS)
    with pytest.raises(InvalidRequest, match="request_id"):
        validate_request(replace(request(), label="x" * (MAX_LABEL_CHARS + 1)), LIMITS)
    with pytest.raises(InvalidRequest, match="cache_salt"):
        validate_request(replace(request(), cache_salt="x" * (MAX_SALT_CHARS + 1)), LIMITS)


@pytest.mark.parametrize("name", ["eos_token_ids", "stop_token_ids"])
def test_id_lists_are_bounded(name: str):
    with pytest.raises(InvalidRequest, match=f"at most {MAX_TOKEN_IDS}"):
        validate_request(request(task={name: [1] * (MAX_TOKEN_IDS + 1)}), LIMITS)


def test_bad_words_are_bounded_and_not_empty():
    with pytest.raises(InvalidRequest, match="bad_words"):
        validate_request(request(bad_words_token_ids=[[1]] * (2 * MAX_BAD_WORDS + 1)), LIMITS)
    with pytest.raises(InvalidRequest, match="non-empty"):
        validate_request(request(bad_words_token_ids=[[]]), LIMITS)


def test_bad_words_must_leave_an_allowed_token_to_draw():
    validate_request(request(allowed_token_ids=[1, 2], bad_words_token_ids=[[1], [2, 3]]), LIMITS)
    with pytest.raises(InvalidRequest, match="drawable"):
        validate_request(request(allowed_token_ids=[1, 2], bad_words_token_ids=[[1], [2]]), LIMITS)


def test_prompt_logprobs_of_the_whole_prompt_are_bounded_together():
    limits = replace(LIMITS, max_model_len=2**20, vocab_size=1000, max_logprobs=-1)
    validate_request(request([1] * 1000, num_prompt_logprobs=-1), limits)
    validate_request(request([1] * 2000, num_prompt_logprobs=20), limits)
    with pytest.raises(InvalidRequest, match="-1 for 2000 prompt tokens") as caught:
        validate_request(request([1] * 2000, num_prompt_logprobs=-1), limits)
    assert caught.value.param == "prompt_logprobs"


@pytest.mark.parametrize(("timeout_s", "fits"), [(None, True), (0.0, True), (1e9, True), (-0.1, False)])
def test_a_timeout_is_a_number_of_seconds(timeout_s: float | None, fits: bool):
    timed = replace(request(), timeout_s=timeout_s)
    if fits:
        validate_request(timed, LIMITS)
        return
    with pytest.raises(InvalidRequest, match="timeout must be a number of seconds"):
        validate_request(timed, LIMITS)


@pytest.mark.parametrize("timeout_s", [math.nan, math.inf])
def test_a_timeout_is_finite(timeout_s: float):
    with pytest.raises(InvalidRequest, match="timeout"):
        validate_request(replace(request(), timeout_s=timeout_s), LIMITS)


def resume(*children: tuple[int, list[int]], is_readded: bool = True, max_tokens: int | None = None) -> AddRequest:
    resumed = [ResumedChild(child, token_ids) for child, token_ids in children]
    message = request([1, 2], task={"n": 3, "max_tokens": max_tokens})
    return replace(message, is_readded=is_readded, resumed_children=resumed)


def test_a_request_may_be_added_again_with_any_of_its_children():
    validate_request(resume(), LIMITS)
    validate_request(resume((1, [5])), LIMITS)
    validate_request(resume((0, [0] * 29), (2, [99])), LIMITS)


@pytest.mark.parametrize(
    "wrong",
    [
        resume((0, [1]), is_readded=False),
        resume((3, [1])),
        resume((-1, [1])),
        resume((1, [1]), (0, [1])),
        resume((1, [1]), (1, [1])),
        resume((0, [])),
        resume((0, [1] * 30)),
        resume((0, [1] * 4), max_tokens=4),
    ],
)
def test_resumed_children_are_distinct_and_unfinished(wrong: AddRequest):
    with pytest.raises(InvalidRequest) as caught:
        validate_request(wrong, LIMITS)
    assert caught.value.param == "resumed_children"


def test_tokens_of_resumed_children_are_in_the_vocabulary():
    with pytest.raises(InvalidRequest, match="token id 100"):
        validate_request(resume((0, [100])), LIMITS)


@pytest.mark.parametrize("num_deaths", [-1, 2**64 - 1])
def test_deaths_are_a_count(num_deaths: int):
    with pytest.raises(InvalidRequest, match="num_deaths"):
        validate_request(replace(request(), num_deaths=num_deaths), LIMITS)


def test_what_is_embedded_may_fill_the_context_and_has_no_children_to_resume():
    embedding = replace(request([1] * 32), task=EmbedTask())
    validate_request(embedding, LIMITS)
    with pytest.raises(ContextTooLong, match="contains 33 input tokens"):
        validate_request(replace(embedding, inputs=TokenInputs(prompt_token_ids=[1] * 33)), LIMITS)
    with pytest.raises(InvalidRequest, match="resumed_children"):
        validate_request(replace(embedding, is_readded=True, resumed_children=[ResumedChild(0, [4])]), LIMITS)
    with pytest.raises(InvalidRequest, match="num_deaths"):
        validate_request(replace(embedding, is_readded=True, num_deaths=-1), LIMITS)
