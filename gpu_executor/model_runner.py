"""One step on one device: ExecuteStep -> batch -> forward -> logits -> tokens -> StepResult."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor

from pagewire.ipc.errors import EngineError, ErrorInfo
from pagewire.ipc.outputs import TokenLogprobs
from pagewire.ipc.steps import ExecuteStep, RowResult, ScheduledRow, StepResult

from .batch.input_batch import InputBatch, PromptSpan, StepInputs
from .batch.kv_cache import KVCache
from .batch.step_plan import StepPlan
from .models.base import Model
from .sampling.draw import Draw
from .sampling.sampler import Sampler

# Rows of logits that exist at once for prompt logprobs: a chunk of 512 positions over a vocabulary of 150,000 would
# take 300 MiB in one piece.
PROMPT_LOGPROBS_ROWS = 64


class ModelRunner:
    """Runs steps, in the order they come.

    Args:
        model: loaded.
        kv_cache: the pool that block ids point into.
        batch: the rows held.
        sampler: draws the tokens.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        model: Model,
        kv_cache: KVCache,
        batch: InputBatch,
        sampler: Sampler,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._batch = batch
        self._sampler = sampler
        self._clock = clock

    @property
    def model(self) -> Model:
        """The model."""
        return self._model

    @property
    def sampler(self) -> Sampler:
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

    @torch.inference_mode()
    def execute(self, step: ExecuteStep) -> StepResult:
        """Run one step.

        A row that fails its checks, or has no token left to draw, is reported by its `RowResult.error` and touches no
        other row. Any exception is a bug or a failing device: the rows' state is then unknown, and the executor must
        end.
        """
        started = self._clock()
        plan = self._batch.plan(step)
        self._batch.remove(step.removed_row_ids)
        self._kv_cache.copy_blocks(step.block_copies)
        self._batch.add(plan.new_rows.values())
        results = self._compute(plan) if plan.rows else {}
        return StepResult(
            executor_epoch=step.executor_epoch,
            step_id=step.step_id,
            rows=_with_errors(step, results, plan.errors) if plan.errors else list(results.values()),
            step_s=self._clock() - started,
        )

    def _compute(self, plan: StepPlan) -> dict[int, RowResult]:
        """Run the model over the plan's rows; return the results of those that have one, in order."""
        rows = plan.rows
        inputs = self._batch.build_inputs(rows)
        hidden = self._model.forward(inputs.input_ids, inputs.metadata, self._kv_cache.layers)
        # Prompt logprobs first: they are of the prompt, and a row's draw appends to its tokens.
        of_prompt = {
            rows[span.row].row_id: self._prompt_logprobs(hidden, rows[span.row].row_id, span)
            for span in inputs.prompt_spans
        }
        drawn = self._draw(hidden, rows, inputs)
        if not of_prompt:
            return drawn
        return {
            row.row_id: _joined(of_prompt.get(row.row_id), drawn.get(row.row_id))
            for row in rows
            if row.row_id in of_prompt or row.row_id in drawn
        }

    def _draw(self, hidden: Tensor, rows: Sequence[ScheduledRow], inputs: StepInputs) -> dict[int, RowResult]:
        """Draw for the rows that ask for it and append each row's token to it; return their results, in order."""
        drawing = [rows[i] for i in inputs.draw_rows]
        if not drawing:
            return {}
        draws = [self._draw_of(row) for row in drawing]
        if len(drawing) != hidden.shape[0]:  # otherwise each token is a row that draws
            hidden = hidden[inputs.metadata.logits_indices[: len(drawing)]]
        kept_rows = [i for i, draw in enumerate(draws) if draw.row_sampling.needs_logits]
        output = self._model.choose_tokens(hidden, self._sampler.vocab_size, kept_rows)
        results = {}
        for row, drawn in zip(drawing, self._sampler.sample(output, draws), strict=True):
            if drawn.error is None:
                self._batch.append_token(row.row_id, drawn.token_ids[0])
            results[row.row_id] = RowResult(
                row_id=row.row_id, token_ids=drawn.token_ids, logprobs=drawn.logprobs, error=drawn.error
            )
        return results

    def _draw_of(self, row: ScheduledRow) -> Draw:
        row_sampling = self._batch.sampling_of(row.row_id)
        history = self._batch.history_of(row.row_id) if row_sampling.needs_logits else None
        return Draw(row_sampling, history, row.num_draws)

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


def _joined(of_prompt: RowResult | None, drawn: RowResult | None) -> RowResult:
    """Return what a row got of both kinds; an error in its prompt stands alone."""
    if of_prompt is None or drawn is None:
        result = of_prompt or drawn
        assert result is not None, "a row is listed for one of the two"
        return result
    if of_prompt.error is not None:
        return of_prompt
    return msgspec.structs.replace(of_prompt, token_ids=drawn.token_ids, logprobs=drawn.logprobs, error=drawn.error)


def _with_errors(step: ExecuteStep, results: dict[int, RowResult], errors: dict[int, ErrorInfo]) -> list[RowResult]:
    """Return all results in the order of the step's rows, those of the rows that failed their checks among them."""
    results = results | {row_id: RowResult(row_id=row_id, error=error) for row_id, error in errors.items()}
    # A new row that failed may not be among the scheduled ones.
    order = dict.fromkeys([*(row.row_id for row in step.rows), *(row.row_id for row in step.new_rows)])
    return [results[row_id] for row_id in order if row_id in results]
