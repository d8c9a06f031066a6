"""The persistent batch: what the executor remembers of each row between steps, and a step's inputs made from it.

The core sends deltas. A row's tokens live here, drawn ones included: a step that was scheduled before the last step's
tokens were known finds them in place, because steps run in order. Where steps are launched before the last one is done,
a draw first reserves its token's place, and the value is filled in when the device has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagewire.ipc.steps import ExecuteStep, ScheduledRow

from ..devices.base import Device
from ..sampling.draw import Draw, RowSampling
from ..sampling.row_edits import TokenHistory
from .decode_step import DecodeStep, is_decode_step
from .device_inputs import DeviceInputs, DrawPlaces, KeptDraws
from .draw_positions import draws_without_drafts, tokens_drawn_behind
from .host_inputs import bring_to_device
from .row_table import UNKNOWN_TOKEN, RowTable
from .spans import pool_spans, prompt_spans
from .step_inputs import StepInputs
from .step_layout import lay_out
from .step_plan import PreparedRow, RowLimits, RowState, StepPlan, plan_step


class ReservedPlace(NamedTuple):
    """The place of the tokens that a row is being given: one, or of a row with drafts, one or more.

    Attributes:
        row_index: its row's place in the table.
        generation: of that place when the tokens were reserved: another row may have it by now.
        position: of the first of the tokens in their row.
    """

    row_index: int
    generation: int
    position: int


class InputBatch:
    """The rows that the executor holds.

    A step is applied in this order: `plan` (no state changes), `remove`, `add`, `build_inputs`; after the draws
    `append_token` for each row that drew. Where draws are made on the device: `reserve_tokens` once they are launched,
    and `settle_tokens` for each row when they are known.

    Args:
        max_num_seqs: rows that are expected at most; room for more is made if they come.
        limits: bounds of ids.
        device: where inputs are wanted.
        drawing_device: the same, if draws are made on the device; None if on the host.
        draws: whether the rows' tokens are drawn here; on earlier pipeline stages the core tells what was drawn.
    """

    def __init__(
        self,
        max_num_seqs: int,
        limits: RowLimits,
        device: torch.device,
        drawing_device: Device | None = None,
        *,
        draws: bool = True,
    ) -> None:
        self._limits = limits
        self._draws = draws
        self._device = device
        self._table = RowTable(max_num_seqs, limits.block_size)
        self._device_inputs: DeviceInputs | None = None
        if drawing_device is not None:
            self._device_inputs = DeviceInputs(drawing_device, self._table, limits.block_size)
        self._index_of: dict[int, int] = {}  # row id -> index into the table
        self._sampling_of: dict[int, RowSampling] = {}
        self._salt_of: dict[int, str] = {}
        self._prompt_reporters: set[int] = set()  # rows that want prompt logprobs
        self._pooling_of: dict[int, Literal["last", "mean"]] = {}  # of rows that draw nothing
        self._token_readers: set[int] = set()  # rows whose draws need the tokens before on the host
        self._failed: set[int] = set()  # table indices of rows for which a draw failed
        # Of the last step, if it was one of decodes and its rows are all there are since.
        self._decode_step: DecodeStep | None = None

    @property
    def limits(self) -> RowLimits:
        """Bounds of the ids in a row."""
        return self._limits

    @property
    def drawing_device(self) -> Device | None:
        """What draws the tokens, None if the host does."""
        return None if self._device_inputs is None else self._device_inputs.device

    @property
    def row_ids(self) -> list[int]:
        """Ids of the rows held, in the order they came."""
        return list(self._index_of)

    def plan(self, step: ExecuteStep) -> StepPlan:
        """Check a step row by row, as it will be after its removals; changes nothing."""
        removed = set(step.removed_row_ids)

        def find_row(row_id: int) -> RowState | None:
            index = None if row_id in removed else self._index_of.get(row_id)
            if index is None:
                return None
            return RowState(self._table.num_tokens[index], self._table.num_blocks[index])

        return plan_step(step.new_rows, step.rows, find_row, self._limits, takes_drawn_tokens=not self._draws)

    def remove(self, row_ids: Iterable[int]) -> None:
        """Drop rows; ids that are not held (they failed when they came) are passed over."""
        for row_id in row_ids:
            index = self._index_of.pop(row_id, None)
            if index is not None:
                self._decode_step = None
                del self._sampling_of[row_id]
                del self._salt_of[row_id]
                self._prompt_reporters.discard(row_id)
                self._pooling_of.pop(row_id, None)
                self._token_readers.discard(row_id)
                self._failed.discard(index)
                self._table.free(index)
                if self._device_inputs is not None:
                    self._device_inputs.tokens.release(index)

    def add(self, rows: Iterable[PreparedRow]) -> None:
        """Take in new rows."""
        for row in rows:
            self._decode_step = None
            index = self._table.add(row.token_ids, row.num_prompt_tokens, row.block_table)
            self._index_of[row.row_id] = index
            self._sampling_of[row.row_id] = row.row_sampling
            self._salt_of[row.row_id] = row.salt
            if self._draws and row.row_sampling.sampling.num_prompt_logprobs is not None:
                self._prompt_reporters.add(row.row_id)
            if self._draws and row.pooling:
                self._pooling_of[row.row_id] = row.pooling
            if self._device_inputs is not None:
                self._device_inputs.note_blocks(index, 0, len(row.block_table))
                if row.row_sampling.reads_token_ids:
                    self._token_readers.add(row.row_id)
                if self._draws and row.row_sampling.is_penalized:
                    self._device_inputs.tokens.hold(index)

    def build_inputs(self, rows: Sequence[ScheduledRow]) -> StepInputs:
        """Update a step's rows and lay out their tokens back to back.

        Args:
            rows: rows that passed `plan`; at least one.
        """
        indices = [self._update_row(row) for row in rows]
        if self._device_inputs is None and is_decode_step(rows):
            return self._build_decodes(rows, indices)
        self._decode_step = None
        return self._build(rows, np.array(indices, dtype=np.int64))

    def sampling_of(self, row_id: int) -> RowSampling:
        """Return how a row draws."""
        return self._sampling_of[row_id]

    def salt_of(self, row_id: int) -> str:
        """Return the salt of a row's request."""
        return self._salt_of[row_id]

    def history_of(self, row_id: int) -> TokenHistory:
        """Return a row's tokens so far; valid until the row's next token."""
        index = self._index_of[row_id]
        return TokenHistory(self._table.tokens_of(index), self._table.num_prompt_tokens[index])

    def draws_of(self, rows: Sequence[ScheduledRow]) -> list[Draw]:
        """Return what some rows that draw are asked for, with drafts behind each of them too.

        Valid until the rows' next tokens.
        """
        draws = []
        for row in rows:
            for num_drafts in range(1 + len(row.draft_token_ids)):
                draws.append(self._draw_of(row, num_drafts))
        return draws

    def draw_behind(self, row_id: int, num_drafts: int) -> Draw:
        """Return what a row would be asked for behind so many drafts, which are placed."""
        return self._draw_of(ScheduledRow(row_id, 0, 0), num_drafts)

    def place_drafts(self, row_id: int, token_ids: Sequence[int]) -> None:
        """Put guesses behind a row's tokens."""
        self._table.place_drafts(self._index_of[row_id], token_ids)

    def _draw_of(self, row: ScheduledRow, num_drafts: int) -> Draw:
        """Return what is asked for behind a row's last token, or behind so many drafts as if they were tokens."""
        row_sampling = self._sampling_of[row.row_id]
        if not (row_sampling.needs_logits or row.is_masked):
            return Draw(row_sampling, None, row.num_draws)
        index = self._index_of[row.row_id]
        history = TokenHistory(self._table.tokens_of(index, num_drafts), self._table.num_prompt_tokens[index])
        kept = None
        if self._device_inputs is not None and row_sampling.is_penalized:
            kept = self._device_inputs.tokens.of(index)
        return Draw(row_sampling, history, row.num_draws, kept, row.is_masked)

    def block_table_of(self, row_id: int) -> list[int]:
        """Return a row's block ids, in order."""
        block_ids: list[int] = self._table.blocks_of(self._index_of[row_id]).tolist()
        return block_ids

    def append_token(self, row_id: int, token_id: int) -> None:
        """Add a drawn token to its row."""
        self._table.append_token(self._index_of[row_id], token_id)

    def lacks_tokens(self, row_ids: Sequence[int]) -> bool:
        """Say whether the host would read a token that it does not know yet for a draw of any of these rows."""
        # Tokens get known in order: with the last one, all are.
        readers = self._token_readers.intersection(row_ids)
        return any(self.history_of(row_id).token_ids[-1] == UNKNOWN_TOKEN for row_id in readers)

    def reserve_tokens(
        self, rows: Sequence[ScheduledRow], draw_places: DrawPlaces, token_ids: Tensor | None
    ) -> list[ReservedPlace]:
        """Add a token that is being drawn to each of some rows, its value unknown; later steps compute it already.

        A row with drafts gets none yet: how many it is given is not known, and no step has it before that is.

        Args:
            rows: the step's rows that draw, in order.
            draw_places: of the step's `StepInputs`, the last one.
            token_ids: [num_draws] int64 on the device; None if they are known before the next step is launched.
        """
        assert self._device_inputs is not None, "draws are made on the device"
        if token_ids is not None:
            self._device_inputs.keep_tokens(draw_places, token_ids)
        table, reserved = self._table, []
        for row in rows:
            index = self._index_of[row.row_id]
            reserved.append(ReservedPlace(index, table.generations[index], table.num_tokens[index]))
            if not row.draft_token_ids:
                table.append_token(index, UNKNOWN_TOKEN)
        return reserved

    def settle_tokens(self, reserved: ReservedPlace, token_ids: Sequence[int]) -> bool:
        """Fill in the tokens of a row; none: nothing could be drawn, and the row has failed.

        A failed row is computed on, with whatever token the device has for it, until the core removes it. The steps
        that were sent ahead have the same rows then whenever this is called, as ranks that compute them together must.
        A row that was removed meanwhile is passed over, whoever has its place now.

        Returns:
            False if the row has failed in an earlier step, whose result this one was drawn from.
        """
        index, generation, position = reserved
        if self._table.generations[index] != generation:
            return True
        if index in self._failed:
            return False
        if not token_ids:
            self._failed.add(index)
        elif position == self._table.num_tokens[index]:  # of a row with drafts
            self._table.append_tokens(index, token_ids)
            if self._device_inputs is not None:
                self._device_inputs.tokens.note_tokens(index, position, position + len(token_ids))
        else:
            self._table.token_ids[index, position] = token_ids[0]
        return True

    def settled_history(self, reserved: ReservedPlace, num_tokens: int) -> TokenHistory | None:
        """Return a row's tokens up to some that were filled in, whatever has been reserved since; None if it is gone.

        Args:
            reserved: their place.
            num_tokens: how many they are.
        """
        index, generation, position = reserved
        if self._table.generations[index] != generation:
            return None
        tokens = self._table.tokens_of(index)[: position + num_tokens]
        return TokenHistory(tokens, self._table.num_prompt_tokens[index])

    def _build_decodes(self, rows: Sequence[ScheduledRow], indices: list[int]) -> StepInputs:
        row_ids = [row.row_id for row in rows]
        step = self._decode_step
        if step is None or step.row_ids != row_ids or not step.has_room():
            step = DecodeStep(row_ids, indices, self._table, self._limits.block_size, self._device)
            self._decode_step = step
        input_ids, metadata = step.build(rows)
        # A row that draws has no prompt position left whose next token is not drawn.
        draw_rows = range(len(rows) if self._draws else 0)
        return StepInputs(input_ids=input_ids, metadata=metadata, draw_rows=draw_rows, prompt_spans=(), is_decode=True)

    def _build(self, rows: Sequence[ScheduledRow], indices: np.ndarray) -> StepInputs:
        layout = lay_out(rows, indices, self._table, self._limits.block_size)
        draw_rows = [i for i, row in enumerate(rows) if row.num_draws and self._draws]
        spans = prompt_spans(rows, self._prompt_reporters, self._index_of, self._table, layout.query_starts)
        pooled = pool_spans(rows, self._pooling_of, self._index_of, self._table, layout.query_starts)
        logits_indices = layout.query_starts[1:][draw_rows] - 1
        kept = KeptDraws(np.array(draw_rows, dtype=np.int64), None)
        if layout.max_query_len > 1 and any(row.draft_token_ids for row in rows):
            drawing = [rows[i] for i in draw_rows]
            logits_indices = tokens_drawn_behind(logits_indices, drawing)
            kept = draws_without_drafts(kept.rows, drawing)
        if spans:
            of_spans = [span.first_token + np.arange(len(span.token_ids)) for span in spans]
            logits_indices = np.concatenate([logits_indices, *of_spans])
        if self._device_inputs is None:
            input_ids, metadata = bring_to_device(
                layout, self._table.block_tables[indices], logits_indices, self._limits.block_size, self._device
            )
            return StepInputs(
                input_ids=input_ids,
                metadata=metadata,
                draw_rows=draw_rows,
                prompt_spans=spans,
                pool_spans=pooled,
            )
        uploaded = self._device_inputs.upload(layout, indices, kept, logits_indices)
        return StepInputs(
            input_ids=uploaded.input_ids,
            metadata=uploaded.metadata,
            draw_rows=draw_rows,
            prompt_spans=spans,
            pool_spans=pooled,
            is_decode=layout.max_query_len == 1 and len(draw_rows) == len(rows),
            draw_places=uploaded.draw_places,
            start=uploaded.start,
        )

    def _update_row(self, row: ScheduledRow) -> int:
        index = self._index_of[row.row_id]
        if row.drawn_token_ids and not self._draws:
            self._table.append_tokens(index, row.drawn_token_ids)
        if row.new_block_ids:
            self._table.append_blocks(index, row.new_block_ids)
            if self._device_inputs is not None:
                end = self._table.num_blocks[index]
                self._device_inputs.note_blocks(index, end - len(row.new_block_ids), end)
        if row.draft_token_ids:
            self._table.place_drafts(index, row.draft_token_ids)
            if self._device_inputs is not None:
                start = self._table.num_tokens[index]
                self._device_inputs.tokens.note_tokens(index, start, start + len(row.draft_token_ids))
        if row.replaced_block is not None:
            place, block_id = row.replaced_block
            self._table.block_tables[index, place] = block_id
            if self._device_inputs is not None:
                self._device_inputs.note_blocks(index, place, place + 1)
        return index
