"""Random traces of requests, aborts and late results over the KV oracle: nothing is lost, shared wrongly or stuck."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from pagewire.engine_core.kv.sizing import fit_max_model_len
from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.requests import CallUtility
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import ALICE, EngineDriver

VOCAB_SIZE = 30
EOS, STOP = 0, 1
HEADS = ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [3, 1, 4, 1, 7, 7, 7, 7, 7, 7, 7, 7], [2, 7])
FAILING_SEED = 99


class EngineMachine(RuleBasedStateMachine):
    """Every rule is an event that the loop may see; invariants and the oracle are checked by the driver."""

    total_steps = 0

    driver: EngineDriver

    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        num_blocks=st.integers(5, 24),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(1, 24),
        is_async=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority"]),
        caching=st.booleans(),
        target_itl_ms=st.sampled_from([0, 2, 20]),
    )
    def start(self, block_size, num_blocks, max_num_seqs, budget, is_async, policy, caching, target_itl_ms):
        self.max_model_len = fit_max_model_len(None, 40, num_blocks, block_size)
        self.max_num_seqs = max_num_seqs
        self.has_priority = policy == "priority"
        self.num_requests = 0
        self.driver = build_driver(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=max_num_seqs,
            budget=budget,
            is_async=is_async,
            policy=policy,
            caching=caching,
            target_itl_ms=target_itl_ms,
            vocab_size=VOCAB_SIZE,
            fails=_fails,
        )

    @rule(
        head=st.sampled_from(HEADS),
        head_length=st.integers(1, 12),
        tail=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=6),
        n=st.integers(1, 3),
        max_tokens=st.one_of(st.none(), st.integers(1, 12)),
        salt=st.sampled_from(["", "", "pepper"]),
        priority=st.integers(-1, 1),
        seed=st.sampled_from([0, 0, 1, 2, FAILING_SEED]),
        min_tokens=st.sampled_from([0, 0, 3]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        logprobs=st.sampled_from([None, 1]),
    )
    def add(self, head, head_length, tail, n, max_tokens, priority, **options):
        prompt = (head[:head_length] + tail)[: self.max_model_len - 1]
        self.num_requests += 1
        self.driver.add(
            build_request(
                self.num_requests,
                prompt,
                n=min(n, self.max_num_seqs),
                max_tokens=max_tokens,
                priority=priority if self.has_priority else 0,
                eos=[EOS],
                stop=[STOP],
                **options,
            )
        )

    @rule()
    def send(self):
        self.driver.send()
        self.check_salts_stay_apart()

    @precondition(lambda self: self.driver.results)
    @rule()
    def receive(self):
        self.driver.receive()

    @precondition(lambda self: self.driver.engine.has_work())
    @rule(count=st.integers(1, 8))
    def turns(self, count):
        for _ in range(count):
            self.driver.send()
            if self.driver.results:
                self.driver.receive()

    @precondition(lambda self: self.num_requests > 2)
    @rule(data=st.data(), event=st.sampled_from(["abort", "stop", "stop", "reset"]), child=st.integers(0, 2))
    def disturb(self, data, event, child):
        if event == "reset":
            self.driver.engine.call_utility(ALICE, CallUtility(call_id=1, method="reset_prefix_cache"))
            return
        request_id = data.draw(st.integers(1, self.num_requests))
        if event == "abort":
            self.driver.abort(request_id)
        else:
            self.driver.abort(children=[(request_id, child)])

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        self.driver.run()
        for transcript in self.driver.transcripts.values():
            if transcript.request.task.sampling.seed == FAILING_SEED and transcript.end.error is not None:
                assert transcript.end.error.message == "planted"
            else:
                assert transcript.end.error is None
            if transcript.start is not None:
                assert transcript.start.num_cached_tokens < len(transcript.request.inputs.prompt_token_ids)
        EngineMachine.total_steps += self.driver.engine.stats.num_steps

    def check_salts_stay_apart(self):
        salts = {}
        for table in self.driver.engine.call_utility(ALICE, CallUtility(call_id=1, method="block_tables")).result:
            salt = self.driver[table["request_id"]].request.cache_salt
            for block_id in table["block_table"]:
                assert salts.setdefault(block_id, salt) == salt, "requests of two salts share a block"


def _fails(row):
    is_planted = row.sampling.seed == FAILING_SEED
    return ErrorInfo(kind="InvalidRequest", message="planted") if is_planted else None


@pytest.mark.slow
def test_random_events_keep_every_invariant():
    EngineMachine.total_steps = 0
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            derandomize=True,
            max_examples=80,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert EngineMachine.total_steps >= 2000


def run_busy_trace(seed: int) -> EngineDriver:
    """Press more requests into a small pool than it holds, with results up to two steps late."""
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
def test_busy_traces_give_every_request_its_solo_answer_over_2000_steps():
    drivers = [run_busy_trace(seed) for seed in range(16)]
    stats = [driver.engine.stats for driver in drivers]
    assert sum(s.num_steps for s in stats) >= 2000
    # Without these the traces would not reach what they are for.
    assert sum(s.num_preemptions for s in stats) >= 200
    assert sum(s.prefix_cache_hits for s in stats) >= 1000
    assert sum(len(step.block_copies) for driver in drivers for step in driver.steps) >= 80
