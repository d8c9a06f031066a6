"""The engine core's whole state behind one door: messages in, steps and outputs out, no I/O and no clock."""

from __future__ import annotations

from itertools import chain

from pagewire.ipc.channels import ClientId
from pagewire.ipc.config import EngineConfig, StepLimits
from pagewire.ipc.errors import EngineError, ErrorInfo, InvalidRequest, RequestError
from pagewire.ipc.outputs import FinishReason, StepOutputs, StepStats, UtilityResult
from pagewire.ipc.requests import AddRequest, CallUtility
from pagewire.ipc.steps import ExecuteStep, SamplingMasks, StepResult
from pagewire.ipc.validation import RequestLimits, validate_request

from .adapters.registry import AdapterRegistry
from .admission import Admission
from .clients.outbox import Outbox
from .clients.utilities import Utilities
from .drafts.draft_model_policy import make_draft_policy
from .faults.failed_rows import void_readers_of_failed
from .faults.suspects import Suspects
from .grammar.gate import GrammarGate
from .grammar.grammars import Grammars
from .invariants import check_accounting
from .kv.cache_manager import CacheManager
from .kv.prefix_cache import PrefixCache
from .output_processor import OutputProcessor
from .request import Request
from .request_ends import RequestEnds
from .rest.rest import Rest
from .scheduled import SchedulerOutput
from .scheduler import Scheduler
from .steps.builder import StepBuilder
from .steps.costs import StepCosts
from .steps.in_flight import StepInFlight, StepsInFlight
from .steps.times import StepTimes
from .steps.totals import StepTotals


