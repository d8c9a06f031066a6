"""An engine over a real (tiny) model that checks drafts: no bit of any answer shows it, whoever guesses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pagewire.gpu_executor.speculation.prompt_lookup import PromptLookup
from pagewire.gpu_executor.speculation.proposer import Proposer
from pagewire.gpu_executor.speculation.suffix_lookup import SuffixLookup
from pagewire.ipc.outputs import FinishReason
from pagewire.ipc.requests import AddRequest, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from tests.support.known_answers import KnownAnswers
from tests.support.launching_ahead import build_ahead_driver
from tests.support.model_driver import ModelDriver, answers, build_model_driver

HEAD = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
NUM_TOKENS = 14
NUM_DRAFTS = 4
ALL_RIGHT = 10**6


def request_of(request_id: int, prompt: Sequence[int], sampling: Sampling, n: int = 1, **options: object) -> AddRequest:
    task = {"n": n, "max_tokens": NUM_TOKENS, **options}
    return AddRequest(
        request_id=request_id,
        inputs=TokenInputs(prompt_token_ids=list(prompt)),
        task=GenerateTask(sampling=sampling, **task),  # type: ignore[arg-type]
    )


def build_requests() -> list[AddRequest]:
    """Return requests of every kind of draw, and of a prompt that several of them share."""
    return [
        request_of(1, HEAD, Sampling(temperature=0.0, num_logprobs=3)),
        request_of(2, [*HEAD, 40, 41], Sampling(temperature=1.0, seed=7, num_logprobs=0), 3),
        request_of(
            3,
            [*HEAD[:8], 50],
            Sampling(temperature=0.8, seed=8, num_logprobs=2, repetition_penalty=1.3, presence_penalty=0.4),
            2,
        ),
        request_of(4, [60, 61, 62], Sampling(temperature=0.0, num_logprobs=1, num_prompt_logprobs=1)),
        request_of(
            5,
            HEAD[:4],
            Sampling(temperature=0.9, seed=-3, top_p=0.9, bad_words_token_ids=[[9], [3, 4]], logit_bias={20: 3.0}),
        ),
        request_of(
            6,
            HEAD[3:9],
            Sampling(temperature=0.5, seed=11, top_k=40, min_tokens=9, end_token_ids=[20, 21], num_logprobs=1),
            stop_token_ids=[20, 21],
        ),
        request_of(7, HEAD[:6], Sampling(temperature=1.0, seed=4, logit_bias={30: 30.0, 31: 30.0}, num_logprobs=1)),
    ]


def run(driver: ModelDriver, requests: Sequence[AddRequest]) -> ModelDriver:
    driver.add(*requests)
    driver.run()
    return driver


def texts_of(driver: ModelDriver) -> list[list[int]]:
    return [
        [*transcript.request.inputs.prompt_token_ids, *child.token_ids]
        for transcript in driver.transcripts.values()
        for child in transcript.children
    ]


def num_accepted(driver: ModelDriver) -> int:
    ends = [transcript.end for transcript in driver.transcripts.values()]
    return sum(end.num_accepted_tokens for end in ends if end is not None)


def check_same(driver: ModelDriver, expected: ModelDriver) -> None:
    for key, transcript in driver.transcripts.items():
        other = expected.transcripts[key]
        assert answers(transcript) == answers(other), f"request {key[1]}"
        ends = [(child.finish_reason, child.stop_reason) for child in transcript.children]
        assert ends == [(child.finish_reason, child.stop_reason) for child in other.children], f"request {key[1]}"


@pytest.fixture(scope="module")
def plain() -> ModelDriver:
    return run(build_model_driver(), build_requests())


def guesser(name: str, plain: ModelDriver) -> Proposer:
    match name:
        case "ngram":
            return PromptLookup(NUM_DRAFTS, longest=4, shortest=1)
        case "suffix":
            return SuffixLookup(NUM_DRAFTS, shortest=1)
        case _:
            return KnownAnswers(texts_of(plain), num_tokens=NUM_DRAFTS, wrong_every=4)


@pytest.mark.parametrize("build", [build_model_driver, build_ahead_driver], ids=["waiting", "ahead"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("known", {}),
        ("known", {"num_blocks": 12, "budget": 7, "caching": False}),
        ("known", {"max_num_seqs": 3, "budget": 9}),
        ("ngram", {}),
        ("suffix", {"max_num_seqs": 3}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_answers_are_the_same_bits_whoever_guesses(plain: ModelDriver, build, name: str, options) -> None:
    driver = build(proposer=guesser(name, plain), max_drafts=NUM_DRAFTS, **options)
    run(driver, build_requests())
    check_same(driver, plain)
    assert num_accepted(driver) > (10 if name == "known" else 0)
    if "num_blocks" in options:
        assert driver.engine.stats.num_preemptions > 0


@pytest.mark.parametrize("build", [build_model_driver, build_ahead_driver], ids=["waiting", "ahead"])
def test_right_drafts_make_fewer_steps(plain: ModelDriver, build) -> None:
    right = KnownAnswers(texts_of(plain), num_tokens=NUM_DRAFTS, wrong_every=ALL_RIGHT)
    driver = run(build(proposer=right, max_drafts=NUM_DRAFTS), build_requests()[:1])
    check_same(driver, plain)
    # The prompt, and then five tokens a step; one that was sent ahead may come between.
    assert driver.engine.stats.num_steps <= 6


@pytest.mark.parametrize("build", [build_model_driver, build_ahead_driver], ids=["waiting", "ahead"])
@pytest.mark.parametrize("max_tokens", [3, 4, 5, 14])
def test_a_stop_and_a_limit_within_accepted_drafts_end_the_request_at_the_first_of_them(build, max_tokens: int) -> None:
    sampling = Sampling(temperature=1.0, seed=3, allowed_token_ids=list(range(20, 100)), num_logprobs=0)
    endless = run(build_model_driver(), [request_of(1, HEAD, sampling)])
    told = endless[1].children[0].token_ids
    stop_at = next(place for place in range(3, NUM_TOKENS) if told[place] not in told[:place])
    options = {"stop_token_ids": [told[stop_at]], "max_tokens": max_tokens}
    request = request_of(1, HEAD, sampling, **options)
    right = KnownAnswers(texts_of(endless), num_tokens=6, wrong_every=ALL_RIGHT)
    driver = run(build(proposer=right, max_drafts=6), [request])
    (child,) = driver[1].children
    check_same(driver, run(build_model_driver(), [request]))
    if max_tokens <= stop_at:
        assert (len(child.token_ids), child.finish_reason) == (max_tokens, FinishReason.LENGTH)
    else:
        assert (child.finish_reason, child.stop_reason) == (FinishReason.STOP, told[stop_at])
        assert child.token_ids == told[: len(child.token_ids)]
        assert len(child.token_ids) in (stop_at, stop_at + 1)
    assert num_accepted(driver) > 0 or max_tokens == 3  # two of three tokens may be drawn before drafts come back
    assert [entry.token_id for entry in child.logprobs] == child.token_ids


@pytest.mark.parametrize("num_logprobs", [0, 3])
def test_each_accepted_token_has_its_logprobs(plain: ModelDriver, num_logprobs: int) -> None:
    request = request_of(1, HEAD, Sampling(temperature=0.0, num_logprobs=num_logprobs))
    right = KnownAnswers(texts_of(plain), num_tokens=NUM_DRAFTS, wrong_every=4)
    driver = run(build_model_driver(proposer=right, max_drafts=NUM_DRAFTS), [request])
    (child,) = driver[1].children
    assert len(child.logprobs) == len(child.token_ids) == NUM_TOKENS
    assert all(len(entry.top_token_ids) == num_logprobs for entry in child.logprobs)
    check_same(driver, run(build_model_driver(), [request]))


def test_neighbours_with_and_without_seeds_of_their_own_answer_as_alone() -> None:
    prompt = [7, 8, 9, 7, 8, 9, 7, 8]
    seeds = {1: 1, 2: 0, 3: 2**62, 4: 5}
    requests = [
        request_of(number, prompt, Sampling(temperature=0.0 if number < 3 else 1.0, seed=seed))
        for number, seed in seeds.items()
    ]
    lookup = PromptLookup(NUM_DRAFTS, longest=4, shortest=1)
    together = run(build_model_driver(proposer=lookup, max_drafts=NUM_DRAFTS), requests)
    for request in requests:
        alone = run(build_model_driver(), [request])
        assert answers(together[request.request_id]) == answers(alone[request.request_id])
    assert answers(together[1]) == answers(together[2])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.5, seed=3, num_logprobs=3),
        Sampling(temperature=0.0, num_logprobs=3, logit_bias={17: 2.0, 30: -5.0}),
        Sampling(temperature=0.0, num_logprobs=3, repetition_penalty=1.5, frequency_penalty=0.7),
    ],
    ids=["temperature", "bias", "penalties"],
)
@pytest.mark.parametrize("build", [build_model_driver, build_ahead_driver], ids=["waiting", "ahead"])
def test_logprobs_are_of_the_raw_logits_behind_drafts_too(build, sampling: Sampling) -> None:
    request = request_of(1, HEAD, sampling)
    alone = run(build_model_driver(), [request])
    right = KnownAnswers(texts_of(alone), num_tokens=NUM_DRAFTS, wrong_every=4)
    driver = run(build(proposer=right, max_drafts=NUM_DRAFTS), [request])
    assert num_accepted(driver) > 0
    check_same(driver, alone)
