"""Plays the loop around an `Engine`: sends steps, delays results, checks what clients are told."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pagewire.engine_core.engine import Engine
from pagewire.engine_core.grammar.gate import Lane
from pagewire.engine_core.pooled import scale_to_one
from pagewire.engine_core.rest.rest import RestMode
from pagewire.frontend.client.journal import JournalEntry
from pagewire.ipc.channels import ClientId
from pagewire.ipc.outputs import (
    Embedding,
    FinishReason,
    RequestEnd,
    RequestStart,
    StepOutputs,
    TokenDelta,
    TokenLogprobs,
)
from pagewire.ipc.requests import AbortRequests, AddRequest, CallUtility, EmbedTask, GenerateTask
from pagewire.ipc.steps import ExecuteStep, SamplingMasks, StepResult
from pagewire.ipc.structured_outputs import Grammar
from tests.support.fake_executor import FakeExecutor, solo_answers, vector_of
from tests.support.grammars import compile_letters

ALICE = ClientId(b"alice")


@dataclass
class ChildTranscript:
    """What a client was told of one child."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None


@dataclass
class Transcript:
    """What a client was told of one request."""

    request: AddRequest
    children: list[ChildTranscript]
    is_accepted: bool = False
    is_scheduled: bool = False  # in a step of the core that runs now
    start: RequestStart | None = None
    embedding: Embedding | None = None
    end: RequestEnd | None = None

    def __post_init__(self) -> None:
        self.entry = JournalEntry(self.request)


