"""Random events around one engine over the KV oracle, as a state machine of hypothesis."""

from __future__ import annotations

import functools

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pagewire.engine_core.kv.sizing import fit_max_model_len
from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.requests import CallUtility, EmbedTask, GenerateTask
from tests.support.builders import build_driver, build_embedding, build_request
from tests.support.engine_driver import ALICE, EngineDriver
from tests.support.grammars import BAD_GRAMMARS, GRAMMARS

VOCAB_SIZE = 30
EOS, STOP = 0, 1
HEADS = ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [3, 1, 4, 1, 7, 7, 7, 7, 7, 7, 7, 7], [2, 7])
FAILING_SEED = 99


class EngineMachine(RuleBasedStateMachine):
    """Every rule is an event that the loop may see; invariants and the oracle are checked by the driver.

    Attributes:
        pp: pipeline stages of the executor.
        max_drafts: guesses that it offers with each draw.
        has_draft_model: whether they are a draft model's.
        total_steps: of the engines that were left at the end of each run.
        build: makes a driver like the first one.
    """

    pp = 1
    max_drafts = 0
    has_draft_model = False
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
        delays_grammars=st.booleans(),
    )
    def start(
        self, block_size, num_blocks, max_num_seqs, budget, is_async, policy, caching, target_itl_ms, delays_grammars
    ):
        self.max_model_len = fit_max_model_len(None, 40, num_blocks, block_size)
        self.max_num_seqs = max_num_seqs
        self.has_priority = policy == "priority"
        self.num_requests = 0
        self.build = functools.partial(
            build_driver,
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
            pp=self.pp,
            max_drafts=self.max_drafts,
            has_draft_model=self.has_draft_model,
        )
        self.driver = self.build()
        self.driver.delays_grammars = delays_grammars

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

    @rule(
        head=st.sampled_from(HEADS),
        head_length=st.integers(1, 12),
        n=st.integers(1, 3),
        max_tokens=st.one_of(st.none(), st.integers(1, 12)),
        seed=st.integers(0, 3),
        ignores_end=st.booleans(),
        grammar=st.sampled_from(GRAMMARS),
        logprobs=st.sampled_from([None, 1]),
    )
    def constrain(self, head, head_length, n, max_tokens, seed, ignores_end, grammar, logprobs):
        self.num_requests += 1
        self.driver.add(
            build_request(
                self.num_requests,
                head[:head_length][: self.max_model_len - 1],
                n=min(n, self.max_num_seqs),
                max_tokens=max_tokens,
                seed=seed,
                eos=[] if ignores_end else [EOS],
                stop=[STOP],
                grammar=grammar,
                logprobs=logprobs,
            )
        )

    @rule(grammar=st.sampled_from(BAD_GRAMMARS))
    def ask_for_nonsense(self, grammar):
        self.num_requests += 1
        self.driver.add(build_request(self.num_requests, [2, 3], grammar=grammar))

    @rule(count=st.integers(1, 3))
    def compile(self, count):
        self.driver.compile(count)

    @rule(
        head=st.sampled_from(HEADS),
        head_length=st.integers(1, 12),
        tail=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=6),
        pooling=st.sampled_from(["last", "mean"]),
        normalize=st.booleans(),
        salt=st.sampled_from(["", "", "pepper"]),
        priority=st.integers(-1, 1),
    )
    def embed(self, head, head_length, tail, priority, **options):
        self.num_requests += 1
        prompt = (head[:head_length] + tail)[: self.max_model_len]
        priority = priority if self.has_priority else 0
        self.driver.add(build_embedding(self.num_requests, prompt, priority=priority, **options))

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

    @precondition(lambda self: self.driver.engine.has_work())
    @rule(
        event=st.sampled_from(["pause", "sleep", None, None]),  # not so often that little else happens
        mode=st.sampled_from(["abort", "wait", "keep", "keep"]),
    )
    def rest(self, event, mode):
        if event is None:
            return
        if self.driver.engine.rest.is_asleep and mode == "wait":
            return  # refused
        if event == "pause":
            self.driver.pause(mode)
        elif not self.driver.engine.rest.is_asleep:
            self.driver.sleep(mode)
        assert self.driver.send() is None

    @precondition(lambda self: self.driver.engine.rest.is_on)
    @rule()
    def end_rest(self):
        if self.driver.engine.rest.is_asleep:
            self.driver.wake_up(self.build().executor)
        self.driver.engine.rest.resume()

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        self.end_rest()
        self.driver.run()
        for transcript in self.driver.transcripts.values():
            if isinstance(transcript.request.task, GenerateTask) and transcript.request.task.grammar in BAD_GRAMMARS:
                assert transcript.end.error is None or transcript.end.error.kind == "InvalidRequest"
            elif isinstance(transcript.request.task, EmbedTask):
                assert transcript.end.error is None
            elif transcript.request.task.sampling.seed == FAILING_SEED and transcript.end.error is not None:
                assert transcript.end.error.message == "planted"
            else:
                assert transcript.end.error is None
            if transcript.start is not None:
                assert transcript.start.num_cached_tokens < len(transcript.request.inputs.prompt_token_ids)
        type(self).total_steps += self.driver.engine.stats.num_steps

    @classmethod
    def over(cls, *, pp: int, max_drafts: int, has_draft_model: bool = False) -> type[EngineMachine]:
        """Return the machine over an executor of so many stages and drafts, with counters of its own."""
        options = {"pp": pp, "max_drafts": max_drafts, "has_draft_model": has_draft_model, "total_steps": 0}
        return type(f"{cls.__name__}Over{pp}StagesWith{max_drafts}Drafts", (cls,), options)

    def check_salts_stay_apart(self):
        salts = {}
        for table in self.driver.block_tables():
            salt = self.driver[table["request_id"]].request.cache_salt
            for block_id in table["block_table"]:
                assert salts.setdefault(block_id, salt) == salt, "requests of two salts share a block"


def _fails(row):
    is_planted = row.sampling.seed == FAILING_SEED
    return ErrorInfo(kind="InvalidRequest", message="planted") if is_planted else None
