"""One step on one device: ExecuteStep -> batch -> forward -> logits -> tokens -> StepResult.

A CPU is done with a step when its launch returns. A GPU is not: the host goes on to launch the next step, whose unknown
tokens the device takes from where the draws of this one leave them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from pagewire.ipc.errors import EngineError
from pagewire.ipc.outputs import TokenLogprobs
from pagewire.ipc.steps import ExecuteStep, RowResult, ScheduledRow, StepResult

from .adapters.store import AdapterStore
from .batch.graphed_forward import GraphedForward
from .batch.input_batch import InputBatch
from .batch.kv_cache import KVCache
from .batch.step_inputs import PromptSpan, StepInputs
from .batch.step_plan import StepPlan
from .core_inbox import MaskSource
from .devices.base import Device, Marker
from .models.base import Model
from .parallel.stage_link import StageLink
from .pooling import Pooler
from .sampling.draw import Drawn
from .sampling.pending import Drawing, FinishedDraws, PendingDraws
from .sampling.token_masks import FetchMasks, TokenMask, masks_of_draws
from .speculation.acceptance import accept_all
from .speculation.proposer import Proposer, RowTokens
from .step_in_flight import FinishedStep, LaunchedStep, StepInFlight, StepTimes, merge_results

# Rows of logits that exist at once for prompt logprobs: a chunk of 512 positions over a vocabulary of 150,000 would
# take 300 MiB in one piece.
PROMPT_LOGPROBS_ROWS = 64


class ModelRunner:
    """Runs steps, in the order they come.

    Args:
        model: loaded.
        kv_cache: the pool that block ids point into.
        batch: the rows held; says whether draws are made on the device, and so whether steps are launched ahead.
        sampler: draws the tokens.
        graphs: run decodes, if there are any.
        link: to the pipeline stages before and after; None if there are none.
        proposer: guesses what rows draw next; None: nobody does, or another rank that is to tell it.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        model: Model,
        kv_cache: KVCache,
        batch: InputBatch,
        sampler: Drawing,
        graphs: GraphedForward | None = None,
        link: StageLink | None = None,
        proposer: Proposer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._batch = batch
        self._sampler = sampler
        self._graphs = graphs
        self._link = link
        self._proposer = proposer
        self._waited_s = 0.0  # for the stage before, in the step that is being computed
        self._clock = clock
        self._device = batch.drawing_device
        self._pooler = Pooler(self._device)
        self.mask_source: MaskSource | None = None  # set by whoever holds the conversation with the core
        self.adapters: AdapterStore | None = None  # set once the model is loaded, where adapters are served
        self._in_flight: deque[LaunchedStep] = deque()  # whose draws the host has not seen
        self._last_end: Marker | None = None

    @property
    def model(self) -> Model:
        """The model."""
        return self._model

    @property
    def sampler(self) -> Drawing:
        """What draws the tokens."""
        return self._sampler

    @property
    def batch(self) -> InputBatch:
        """The rows held."""
        return self._batch

    @property
    def kv_cache(self) -> KVCache:
        """The paged tensors."""
        return self._kv_cache

    @property
    def link(self) -> StageLink | None:
        """What joins this pipeline stage to others."""
        return self._link

    @property
    def graphs(self) -> GraphedForward | None:
        """What runs decodes as one graph."""
        return self._graphs

    @property
    def launches_ahead(self) -> bool:
        """Whether `launch` returns before the step is done."""
        return self._device is not None

    def execute(self, step: ExecuteStep) -> StepResult:
        """Run one step: `launch`, and `finish` what it returns."""
        return self.launch(step).finish()

    @torch.inference_mode()
    def launch(self, step: ExecuteStep) -> StepInFlight:
        """Launch one step; on a CPU it is done then.

        A row that fails its checks, or has no token left to draw, is reported by its `RowResult.error` and touches no
        other row; it fails alike on all ranks. Any exception, here or when the step is finished, is a bug or a failing
        device: the rows' state is then unknown, and the executor must end.
        """
        started, self._waited_s = self._clock(), 0.0
        self._settle_checks_of(step.rows)
        plan = self._batch.plan(step)
        if self.adapters is not None:
            plan.fail(self.adapters.follow(step))
        self._batch.remove(step.removed_row_ids)
        self._pooler.forget(step.removed_row_ids)
        if self._proposer is not None:
            self._proposer.forget(step.removed_row_ids)
        self._batch.add(plan.new_rows.values())
        inputs = self._batch.build_inputs(plan.rows) if plan.rows else None
        if inputs is not None and self.adapters is not None:
            inputs = inputs.with_adapters(self.adapters.tokens_of(plan.rows))
        # Launched behind the upload of the inputs, which it has no part in, and before the step's first write.
        self._kv_cache.copy_blocks(step.block_copies, self._device)
        if self._proposer is not None:
            self._proposer.follow(step, plan)
        if inputs is not None and self._device is not None:
            return self._launch_on(self._device, step, plan, inputs)
        of_prompt: dict[int, RowResult] = {}
        drawn: dict[int, RowResult] = {}
        if inputs is not None:
            of_prompt, drawn = self._compute(step.step_id, plan.rows, inputs)
        rows = merge_results(step, drawn, of_prompt, plan.errors)
        step_s = self._clock() - started - self._waited_s
        return FinishedStep(
            StepResult(
                executor_epoch=step.executor_epoch, step_id=step.step_id, rows=rows, step_s=step_s, device_s=step_s
            )
        )

    def forget_last_step(self) -> None:
        """Note that the device is put to other work now: its next step does not come late because of the last one."""
        self._last_end = None

    def _compute(
        self, step_id: int, rows: Sequence[ScheduledRow], inputs: StepInputs
    ) -> tuple[dict[int, RowResult], dict[int, RowResult]]:
        """Run a step whose draws are made by the host, if here; return what prompts gave and draws, by row id."""
        hidden, logits = self._forward(inputs, self._receive(inputs))
        # Prompt logprobs first: they are of the prompt, and a row's draw appends to its tokens.
        of_prompt = self._all_prompt_logprobs(hidden, rows, inputs)
        of_prompt |= self._pooler.pool(hidden, inputs.pool_spans).collect()
        drawing = [rows[i] for i in inputs.draw_rows]
        draws = self._begin_draws(step_id, hidden, logits, drawing, inputs).collect()
        drawn: dict[int, Drawn] = {}
        for row, of_row in zip(drawing, accept_all(drawing, draws), strict=True):
            # Of several children, the row itself takes the first one's token.
            for token_id in of_row.token_ids if row.num_draws == 1 else of_row.token_ids[:1]:
                self._batch.append_token(row.row_id, token_id)
            drawn[row.row_id] = of_row
        guesses = self._propose(drawing, drawn)
        results = {
            row_id: RowResult(
                row_id=row_id,
                token_ids=of_row.token_ids,
                logprobs=of_row.logprobs,
                error=of_row.error,
                next_draft_ids=guesses.get(row_id, []),
            )
            for row_id, of_row in drawn.items()
        }
        return of_prompt, results

    def _propose(self, rows: Sequence[ScheduledRow], drawn: Mapping[int, Drawn]) -> dict[int, list[int]]:
        """Return what is guessed to follow on what the rows have drawn, by row id."""
        if self._proposer is None:
            return {}
        batch = self._batch
        tokens = [
            RowTokens(row_id, *batch.history_of(row_id), batch.salt_of(row_id), row.num_wanted_drafts)
            for row in rows
            if row.num_wanted_drafts and drawn[row_id := row.row_id].error is None
        ]
        return dict(zip((row.row_id for row in tokens), self._proposer.propose(tokens), strict=True))

    def _launch_on(self, device: Device, step: ExecuteStep, plan: StepPlan, inputs: StepInputs) -> LaunchedStep:
        """Launch a step whose draws are made on the device, if here."""
        rows = plan.rows
        stream = self._receive(inputs)
        start = inputs.start if stream is None else device.mark()
        hidden, logits = self._forward(inputs, stream)
        of_prompt = self._all_prompt_logprobs(hidden, rows, inputs)
        vectors = self._pooler.pool(hidden, inputs.pool_spans)
        drawing = [rows[i] for i in inputs.draw_rows]
        while self._in_flight and self._in_flight[0].is_settled:
            self._in_flight.popleft()
        if self._in_flight and self._batch.lacks_tokens([row.row_id for row in drawing]):
            # The device is at this step's forward, or has it before it, while the host waits for the last step's draws.
            self._settle_all()
        pending = self._begin_draws(step.step_id, hidden, logits, drawing, inputs)
        assert inputs.draw_places is not None, "the batch draws on the device"
        reserved = self._batch.reserve_tokens(drawing, inputs.draw_places, pending.token_ids)
        launched = LaunchedStep(
            step=step,
            batch=self._batch,
            times=self._time_step(device, plan, start, had_to_wait=stream is not None),
            errors=plan.errors,
            of_prompt=of_prompt,
            vectors=vectors,
            drawing=drawing,
            reserved=reserved,
            pending=pending,
            proposer=self._proposer,
        )
        self._in_flight.append(launched)
        if drawing and pending.token_ids is None:  # the device has no tokens for the next step to take
            self._settle_all()
        return launched

    def _settle_checks_of(self, rows: Sequence[ScheduledRow]) -> None:
        """Give rows the tokens of steps in flight that check drafts of them.

        The core schedules a row again when it has the step's result; that may be another rank's than this one.
        """
        checked = [launched.checked_row_ids for launched in self._in_flight]
        if any(checked) and any(row.row_id in row_ids for row_ids in checked for row in rows):
            self._settle_all()

    def _settle_all(self) -> None:
        while self._in_flight:
            self._in_flight.popleft().settle()

    def _time_step(self, device: Device, plan: StepPlan, start: Marker | None, *, had_to_wait: bool) -> StepTimes:
        assert start is not None, "the batch draws on the device"
        end = device.mark()
        # With new rows alone, the device may have idled because there was nothing to do; or the stage before was late.
        is_measured = not had_to_wait and any(row.row_id not in plan.new_rows for row in plan.rows)
        times = StepTimes(start, end, idle_since=self._last_end if is_measured else None)
        self._last_end = end
        return times

    def _receive(self, inputs: StepInputs) -> Tensor | None:
        """Return the stream of the stage before; None on the first."""
        if self._link is None or self._model.stage.is_first:
            return None
        started = self._clock()
        stream = self._link.receive(inputs.input_ids.shape[0])
        self._waited_s += self._clock() - started
        return stream

    def _forward(self, inputs: StepInputs, stream: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states of all tokens, and the logits of all rows if a graph has computed them.

        What is not the last stage's goes on to the next one.
        """
        if self._graphs is not None and inputs.is_decode and not inputs.metadata.adapters:
            replayed = self._graphs.run(inputs)
            if replayed is not None:
                return replayed
        hidden = self._model.forward(inputs.input_ids, inputs.metadata, self._kv_cache.layers, stream)
        if self._link is not None and not self._model.stage.is_last:
            self._link.send(hidden)
        return hidden, None

    def _begin_draws(
        self, step_id: int, hidden: Tensor, logits: Tensor | None, drawing: Sequence[ScheduledRow], inputs: StepInputs
    ) -> PendingDraws:
        """Draw for the rows that ask for it."""
        if not drawing:
            return FinishedDraws([])
        draws = self._batch.draws_of(drawing)
        if len(draws) != hidden.shape[0]:  # otherwise each token is drawn behind
            hidden = hidden[inputs.metadata.logits_indices[: len(draws)]]
        fetch_masks: FetchMasks | None = None
        if any(draw.is_masked for draw in draws):
            assert self.mask_source is not None, "somebody listens to the core"
            fetch_masks = partial(self.fetch_masks, self.mask_source, step_id, drawing)
        return self._sampler.begin(self._model, hidden, draws, logits, fetch_masks)

    def fetch_masks(
        self, source: MaskSource, step_id: int, drawing: Sequence[ScheduledRow]
    ) -> Sequence[TokenMask | None]:
        """Wait for a step's masks, and return them by draw."""
        started = self._clock()
        masks = source.wait_for_masks(step_id)
        self._waited_s += self._clock() - started  # for the core: the step itself takes no longer for it
        return masks_of_draws(drawing, masks, self._sampler.vocab_size)

    def _all_prompt_logprobs(
        self, hidden: Tensor, rows: Sequence[ScheduledRow], inputs: StepInputs
    ) -> dict[int, RowResult]:
        if not inputs.prompt_spans:
            return {}
        return {
            rows[span.row].row_id: self._prompt_logprobs(hidden, rows[span.row].row_id, span)
            for span in inputs.prompt_spans
        }

    def _prompt_logprobs(self, hidden: Tensor, row_id: int, span: PromptSpan) -> RowResult:
        """Return the logprobs of a span's prompt tokens, or why there are none."""
        num_top = self._batch.sampling_of(row_id).sampling.num_prompt_logprobs
        assert num_top is not None, "a span is made for rows that ask for prompt logprobs"
        logprobs: list[TokenLogprobs] = []
        for offset in range(0, len(span.token_ids), PROMPT_LOGPROBS_ROWS):
            token_ids = span.token_ids[offset : offset + PROMPT_LOGPROBS_ROWS]
            first = span.first_token + offset
            logits = self._model.compute_logits(hidden[first : first + len(token_ids)])
            try:
                logprobs += self._sampler.prompt_logprobs(logits, token_ids, num_top)
            except EngineError as exc:
                return RowResult(row_id=row_id, error=exc.to_info())
        return RowResult(row_id=row_id, prompt_logprobs=logprobs, prompt_logprobs_start=span.start)
