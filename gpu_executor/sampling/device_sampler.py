"""From rows of logits to tokens where the logits are: nothing waits for the device until the draws are collected.

The host sends tables of parameters in one copy, which does not depend on what the device is still at, and gets tokens,
states and logprobs back in one. Greedy rows take two launches and no table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagewire.ipc.errors import EngineError, InvalidRequest
from pagewire.ipc.outputs import TokenLogprobs

from ..devices.base import Device, Download
from ..devices.packed import upload_together
from ..kernels.device_draws import NOTHING_TO_DRAW, OK, PenaltyTable
from ..kernels.device_sampling_ops import DeviceSamplingOps
from ..kernels.draw_arrays import DrawArrays
from ..kernels.sampling_ops import SamplingOps
from ..models.base import Model
from .device_reports import ReportPlan, ReportRequest
from .draw import Draw, Drawn, RowSampling
from .logprobs import LOGITS_NOT_FINITE
from .packed_results import PackedResults, Section
from .pending import PendingDraws
from .sampler import NOTHING_LEFT
from .step_tables import EditArrays, EditTensors, draw_arrays, slots_of
from .token_masks import FetchMasks, TokenMask


class DeviceSampler:
    """Draws tokens on the device.

    Args:
        vocab_size: ids that can be drawn, the tokenizer's size: logits from there on belong to rows that only pad the
            embedding, and count as -inf everywhere.
        ops: a backend that draws on the device.
        device: where it does.
    """

    def __init__(self, vocab_size: int, ops: SamplingOps, device: Device) -> None:
        assert isinstance(ops, DeviceSamplingOps), "the device's sampler is for backends that draw on the device"
        self._vocab_size = vocab_size
        self._ops = ops
        self._device = device
        self._last: _Step | None = None

    @property
    def vocab_size(self) -> int:
        """Ids that can be drawn."""
        return self._vocab_size

    def begin(
        self,
        model: Model,
        hidden: Tensor,
        draws: Sequence[Draw],
        logits: Tensor | None = None,
        fetch_masks: FetchMasks | None = None,
    ) -> PendingDraws:
        """See `Drawing.begin`; `logits` may be edited."""
        if logits is None:
            logits = model.compute_logits(hidden)
        assert logits.dtype == torch.float32, f"logits are float32, not {logits.dtype}"
        logits = logits[: len(draws)].contiguous()
        # The device is at the forward while the host waits.
        masks = None if fetch_masks is None else fetch_masks()
        step = self._lay_out(draws, logits.shape[1], masks)
        tables = _Tables.upload(step, self._device)
        results = PackedResults(step.sections(), self._device.torch_device)
        tokens, states, *reports = results.tensors

        raw_bests = self._ops.find_best_tokens(logits, self._vocab_size, with_groups=step.needs_groups)
        bests, reported, reported_bests = raw_bests, logits, raw_bests
        if tables.edits is not None:
            if tables.reported_rows is not None:  # logprobs are of the raw logits
                reported, reported_bests = logits[tables.reported_rows], raw_bests.select(tables.reported_rows)
            _edit(logits, self._vocab_size, tables.edits)
            if tables.penalties is not None:
                self._ops.penalize(logits, self._vocab_size, tables.penalties)
            bests = self._ops.update_best_tokens(logits, self._vocab_size, tables.edits.rows, raw_bests)
        best_values = self._ops.settle(raw_bests, bests, self._vocab_size, tokens, states)
        if step.draws is not None:
            table = step.draws.table(tables.draws)
            self._ops.draw_tokens(logits, self._vocab_size, bests, best_values, states, table, tokens)
        sorted_rows: dict[int, Download] = {}
        if len(step.reports):
            sorted_rows = step.reports.launch(
                self._ops, self._device, reported, reported_bests, tokens, tables.reports, reports
            )
        return _LaunchedDraws(step, results, self._device.download(results.buffer), sorted_rows)

    def _lay_out(self, draws: Sequence[Draw], row_stride: int, masks: Sequence[TokenMask | None] | None) -> _Step:
        """Lay out a step; most have the rows of the one before, whose parameters never change."""
        last = self._last
        if last is not None and masks is None and last.parameters == _parameters_of(draws):
            step = last.at(draws, row_stride)
        else:
            step = _Step.of(draws, masks, self._vocab_size, row_stride, self._ops.max_described_top)
        self._last = step if masks is None else None
        return step

    def prompt_logprobs(self, logits: Tensor, next_token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        """Return the logprob of each prompt token under the row before it; waits for the device.

        Args:
            logits: [num_rows, at least vocab_size], any float dtype.
            next_token_ids: one a row.
            num_top: alternatives to report per token; -1 for the whole vocabulary.

        Raises:
            EngineError: a row is NaN or infinite.
        """
        logits = logits.to(torch.float32).contiguous()
        num_rows = len(next_token_ids)
        plan = ReportPlan(
            [ReportRequest(row=row, slot=row, num_top=num_top) for row in range(num_rows)],
            self._vocab_size,
            self._ops.max_described_top,
        )
        tokens, *table = upload_together(self._device, [np.array(next_token_ids, dtype=np.int64), *plan.arrays()])
        sections = [Section(torch.int64, (num_rows,)), Section(torch.int64, (num_rows,)), *plan.sections()]
        results = PackedResults(sections, self._device.torch_device)
        best_ids, states, *reports = results.tensors
        bests = self._ops.find_best_tokens(logits, self._vocab_size, with_groups=plan.max_top > 0)
        self._ops.settle(bests, bests, self._vocab_size, best_ids, states)
        sorted_rows = plan.launch(self._ops, self._device, logits, bests, tokens, table, reports)
        _, found_states, *found = results.split(self._device.download(results.buffer).array())
        if (found_states != OK).any():
            raise EngineError(LOGITS_NOT_FINITE)
        return plan.read(np.array(next_token_ids, dtype=np.int64), found, sorted_rows)


class _Step(NamedTuple):
    """What the host knows of a step's draws."""

    parameters: list[tuple[RowSampling, int]]
    slots: list[Sequence[int]]
    num_draws: list[int]
    num_slots: int
    draws: DrawArrays | None
    edits: EditArrays | None
    reports: ReportPlan

    @classmethod
    def of(
        cls,
        draws: Sequence[Draw],
        masks: Sequence[TokenMask | None] | None,
        vocab_size: int,
        row_stride: int,
        max_described_top: int,
    ) -> _Step:
        slots, num_slots = slots_of(draws)
        requests = [
            ReportRequest(row=row, slot=slot, num_top=draw.row_sampling.sampling.num_logprobs)
            for row, draw in enumerate(draws)
            if draw.row_sampling.sampling.num_logprobs is not None
            for slot in slots[row]
        ]
        return cls(
            parameters=_parameters_of(draws),
            slots=slots,
            num_draws=[draw.num_draws for draw in draws],
            num_slots=num_slots,
            draws=draw_arrays(draws, slots, vocab_size),
            edits=EditArrays.of(draws, row_stride, masks),
            reports=ReportPlan(requests, vocab_size, max_described_top),
        )

    def at(self, draws: Sequence[Draw], row_stride: int) -> _Step:
        """Return the step of the same rows' next draws."""
        random, edits = self.draws, self.edits
        if random is not None:
            # Rows that no draw is left to chance of may come without a history; their number is not read.
            num_outputs = [0 if draw.history is None else draw.history.num_output_tokens for draw in draws]
            random = random.at(np.array(num_outputs, dtype=np.int64))
        if edits is not None:
            edits = edits.at(draws) if edits.is_constant else EditArrays.of(draws, row_stride)
        return self._replace(draws=random, edits=edits)

    @property
    def needs_groups(self) -> bool:
        return self.reports.max_top > 0 or (self.draws is not None and self.draws.num_top_k > 0)

    def sections(self) -> list[Section]:
        """Return the step's results: tokens, states, reports."""
        counts = (self.num_slots, len(self.slots))
        return [*(Section(torch.int64, (count,)) for count in counts), *self.reports.sections()]


