"""Random traces of requests, aborts and late results over the KV oracle: nothing is lost, shared wrongly or stuck."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from pagewire.engine_core.kv.sizing import fit_max_model_len
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import EngineDriver
from tests.support.engine_machine import HEADS, VOCAB_SIZE, EngineMachine


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pp", "max_drafts", "has_draft_model", "num_examples"),
    [
        (1, 0, False, 80),
        (2, 0, False, 60),
        (4, 0, False, 20),
        (1, 4, False, 80),
        (2, 3, False, 30),
        (1, 4, True, 60),
        (2, 3, True, 20),
    ],
)
def test_random_events_keep_every_invariant(pp: int, max_drafts: int, has_draft_model: bool, num_examples: int):
    machine = EngineMachine.over(pp=pp, max_drafts=max_drafts, has_draft_model=has_draft_model)
    run_state_machine_as_test(
        machine,
        settings=settings(
            derandomize=True,
            max_examples=num_examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert machine.total_steps >= 20 * num_examples


def run_busy_trace(seed: int, pp: int, max_drafts: int = 0, *, has_draft_model: bool = False) -> EngineDriver:
    """Press more requests into a small pool than it holds, with as many results late as there may be."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4])
    num_blocks = rng.randint(24, 48) // block_size + 4
    max_model_len = fit_max_model_len(None, 32, num_blocks, block_size)
    max_num_seqs = rng.randint(3, 8)
    policy = rng.choice(["fcfs", "priority"])
    driver = build_driver(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        budget=rng.choice([3, 8, 24]),
        is_async=seed % 2 == 0,
        policy=policy,
        vocab_size=VOCAB_SIZE,
        pp=pp,
        max_drafts=max_drafts,
        has_draft_model=has_draft_model,
    )
    for request_id in range(1, 31):
        prompt = rng.choice(HEADS)[: rng.randint(2, 12)] + rng.choices(range(VOCAB_SIZE), k=rng.randint(0, 3))
        driver.add(
            build_request(
                request_id,
                prompt[: max_model_len - 1],
                n=rng.choice([1, 1, 2, 3]),
                max_tokens=rng.randint(2, 14),
                seed=rng.randint(0, 3),
                priority=rng.randint(-1, 1) if policy == "priority" else 0,
                prompt_logprobs=rng.choice([None, None, None, 1]),
            )
        )
        for _ in range(rng.randint(0, 4)):
            driver.send()
            if driver.results and rng.random() < 0.8:
                driver.receive()
    driver.run()
    for request_id in range(1, 31):
        driver.check_complete(request_id)
    return driver


@pytest.mark.slow
@pytest.mark.parametrize(("pp", "num_traces"), [(1, 16), (2, 16), (4, 6)])
def test_busy_traces_give_every_request_its_solo_answer(pp: int, num_traces: int):
    drivers = [run_busy_trace(seed, pp) for seed in range(num_traces)]
    stats = [driver.engine.stats for driver in drivers]
    assert sum(s.num_steps for s in stats) >= 125 * num_traces
    # Without these the traces would not reach what they are for.
    assert sum(s.num_preemptions for s in stats) >= 12 * num_traces
    assert sum(s.prefix_cache_hits for s in stats) >= 60 * num_traces
    assert sum(len(step.block_copies) for driver in drivers for step in driver.steps) >= 3 * num_traces


@pytest.mark.slow
@pytest.mark.parametrize(("pp", "has_draft_model", "num_traces"), [(1, False, 12), (2, False, 6), (1, True, 6)])
def test_drafts_change_no_answer_and_spare_steps(pp: int, has_draft_model: bool, num_traces: int):
    drivers = [run_busy_trace(seed, pp, max_drafts=4, has_draft_model=has_draft_model) for seed in range(num_traces)]
    stats = [driver.engine.stats for driver in drivers]
    num_drafts, num_accepted = sum(s.num_draft_tokens for s in stats), sum(sum(s.accepted_at) for s in stats)
    # Without these the traces would not reach what they are for.
    assert num_drafts >= 80 * num_traces
    assert num_drafts / 4 < num_accepted < num_drafts
    assert max(len(s.accepted_at) for s in stats) == 4
    assert sum(s.num_preemptions for s in stats) >= 4 * num_traces
