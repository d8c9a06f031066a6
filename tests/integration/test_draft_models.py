"""A draft model guesses, and no answer is another for it: tokens and the bits of logprobs are those without."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from pagewire.engine_core.drafts.guess_costs import GuessCosts
from pagewire.ipc.requests import AddRequest, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from tests.support.draft_models import build_draft_driver, make_draft_runner
from tests.support.model_driver import Answer, ModelDriver, answers, build_model_driver
from tests.support.tiny_model import tiny_checkpoint
from tools.first_layers import write_first_layers

HEAD = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
GREEDY, SEEDED = Sampling(temperature=0.0, num_logprobs=2), Sampling(temperature=1.0, seed=7, num_logprobs=2)
PROMPTS = {
    1: (HEAD, GREEDY, 1),
    2: ([*HEAD, 40, 41], SEEDED, 3),
    3: ([*HEAD[:8], 50], Sampling(temperature=1.0, seed=8, num_logprobs=0, repetition_penalty=1.3), 2),
    4: ([60, 61, 62], Sampling(temperature=0.0, num_logprobs=1, num_prompt_logprobs=1), 1),
    5: (HEAD[:4], Sampling(temperature=0.9, seed=-3, top_p=0.9, num_logprobs=1, bad_words_token_ids=[[9]]), 1),
}


def requests(*request_ids: int) -> list[AddRequest]:
    return [
        AddRequest(
            request_id=request_id,
            inputs=TokenInputs(prompt_token_ids=PROMPTS[request_id][0]),
            task=GenerateTask(sampling=PROMPTS[request_id][1], n=PROMPTS[request_id][2], max_tokens=16),
        )
        for request_id in request_ids or PROMPTS
    ]


@functools.cache
def drafts_of(target: Path) -> dict[str, Path]:
    return {
        "first layer": write_first_layers(target, 1, tiny_checkpoint(seed=3).parent / "first-layer"),
        "another": tiny_checkpoint(num_layers=1, hidden_size=32, head_dim=8, num_kv_heads=4, seed=5),
        "itself": target,
    }


@functools.cache
def alone(request_id: int) -> list[Answer]:
    driver = build_model_driver(caching=False)
    driver.add(*requests(request_id))
    driver.run()
    return answers(driver[request_id])


class FreeGuesses(GuessCosts):
    """A machine on which guesses take no time."""

    def needs_plain_step(self, num_decodes: int) -> bool:
        return False

    def price(self, num_decodes: int) -> float:
        return 0.0


def build(*models: Path, **options: Any) -> ModelDriver:
    """Return a driver that asks for all guesses that it can: what they take on this machine is left out."""
    driver = build_draft_driver(*models, **options)
    driver.engine._drafts._costs = FreeGuesses()  # type: ignore[attr-defined]
    return driver


def run(driver: ModelDriver, *request_ids: int) -> tuple[int, int]:
    """Run requests and check their answers; return how many guesses were checked and how many were right."""
    driver.add(*requests(*request_ids))
    driver.run()
    for request_id in request_ids or PROMPTS:
        assert answers(driver[request_id]) == alone(request_id), f"request {request_id}"
    stats = driver.engine.stats
    return stats.num_draft_tokens, sum(stats.accepted_at)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("draft", ["first layer", "another", "itself"])
@pytest.mark.parametrize("options", [{}, {"budget": 5}, {"num_blocks": 12}], ids=str)
def test_answers_are_those_without(draft: str, options: dict[str, Any], is_async: bool) -> None:
    target = tiny_checkpoint()
    driver = build(target, drafts_of(target)[draft], is_async=is_async, **options)
    num_drafts, num_accepted = run(driver)
    assert num_drafts > (0 if "budget" in options else 10)
    if "num_blocks" in options:
        assert driver.engine.stats.num_preemptions > 0
    if draft == "itself":
        assert num_accepted == num_drafts, "what it guesses is what it draws, preemptions and prefix hits included"


def test_a_model_that_guesses_for_itself_needs_a_step_for_many_tokens() -> None:
    driver = build(tiny_checkpoint(), tiny_checkpoint(), max_drafts=5)
    run(driver, 1)
    assert len(driver.steps) <= 4  # 16 tokens: the first, then 6 a step


def test_blocks_of_the_prefix_cache_that_the_draft_model_never_wrote_are_computed() -> None:
    target = tiny_checkpoint()
    driver = build(target, target)
    want = driver.engine._drafts.want
    driver.engine._drafts.want = lambda *_: 0  # type: ignore[method-assign]
    assert run(driver, 1) == (0, 0)
    driver.engine._drafts.want = want  # type: ignore[method-assign]
    num_drafts, num_accepted = run(driver, 2)
    assert driver.engine.stats.prefix_cache_hits > 0
    assert num_accepted == num_drafts > 0


def test_an_executor_that_takes_over_guesses_on() -> None:
    target = tiny_checkpoint()
    driver = build(target, target)
    driver.add(*requests())
    for _ in range(4):
        driver.step()
    driver.restart_executor(make_draft_runner(target, target, num_blocks=64), 2)  # type: ignore[arg-type]
    driver.run()
    for request_id in PROMPTS:
        assert answers(driver[request_id]) == alone(request_id)
    assert driver.engine.stats.num_draft_tokens > 0
