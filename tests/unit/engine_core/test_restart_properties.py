"""Random deaths of cores and executors over the KV oracle: every request gets its tokens, each of them once."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from pagewire.engine_core.kv.sizing import fit_max_model_len
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import EngineDriver
from tests.support.engine_machine import HEADS, VOCAB_SIZE, EngineMachine


class Deaths:
    """Ends cores and executors, and counts them.

    An executor dies only if a token was told since the last time: else whoever ran is rightly taken for the cause.
    """

    def __init__(self) -> None:
        self.num_cores = 0
        self.num_executors = 0
        self._num_told = 0

    def can_executor_die(self, driver: EngineDriver) -> bool:
        return _num_told(driver) > self._num_told

    def end_executor(self, driver: EngineDriver, successor: EngineDriver) -> None:
        self.num_executors += 1
        self._num_told = _num_told(driver)
        driver.restart_executor(successor.executor, executor_epoch=driver.engine._executor_epoch + 1)

    def end_core(self, driver: EngineDriver, successor: EngineDriver, num_untold: int) -> None:
        """The core may have taken up results of which it never told."""
        self.num_cores += 1
        for _ in range(min(num_untold, len(driver.results))):
            driver.engine.apply(driver.results.popleft(), driver.now)
        driver.restart_core(successor)


def _num_told(driver: EngineDriver) -> int:
    return sum(len(child.token_ids) for transcript in driver.transcripts.values() for child in transcript.children)


class RestartMachine(EngineMachine):
    """The events of `EngineMachine`, and deaths."""

    total_deaths = 0

    def __init__(self) -> None:
        super().__init__()
        self.deaths = Deaths()

    @precondition(lambda self: self.driver.engine.has_work())
    @rule(num_untold=st.integers(0, 2))
    def core_dies(self, num_untold):
        self.deaths.end_core(self.driver, self.build(), num_untold)

    @precondition(lambda self: self.deaths.can_executor_die(self.driver) and not self.driver.engine.rest.is_asleep)
    @rule()
    def executor_dies(self):
        self.deaths.end_executor(self.driver, self.build())

    def teardown(self):
        super().teardown()
        RestartMachine.total_deaths += self.deaths.num_cores + self.deaths.num_executors


@pytest.mark.slow
@pytest.mark.parametrize(("pp", "max_drafts", "num_examples"), [(1, 0, 60), (2, 0, 40), (4, 0, 15), (1, 4, 40)])
def test_random_events_and_deaths_lose_nothing(pp: int, max_drafts: int, num_examples: int):
    RestartMachine.total_deaths = 0
    run_state_machine_as_test(
        RestartMachine.over(pp=pp, max_drafts=max_drafts),
        settings=settings(
            derandomize=True,
            max_examples=num_examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert RestartMachine.total_deaths >= 1.2 * num_examples


def run_trace_with_deaths(seed: int, pp: int) -> tuple[EngineDriver, Deaths]:
    """Let requests of all kinds run in a small pool while cores and executors end every few steps."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4])
    num_blocks = rng.randint(24, 48) // block_size + 4
    max_model_len = fit_max_model_len(None, 32, num_blocks, block_size)
    build = functools.partial(
        build_driver,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=rng.randint(3, 8),
        budget=rng.choice([3, 8, 24]),
        is_async=seed % 2 == 0,
        policy=rng.choice(["fcfs", "priority"]),
        vocab_size=VOCAB_SIZE,
        pp=pp,
    )
    driver, deaths = build(), Deaths()
    for request_id in range(1, 31):
        prompt = rng.choice(HEADS)[: rng.randint(2, 12)] + rng.choices(range(VOCAB_SIZE), k=rng.randint(0, 3))
        driver.add(
            build_request(
                request_id,
                prompt[: max_model_len - 1],
                n=rng.choice([1, 1, 2, 3]),
                max_tokens=rng.randint(2, 14),
                seed=rng.randint(0, 3),
                prompt_logprobs=rng.choice([None, None, None, 1]),
            )
        )
        run_a_while(driver, rng, rng.randint(0, 4))
        disturb(driver, deaths, build, rng)
    while driver.engine.has_work():
        run_a_while(driver, rng, 6)
        disturb(driver, deaths, build, rng)
    driver.run()
    for request_id in range(1, 31):
        driver.check_complete(request_id)
    return driver, deaths


def run_a_while(driver: EngineDriver, rng: random.Random, num_turns: int) -> None:
    for _ in range(num_turns):
        driver.send()
        if driver.results and rng.random() < 0.8:
            driver.receive()


def disturb(driver: EngineDriver, deaths: Deaths, build, rng: random.Random) -> None:
    chance = rng.random()
    if chance < 0.25:
        deaths.end_core(driver, build(), rng.randint(0, 2))
    elif chance < 0.5 and deaths.can_executor_die(driver):
        deaths.end_executor(driver, build())


@pytest.mark.slow
@pytest.mark.parametrize(("pp", "num_traces"), [(1, 16), (2, 16), (4, 6)])
def test_every_request_gets_exactly_its_tokens_through_hundreds_of_deaths(pp: int, num_traces: int):
    deaths = [run_trace_with_deaths(seed, pp)[1] for seed in range(num_traces)]
    assert sum(one.num_cores for one in deaths) >= 6 * num_traces
    assert sum(one.num_executors for one in deaths) >= 6 * num_traces