def _parameters_of(draws: Sequence[Draw]) -> list[tuple[RowSampling, int]]:
    return [(draw.row_sampling, draw.num_draws) for draw in draws]


class _Tables(NamedTuple):
    """A step's tables on the device; those of what it has none of are empty or None."""

    draws: Sequence[Tensor]
    edits: EditTensors | None
    penalties: PenaltyTable | None
    reports: Sequence[Tensor]
    reported_rows: Tensor | None  # rows whose raw logits are copied before they are edited

    @classmethod
    def upload(cls, step: _Step, device: Device) -> _Tables:
        of_draws = [] if step.draws is None else step.draws.arrays
        of_edits = [] if step.edits is None else step.edits.edits
        of_penalties = [] if step.edits is None else step.edits.penalties
        of_reports: list[np.ndarray] = []
        reported_rows: list[np.ndarray] = []
        if len(step.reports):
            places: dict[int, int] | None = None
            if step.edits is not None:
                places = {row: place for place, row in enumerate(step.reports.rows)}
                reported_rows = [np.array(step.reports.rows, dtype=np.int64)]
            of_reports = step.reports.arrays(places)
        arrays = [*of_draws, *of_edits, *of_penalties, *of_reports, *reported_rows]
        tensors = iter(upload_together(device, arrays) if arrays else ())
        draws = [next(tensors) for _ in of_draws]
        edits = EditTensors(*(next(tensors) for _ in of_edits)) if of_edits else None
        penalties = [next(tensors) for _ in of_penalties]
        return cls(
            draws=draws,
            edits=edits,
            penalties=None if step.edits is None else step.edits.penalty_table(penalties),
            reports=[next(tensors) for _ in of_reports],
            reported_rows=next(tensors) if reported_rows else None,
        )


