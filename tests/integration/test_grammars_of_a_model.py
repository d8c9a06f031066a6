"""An engine over a real (tiny) model that follows grammars: neither drafts nor chunks nor a deferred device show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pagewire.gpu_executor.speculation.prompt_lookup import PromptLookup
from pagewire.ipc.outputs import FinishReason
from pagewire.ipc.requests import AddRequest, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.structured_outputs import Grammar
from tests.support.grammars import EOS, STOP, compile_letters, spell
from tests.support.launching_ahead import build_ahead_driver
from tests.support.model_driver import ModelDriver, answers, build_model_driver

LISTS = Grammar("regex", "(ab|cd|[x-z]+,)*e")
VOCAB_SIZE = 512  # the tiny model's


def request_of(
    request_id: int, sampling: Sampling, grammar: Grammar | None = LISTS, *, n: int = 1, num_prompt: int = 5
) -> AddRequest:
    task = GenerateTask(
        sampling=sampling, n=n, max_tokens=14, eos_token_ids=[EOS], stop_token_ids=[STOP], grammar=grammar
    )
    return AddRequest(
        request_id=request_id, inputs=TokenInputs(prompt_token_ids=list(range(3, 3 + num_prompt))), task=task
    )


def build_requests() -> list[AddRequest]:
    """Return requests of every kind of draw, by grammar and free, in the same steps."""
    return [
        request_of(1, Sampling(temperature=0.0, num_logprobs=2)),
        request_of(2, Sampling(temperature=1.0, seed=3, num_logprobs=1), n=3, num_prompt=11),
        request_of(3, Sampling(temperature=1.0, seed=4, repetition_penalty=1.4, logit_bias={3: 2.0}, num_logprobs=0)),
        request_of(4, Sampling(temperature=1.0, seed=5, num_logprobs=1), None),
        request_of(5, Sampling(temperature=0.0), Grammar("choice", '["abc", "abd", "zzz"]')),
        request_of(6, Sampling(temperature=1.0, seed=6), Grammar("regex", "a{12}b?"), num_prompt=9),
        request_of(7, Sampling(temperature=0.0, num_logprobs=1), Grammar("regex", "(xy)*"), num_prompt=20),
    ]


def run(driver: ModelDriver) -> ModelDriver:
    driver.add(*build_requests())
    driver.run()
    return driver


@pytest.fixture(scope="module")
def expected() -> ModelDriver:
    return run(build_model_driver(vocab_size=VOCAB_SIZE))


def test_answers_are_of_their_languages(expected):
    for request in build_requests():
        for child in expected[request.request_id].children:
            if request.task.grammar is None:
                continue
            compiled = compile_letters(request.task.grammar).compiled
            assert compiled is not None
            matcher = compiled.start(frozenset([EOS, STOP]), VOCAB_SIZE)
            assert all(map(matcher.advance, child.token_ids)), spell(child.token_ids)
            assert (child.finish_reason is FinishReason.STOP) == (matcher.is_done or child.token_ids[-1] in (EOS, STOP))
    assert spell(expected[5].children[0].token_ids) in ("abc", "abd", "zzz")


@pytest.mark.parametrize(
    "build",
    [
        lambda: build_model_driver(vocab_size=VOCAB_SIZE, is_async=True),
        lambda: build_model_driver(vocab_size=VOCAB_SIZE, is_async=True, budget=5),
        lambda: build_model_driver(vocab_size=VOCAB_SIZE, num_blocks=14, budget=9),
        lambda: build_model_driver(
            vocab_size=VOCAB_SIZE, proposer=PromptLookup(4, shortest=1, longest=3), max_drafts=4
        ),
        lambda: build_ahead_driver(vocab_size=VOCAB_SIZE),
        lambda: build_ahead_driver(
            vocab_size=VOCAB_SIZE, proposer=PromptLookup(4, shortest=1, longest=3), max_drafts=4
        ),
    ],
    ids=["ahead", "chunks", "preemption", "drafts", "deferred device", "drafts on a deferred device"],
)
def test_answers_are_the_same_bits_however_they_are_scheduled(build: Callable[[], ModelDriver], expected: ModelDriver):
    driver = run(build())
    for request in build_requests():
        assert answers(driver[request.request_id]) == answers(expected[request.request_id])