class Engine(RequestEnds):
    """Requests, scheduler and KV accounting as one state machine.

    Time and results are given to it, so that a trace of calls replays exactly. The loop around it owns the sockets.

    Args:
        config: as the engine was started.
        num_blocks: KV blocks that every executor allocates.
        step_limits: how large a step may be on the executors' device.
        limits: bounds of a valid request; its max_model_len was settled by `fit_max_model_len`, so that any request
            can finish alone.
        executor_epoch: of the first executor; goes into every step, and results of another epoch are dropped.
        adapters: that requests may ask for; None: those of the start.

    Attributes:
        grammars: whose orders somebody has to carry out.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        num_blocks: int,
        step_limits: StepLimits,
        limits: RequestLimits,
        executor_epoch: int,
        adapters: AdapterRegistry | None = None,
    ) -> None:
        self._limits = limits
        self._adapters = AdapterRegistry(config.lora) if adapters is None else adapters
        self._executor_epoch = executor_epoch
        self._has_priority = config.scheduler.scheduling_policy == "priority"
        self._in_flight = StepsInFlight(config.max_steps_in_flight)
        num_stages = config.parallel.pipeline_parallel_size
        cache = config.cache
        self._cache = CacheManager(num_blocks, cache.block_size, enable_prefix_caching=cache.enable_prefix_caching)
        self._drafts = make_draft_policy(config.speculative, runs_ahead=config.runs_ahead)
        self._scheduler = Scheduler(
            step_limits,
            self._cache,
            target_itl_s=config.scheduler.target_itl_ms / 1000,
            drafts=self._drafts,
            num_micro_batches=config.max_steps_in_flight if num_stages > 1 else 1,
            long_prefill_token_threshold=config.scheduler.long_prefill_token_threshold,
        )
        self._admission = Admission(config.scheduler, self._scheduler.waiting)
        self._costs = StepCosts()
        self._step_times = StepTimes(num_stages)
        self._totals = StepTotals()
        self._outbox = Outbox()
        self._processor = OutputProcessor(self._scheduler, self._cache, self._outbox, self._drafts)
        self._rest = Rest(self._scheduler, self._cache, self._processor, on_change=self._note_news)
        self._step_builder = StepBuilder(executor_epoch, tells_draws=num_stages > 1)
        self._utilities = Utilities(
            self._cache,
            self._processor,
            self._admission,
            self._rest,
            stats=lambda: self.stats,
            check_invariants=self.check_invariants,
        )
        self._suspects = Suspects(self._scheduler, self._processor, self._rest)
        is_open = config.structured_outputs.structured_outputs_backend != "none"
        gate = GrammarGate(is_open=is_open)
        self.grammars = Grammars(self._processor, gate, limits.vocab_size, on_change=self._note_news)
        self._is_serving = True
        self._num_executor_restarts = 0
        self._has_news = False  # whether anything happened since nothing could be scheduled
        self._num_requests = 0

    def add_request(self, client: ClientId, request: AddRequest, now: float) -> None:
        """Accept a request, or refuse it; either is told with the next outputs.

        Args:
            client: who asks; its request ids are its own.
            request: as it came from the wire, not checked yet.
            now: seconds on the loop's monotonic clock.
        """
        try:
            validate_request(request, self._limits)
            adapter_id = self._adapters.find(request.adapter, request.adapter_digest)
            self.grammars.check(request)
            if (client, request.request_id) in self._processor.requests:
                raise InvalidRequest(
                    f"request_id {request.request_id} is in use on this connection; give each request its own.",
                    param="request_id",
                )
            if not request.is_readded:
                self._admission.check(len(request.inputs.prompt_token_ids), now, self.grammars.num_held)
        except RequestError as exc:
            self._outbox.refuse(client, request.request_id, exc.to_info())
            return
        self._num_requests += 1
        accepted = Request(
            client,
            request,
            arrival=self._num_requests,
            now=now,
            max_model_len=self._limits.max_model_len,
            has_priority=self._has_priority,
            adapter_id=adapter_id,
            adapter_digest=self._adapters.digest_of(adapter_id),
        )
        self._cache.prepare(accepted)
        self._suspects.accept(accepted, request.num_deaths)
        self.grammars.admit(accepted)
        self._has_news = True

    def take_masks(self) -> list[SamplingMasks]:
        """Return the masks that can be made by now, of steps that were returned by `schedule`; each once."""
        return [
            SamplingMasks(executor_epoch=self._executor_epoch, step_id=step_id, rows=rows)
            for step_id, rows in self.grammars.take_masks(self._in_flight)
        ]

    def has_work(self) -> bool:
        """Whether anything waits, runs or is in flight."""
        return bool(self._processor.requests or self._in_flight)

    def live_clients(self) -> set[ClientId]:
        """Return the clients that wait for a `RequestEnd`."""
        return {client for client, _ in self._processor.requests}

    def can_schedule(self) -> bool:
        """Whether `schedule` is worth a call: room for a step in flight, and something that may be able to run."""
        has_room = self._is_serving and self._in_flight.has_room
        return self._has_news and has_room and bool(self._processor.requests) and self._rest.lets_run()

    def schedule(self, now: float) -> ExecuteStep | None:
        """Decide the next step and count it as in flight.

        Args:
            now: seconds on the loop's monotonic clock.

        Returns:
            The message for the executor, or None if nothing can run before a step in flight is back.
        """
        if not self.can_schedule():
            return None
        self._suspects.isolate()
        output = self._schedule_something(now)
        is_waiting = bool(self._scheduler.waiting.num_new_requests)
        self._admission.rate.observe(output.num_new_requests, output.num_new_tokens, is_waiting=is_waiting, now=now)
        if not output.scheduled:
            self._has_news = False
            return None
        if self._scheduler.waiting:
            self._totals.leave_waiting(len(output.scheduled), self._scheduler.max_num_seqs)
        self._outbox.schedule(output.beginners)
        retired = self._scheduler.retired_row_ids
        self._scheduler.retired_row_ids = []
        step = self._step_builder.build(output, retired)
        in_flight = StepInFlight(step.step_id, output.scheduled, output.num_scheduled_tokens, output.shape, now)
        self._in_flight.add(in_flight)
        self.grammars.note_step(in_flight)
        return step

    def apply(self, result: StepResult, now: float) -> None:
        """Commit what a step brought; one of another epoch is dropped.

        Raises:
            ProtocolError: the executor answered another step than the oldest in flight, or not all of it.
        """
        if result.executor_epoch != self._executor_epoch:
            return
        step = self._in_flight.oldest(result.step_id)
        void_readers_of_failed(step, result, self._in_flight, self._scheduler, self._cache)
        # Whoever waits hears of every step: its figures are counted once each, and silence means a stopped core.
        for client in self.live_clients():
            self._outbox.step(client)
        self._processor.apply(step.scheduled, result.rows, now)
        self._in_flight.drop_oldest()
        self._suspects.clear(step.scheduled)
        self._totals.finish(result, step.num_scheduled_tokens)
        step_s = self._step_times.measure(result, step.sent_s, now)
        self._costs.observe(step.shape, step_s)
        self._drafts.observe_step(step.shape, step_s)
        self._has_news = True

    def lose_executor(self, cause: str, *, was_killed: bool = False) -> bool:
        """Note that the executor is gone, with its KV and the steps in flight. Nothing is scheduled until `resume`.

        What ran waits again, to be recomputed. A request proven to end executors fails; returns whether one was.

        Args:
            cause: what ended the executor, for the text of that failure.
            was_killed: it was killed or hung, which may have come from outside.
        """
        self._is_serving = False
        self._num_executor_restarts += 1
        in_flight = {item.child.request for item in self._in_flight.scheduled()}
        culprit = self._suspects.count_death(in_flight, was_killed=was_killed)
        self._in_flight.clear()
        self.grammars.forget_steps()
        self._scheduler.start_over()
        self._cache.reset_prefix_cache()
        for child in chain.from_iterable(request.children.values() for request in self._processor.requests.values()):
            child.num_steps_in_flight = child.num_pending_tokens = child.num_drafts_in_flight = 0
            child.awaits_guesses = False
        if culprit is not None:
            self._suspects.convict(culprit, cause)
        return culprit is not None

    def resume(self, executor_epoch: int) -> None:
        """Schedule for another executor, which holds nothing yet."""
        self._executor_epoch = executor_epoch
        self._step_builder.start_over(executor_epoch)
        self._is_serving = True
        self._has_news = True

    @property
    def rest(self) -> Rest:
        """Whether the engine rests."""
        return self._rest

    @property
    def is_quiet(self) -> bool:
        """Whether nothing runs, and nothing will while the engine rests."""
        return not self._in_flight and (not self._processor.requests or not self._rest.lets_run())

    def suspend(self) -> None:
        """Note that the executor is gone by order, with its KV. What ran waits again; nothing may be in flight."""
        assert not self._in_flight
        self._is_serving = False
        self._scheduler.start_over()
        self._cache.reset_prefix_cache()

    @property
    def is_serving(self) -> bool:
        """Whether there is an executor that takes steps."""
        return self._is_serving

    @property
    def prefix_cache(self) -> PrefixCache:
        """Which blocks can be found again."""
        return self._cache.prefix_cache

    def take_outputs(self) -> dict[ClientId, StepOutputs]:
        """Return one message for each client with anything to be told since the last call."""
        return self._outbox.take(self.stats) if self._outbox.has_news else {}

    def call_utility(self, client: ClientId, call: CallUtility) -> UtilityResult:
        """Answer a utility call; see `utilities` for the methods."""
        del client  # no utility answers two clients differently
        return self._utilities.call(call)

    def fail_all(self, error: ErrorInfo) -> None:
        """End every request with an error: the executor is gone for good."""
        self._in_flight.clear()
        for request in list(self._processor.requests.values()):
            self._processor.end_early(request, FinishReason.ERROR, error)

    @property
    def stats(self) -> StepStats:
        """The state now, and the counters since the start."""
        return self._totals.stats(
            self._scheduler,
            self._cache,
            self._processor,
            self._drafts.counts,
            num_executor_restarts=self._num_executor_restarts,
            is_serving=self._is_serving,
            rest=self._rest,
        )

    def check_invariants(self) -> None:
        """Assert that blocks, queues and requests agree. Costs O(blocks): for tests and debugging.

        Raises:
            AssertionError: naming what does not agree.
        """
        living = {key: request for key, request in self._processor.requests.items() if not request.is_held}
        check_accounting(living, self._scheduler, self._cache)

    def _note_news(self) -> None:
        self._has_news = True

    def _schedule_something(self, now: float) -> SchedulerOutput:
        """Schedule, and make sure of progress: with nothing in flight a step runs something, or a request fails."""
        output = self._scheduler.schedule(now, self._costs)
        while not output.scheduled and not self._in_flight and self._scheduler.can_go_on:
            if not output.has_preempted:
                self._fail_head()
            output = self._scheduler.schedule(now, self._costs)
        return output

    def _fail_head(self) -> None:
        head = self._scheduler.waiting.peek()
        assert head is not None, "running requests, and none of them can run"
        pool = self._cache.pool
        num_needed = -(-len(head.token_ids) // self._cache.block_size)
        error = EngineError(
            f"The request needs {num_needed} KV blocks and can't get them: {pool.num_free_blocks} of "
            f"{len(pool.blocks)} are free and nothing runs that could free more. "
            "Send a shorter prompt, or start with a larger pool."
        )
        self._processor.end_early(head.request, FinishReason.ERROR, error.to_info())