class EngineDriver:
    """One engine, one fake executor, and every message between them and the clients.

    The executor runs a step when it is sent, or when its masks are there; its result waits until `receive`.

    Args:
        pp: stages of the executor. With more than one, a row may be in one unanswered step only.
    """

    def __init__(self, engine: Engine, executor: FakeExecutor, *, max_model_len: int, pp: int = 1) -> None:
        self._pp = pp
        self.engine = engine
        self.executor = executor
        self.max_model_len = max_model_len
        self.now = 0.0
        self.checks_invariants = True  # off where a planted fault must be found by the oracle alone
        self.steps: list[ExecuteStep] = []
        self.delays_grammars = False  # they are compiled by `compile` alone
        self.orders: list[Grammar] = []  # not compiled yet
        self._sent: deque[ExecuteStep] = deque()  # steps that wait for their masks, or behind one that does
        self._masks: dict[int, SamplingMasks] = {}
        self.results: deque[StepResult] = deque()
        self.transcripts: dict[tuple[ClientId, int], Transcript] = {}

    def __getitem__(self, request_id: int) -> Transcript:
        return self.transcripts[ALICE, request_id]

    def add(self, *requests: AddRequest, client: ClientId = ALICE) -> None:
        for request in requests:
            self.transcripts[client, request.request_id] = Transcript(
                request, [ChildTranscript() for _ in range(request.n if isinstance(request.task, GenerateTask) else 0)]
            )
            self.engine.add_request(client, request, self.now)
        self._exchange_grammars()
        self.collect()

    def compile(self, count: int = 100) -> None:
        """Finish some of the grammars that are ordered, the oldest first."""
        done, self.orders = self.orders[:count], self.orders[count:]
        for grammar in done:
            self.engine.grammars.finish(compile_letters(grammar))
        self._check_invariants()
        self.collect()

    def abort(self, *request_ids: int, children: list[tuple[int, int]] | None = None) -> None:
        self.engine.abort(ALICE, AbortRequests(request_ids=list(request_ids), children=children or []), self.now)
        self.collect()

    def expire(self, now: float) -> None:
        """Let the time come at which requests are late."""
        self.now = now
        self.engine.fail_late(now)
        self._check_invariants()
        self.collect()

    def block_tables(self) -> list[dict[str, object]]:
        """Return what the engine says of its living children."""
        result = self.engine.call_utility(ALICE, CallUtility(call_id=0, method="block_tables")).result
        assert isinstance(result, list)
        return result

    def restart_core(self, successor: EngineDriver) -> None:
        """Go on with the engine and the executor of another driver, which know of nothing.

        What the old engine had not told is lost; the clients add their living requests again.
        """
        self.engine, self.executor = successor.engine, successor.executor
        self._drop_steps()
        self.orders.clear()
        for (client, _), transcript in self.transcripts.items():  # in the order of their arrival
            if transcript.end is None:
                transcript.is_accepted = transcript.is_scheduled = False
                message = transcript.entry.addition(is_readded=True, timeout_s=transcript.request.timeout_s)
                self.engine.add_request(client, message, self.now)
        self._exchange_grammars()
        self._check_invariants()
        self.collect()

    def restart_executor(self, executor: FakeExecutor, executor_epoch: int) -> None:
        """Go on with another executor, which holds nothing."""
        self.engine.lose_executor("it was killed")
        self._check_invariants()
        self._drop_steps()
        self.executor = executor
        self.collect()
        self.engine.resume(executor_epoch)

    def pause(self, mode: RestMode) -> None:
        """Pause the engine, and let what still runs come to its end."""
        self.engine.rest.pause(mode)
        self.settle()

    def sleep(self, mode: RestMode) -> None:
        """Put the engine to sleep: when nothing runs any more, the executor ends."""
        self.engine.rest.sleep(1, mode)
        self.settle()
        self.engine.suspend()
        self._check_invariants()

    def wake_up(self, executor: FakeExecutor) -> None:
        """Go on with another executor, which holds nothing."""
        self.engine.rest.wake_up()
        self.executor = executor
        self.engine.resume(self.engine._executor_epoch + 1)

    def settle(self) -> None:
        """Send and receive until the engine is quiet."""
        self.collect()
        while not self.engine.is_quiet:
            self.compile()
            while self.send() is not None:
                pass
            if self.engine.is_quiet:
                break
            assert self.results, "the engine rests, is not quiet, and has nothing in flight"
            self.receive()

    def send(self) -> ExecuteStep | None:
        """Let the engine schedule one step, if it can."""
        self.now += 1.0
        step = self.engine.schedule(self.now) if self.engine.can_schedule() else None
        if step is not None:
            self.steps.append(step)
            self.collect()  # before there is a result
            assert all(self.transcripts[key].is_scheduled for key in self._running_keys()), "whose may a death be?"
            self._sent.append(step)
            self._execute()
            self._check_steps_in_flight()
        self._check_invariants()
        return step

    def receive(self) -> None:
        """Give the engine the oldest result."""
        self.now += 1.0
        self.engine.apply(self.results.popleft(), self.now)
        self._execute()
        self._check_invariants()
        self.collect()

    def step(self) -> ExecuteStep:
        """Send a step that must exist, and bring every result back."""
        step = self.send()
        assert step is not None
        while self.results:
            self.receive()
        return step

    def run(self) -> None:
        """Send and receive until no work is left; a stall is a failure."""
        while self.engine.has_work():
            self.compile()
            while self.send() is not None:
                pass
            if self.engine.has_work():
                assert self.results, "the engine has work, nothing in flight, and schedules nothing"
                self.receive()
        self.check_ended()

    def collect(self) -> None:
        """Take what clients are told, and check its order."""
        for client, outputs in self.engine.take_outputs().items():
            self._collect_one(client, outputs)

    def check_ended(self) -> None:
        """Every request has its one end, nothing holds a block, and every answer is what it would be alone."""
        assert self.engine.stats.num_used_blocks == 0
        assert self.engine.stats.num_running == self.engine.stats.num_waiting == 0
        for transcript in self.transcripts.values():
            assert transcript.end is not None, f"request {transcript.request.request_id} never ended"
            if transcript.end.is_refused:
                continue
            self.check_answers(transcript)

    def check_answers(self, transcript: Transcript) -> None:
        """Compare a request's answers with those that it gets alone."""
        request = transcript.request
        if isinstance(request.task, EmbedTask):
            if transcript.embedding is not None:
                vector = vector_of(request.inputs.prompt_token_ids)
                assert transcript.embedding.vector == (scale_to_one(vector) if request.task.normalize else vector)
            return
        if transcript.start is None:
            return  # nothing was told of it
        solo = solo_answers(request, max_model_len=self.max_model_len, vocab_size=self.executor.vocab_size)
        for child, answer in zip(transcript.children, solo, strict=True):
            where = f"request {request.request_id}"
            assert child.token_ids == answer.token_ids[: len(child.token_ids)], where
            has_grammar = request.task.grammar is not None and child.token_ids == answer.token_ids
            if has_grammar or child.finish_reason is FinishReason.LENGTH or child.stop_reason is not None:
                assert (child.token_ids, child.finish_reason, child.stop_reason) == (
                    answer.token_ids,
                    answer.finish_reason,
                    answer.stop_reason,
                ), where
            if request.task.sampling.num_logprobs is not None:
                assert [entry.token_id for entry in child.logprobs] == child.token_ids, where
        if transcript.start is not None and request.task.sampling.num_prompt_logprobs is not None:
            told = [entry.token_id for entry in transcript.start.prompt_logprobs]
            assert told == request.inputs.prompt_token_ids[1:], f"request {request.request_id}: prompt logprobs"

    def check_complete(self, request_id: int) -> None:
        """Every child of the request ended by itself, as it would alone."""
        transcript = self[request_id]
        assert transcript.end is not None
        assert transcript.end.error is None
        solo = solo_answers(transcript.request, max_model_len=self.max_model_len, vocab_size=self.executor.vocab_size)
        for child, answer in zip(transcript.children, solo, strict=True):
            assert (child.token_ids, child.finish_reason, child.stop_reason) == (
                answer.token_ids,
                answer.finish_reason,
                answer.stop_reason,
            )

    def _execute(self) -> None:
        """Hand over the masks that there are, and run the steps that need not wait."""
        self._take_masks()
        while orders := self.engine.grammars.take_successor_orders():
            for grammar in orders:
                self.engine.grammars.succeed(grammar, grammar.make_successor())
            self._take_masks()
        while self._sent:
            step = self._sent[0]
            masks_of_step = self._masks.pop(step.step_id, None)
            if masks_of_step is None and any(row.is_masked for row in step.rows):
                break
            self._sent.popleft()
            rows = [] if masks_of_step is None else masks_of_step.rows
            self.results.append(self._run_step(step, {row.row_id: row.masks for row in rows}))
        assert self.results or not self._sent, "a step waits for masks, and nothing is before it"

    def _take_masks(self) -> None:
        for masks in self.engine.take_masks():
            assert masks.step_id not in self._masks, "masks that were sent before"
            self._masks[masks.step_id] = masks

    def _run_step(self, step: ExecuteStep, masks: dict[int, bytes]) -> StepResult:
        return self.executor.execute(step, masks)

    def _exchange_grammars(self) -> None:
        while (order := self.engine.grammars.take_order(Lane.QUICK)) is not None:
            self.orders.append(order)
        if not self.delays_grammars:
            self.compile()

    def _drop_steps(self) -> None:
        self.results.clear()
        self._sent.clear()
        self._masks.clear()

    def _check_steps_in_flight(self) -> None:
        if self._pp == 1:
            return
        num_in_flight = len(self.results) + len(self._sent)
        assert num_in_flight <= self._pp
        in_flight = self.steps[-num_in_flight:]
        row_ids = [row.row_id for step in in_flight for row in step.rows]
        assert len(row_ids) == len(set(row_ids)), "a row is in two steps at once"

    def _running_keys(self) -> set[tuple[ClientId, int]]:
        return {child.request.key for child in self.engine._scheduler.running}

    def _check_invariants(self) -> None:
        if self.checks_invariants:
            self.engine.check_invariants()
            assert self.engine.stats.num_filled_slots == self._count_filled_slots()

    def _count_filled_slots(self) -> int:
        """Slots that a token's KV is written to, counted one by one."""
        block_size = self.engine._cache.block_size
        return len(
            {
                (child.block_ids[position // block_size], position % block_size)
                for child in self.engine._scheduler.running
                for position in range(child.num_computed_tokens)
            }
        )

    def _collect_one(self, client: ClientId, outputs: StepOutputs) -> None:
        assert outputs.stats is not None
        for request_id in outputs.accepted:
            transcript = self.transcripts[client, request_id]
            assert not transcript.is_accepted
            transcript.is_accepted = True
        for request_id in outputs.scheduled:
            transcript = self.transcripts[client, request_id]
            assert transcript.is_accepted
            assert not transcript.is_scheduled, "told once"
            transcript.is_scheduled = True
        for start in outputs.starts:
            transcript = self.transcripts[client, start.request_id]
            assert transcript.is_accepted
            assert transcript.start is None
            transcript.start = start
        for delta in outputs.deltas:
            self._collect_delta(self.transcripts[client, delta.request_id], delta)
        for embedding in outputs.embeddings:
            transcript = self.transcripts[client, embedding.request_id]
            assert isinstance(transcript.request.task, EmbedTask)
            assert transcript.is_scheduled
            assert transcript.embedding is transcript.end is None
            transcript.embedding = embedding
        for end in outputs.ends:
            transcript = self.transcripts[client, end.request_id]
            assert transcript.end is None, "a second terminal message"
            assert transcript.is_accepted != end.is_refused
            transcript.end = end
            if end.error is None and transcript.start is not None:
                assert all(child.finish_reason is not None for child in transcript.children)

    def _collect_delta(self, transcript: Transcript, delta: TokenDelta) -> None:
        assert transcript.start is not None, "a delta before the start"
        assert transcript.is_scheduled or not delta.token_ids, "tokens of a step that clients don't know of"
        assert transcript.end is None, "a delta after the end"
        child = transcript.children[delta.child]
        assert child.finish_reason is None, "a delta after the child's end"
        assert delta.first_index == len(child.token_ids), "tokens were lost or sent twice"
        assert transcript.entry.record(delta) == delta, "the journal takes up all that is told, as it is"
        child.token_ids += delta.token_ids
        child.logprobs += delta.logprobs
        child.finish_reason = delta.finish_reason
        child.stop_reason = delta.stop_reason