class _LaunchedDraws(PendingDraws):
    """Draws that the device is at."""

    def __init__(
        self, step: _Step, results: PackedResults, download: Download, sorted_rows: dict[int, Download]
    ) -> None:
        self.token_ids = results.tensors[0][: len(step.slots)]
        self._step = step
        self._results = results
        self._download = download
        self._sorted_rows = sorted_rows

    def collect(self) -> list[Drawn]:
        tokens, states, *reports = self._results.split(self._download.array())
        step = self._step
        token_ids: list[int] = tokens.tolist()
        drawn = []
        for slots, num_draws, state in zip(step.slots, step.num_draws, states.tolist(), strict=True):
            if state == OK:
                drawn_ids = [token_ids[slot] for slot in slots]
                drawn.append(Drawn(drawn_ids if len(slots) == num_draws else drawn_ids * num_draws))
            elif state == NOTHING_TO_DRAW:
                drawn.append(Drawn(error=InvalidRequest(NOTHING_LEFT).to_info()))
            else:
                drawn.append(Drawn(error=EngineError(LOGITS_NOT_FINITE).to_info()))
        found = step.reports.read(tokens, reports, self._sorted_rows)
        for request, report in zip(step.reports.requests, found, strict=True):
            of_row = drawn[request.row]
            if of_row.error is None:
                # A greedy row has one slot, and so one report, for all its draws.
                of_row.logprobs += [report] * (len(of_row.token_ids) // len(step.slots[request.row]))
        return drawn


def _edit(logits: Tensor, vocab_size: int, edits: EditTensors) -> None:
    """Apply all edits but the penalties, in place, grammars' masks first; none of these calls waits."""
    num_constrained = edits.grammar_rows.shape[0]
    if num_constrained:
        shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
        bits = (edits.grammar_masks.view(num_constrained, -1, 1) >> shifts) & 1
        drawable = logits[:, :vocab_size]
        kept = drawable.index_select(0, edits.grammar_rows)
        kept.masked_fill_(bits.view(num_constrained, -1)[:, :vocab_size] == 0, -math.inf)
        drawable.index_copy_(0, edits.grammar_rows, kept)
    flat = logits.view(-1)
    if edits.allowed_rows.shape[0]:
        kept = flat[edits.allowed_places]
        logits.index_fill_(0, edits.allowed_rows, -math.inf)
        flat[edits.allowed_places] = kept
    if edits.masked_places.shape[0]:
        flat.index_fill_(0, edits.masked_places, -math.inf)
    if edits.biased_places.shape[0]:
        flat.index_add_(0, edits.biased_places, edits.biases)
