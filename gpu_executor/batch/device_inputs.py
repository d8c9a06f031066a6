"""Inputs of a step for a device that may still be at the step before: what it has to know already lies there.

The host knows all of a step when it launches it, but for the tokens that the steps in flight draw. So the device keeps
each row's last token, and puts it in its place; and it keeps the block tables, of which a step sends what changed, and
all tokens where draws read them. What else a step needs is made on the host, where it is a few vector operations beside
the device's work, and travels in one array: made on the device, each part would be a launch of its own between two
forwards.

All of it is written in the order of launches (see `devices.cuda`): a step that is in flight reads them before the
next step's changes come, and a row's place that is given to another row is written by steps that come after the last
one that read it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..devices.base import Device, Marker
from ..devices.packed import upload_together
from .device_tokens import DeviceTokens, NewTokens
from .forward_metadata import ForwardMetadata
from .row_table import UNKNOWN_TOKEN, RowTable
from .step_layout import StepLayout

_NO_PLACES = np.empty(0, dtype=np.int64)
_NO_TOKENS = NewTokens(_NO_PLACES, np.empty(0, dtype=np.int32))


class KeptDraws(NamedTuple):
    """Which of a step's draws are kept on the device as the last tokens of their rows: those of rows without drafts.

    Of the draws of a row with drafts, the host says which one ends it.

    Attributes:
        rows: [num_kept] int64, indices into the step's rows.
        draws: [num_kept] int64, indices into the step's draws; None: these are all draws.
    """

    rows: np.ndarray
    draws: np.ndarray | None


class DrawPlaces(NamedTuple):
    """Where a step's drawn tokens are kept on the device.

    Attributes:
        rows: [num_kept] int64, their rows.
        tokens: [num_kept] int64, the tokens' places among all tokens; empty if no row reads its tokens there.
        draws: [num_kept] int64, which of the step's draws they are; None: all.
    """

    rows: Tensor
    tokens: Tensor
    draws: Tensor | None


class UploadedStep(NamedTuple):
    """A step's inputs on the device.

    Attributes:
        input_ids: [num_tokens] int64.
        metadata: where they sit.
        draw_places: of the tokens that it draws.
        start: the point in the device's work from which the step's own begins.
    """

    input_ids: Tensor
    metadata: ForwardMetadata
    draw_places: DrawPlaces
    start: Marker


class DeviceInputs:
    """What a device knows of the rows between steps.

    Args:
        device: computes the steps.
        table: the rows, on the host.
        block_size: tokens a KV block holds.
    """

    def __init__(self, device: Device, table: RowTable, block_size: int) -> None:
        self._device = device
        self._table = table
        self._block_size = block_size
        num_rows, max_blocks = table.block_tables.shape
        self._block_tables = torch.zeros(num_rows, max_blocks, dtype=torch.int32, device=device.torch_device)
        self._last_tokens = torch.zeros(num_rows, dtype=torch.int64, device=device.torch_device)
        self._tokens = DeviceTokens(device.torch_device, table)
        self._changes: list[tuple[int, int, int]] = []  # (index, first place, end) of blocks that the device lacks

    @property
    def device(self) -> Device:
        """What computes the steps."""
        return self._device

    @property
    def tokens(self) -> DeviceTokens:
        """The rows' tokens."""
        return self._tokens

    def note_blocks(self, index: int, start: int, end: int) -> None:
        """Note that a row's blocks [start, end) changed in the table; the next step takes them along."""
        self._changes.append((index, start, end))

    def upload(
        self, layout: StepLayout, indices: np.ndarray, kept: KeptDraws, logits_indices: np.ndarray
    ) -> UploadedStep:
        """Bring a step's inputs to the device; nothing waits for what it is at.

        Args:
            layout: the step's tokens.
            indices: [num_rows] int64, places of the step's rows in the table.
            kept: which draws are kept.
            logits_indices: [num_logits] int64.
        """
        self._grow()
        unknown = np.flatnonzero(layout.input_ids == UNKNOWN_TOKEN)
        changed = self._take_changes()
        kept_indices = indices if len(kept.rows) == len(indices) else indices[kept.rows]
        new_tokens, token_places = _NO_TOKENS, _NO_PLACES
        if self._tokens.are_read:
            # A row that draws has its last token known or drawn: the next one comes right after those of the step.
            self._tokens.make_room(layout.max_seq_len + 1)
            new_tokens = self._tokens.take_new()
            token_places = self._tokens.places_of(kept_indices, layout.seq_lens[kept.rows])
        start = self._device.mark()
        (
            ids, positions, slots, logits, rows, kept_rows, unknown_places, unknown_rows, query_start_loc, seq_lens,
            changed_places, changed_blocks, new_places, new_ids, drawn_places, *kept_draws,
        ) = upload_together(
            self._device,
            [
                layout.input_ids, layout.positions, layout.slots, logits_indices, indices, kept_indices,
                unknown, layout.token_rows[unknown],
                layout.query_starts.astype(np.int32), layout.seq_lens.astype(np.int32),
                changed, self._table.block_tables.reshape(-1)[changed], *new_tokens, token_places,
                *(() if kept.draws is None else (kept.draws,)),
            ],
        )  # fmt: skip
        if len(changed):
            self._block_tables.view(-1).index_copy_(0, changed_places, changed_blocks)
        if len(new_ids):
            self._tokens.write(new_places, new_ids)
        if len(unknown) == len(layout.input_ids):
            ids = self._last_tokens.index_select(0, unknown_rows)
        elif len(unknown):
            ids.index_copy_(0, unknown_places, self._last_tokens.index_select(0, unknown_rows))
        max_blocks = -(-layout.max_seq_len // self._block_size)
        metadata = ForwardMetadata(
            positions=positions,
            slot_mapping=slots,
            block_tables=self._block_tables[:, :max_blocks].index_select(0, rows),
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            logits_indices=logits,
            block_size=self._block_size,
            max_query_len=layout.max_query_len,
            max_seq_len=layout.max_seq_len,
        )
        places = DrawPlaces(kept_rows, drawn_places, kept_draws[0] if kept_draws else None)
        return UploadedStep(ids, metadata, places, start)

    def keep_tokens(self, places: DrawPlaces, token_ids: Tensor) -> None:
        """Keep what a step draws as the last tokens of its rows, those with drafts excepted.

        Args:
            places: of the step's `UploadedStep`, the last one.
            token_ids: [num_draws] int64, on the device.
        """
        if places.draws is not None:
            token_ids = token_ids.index_select(0, places.draws)
        self._last_tokens.index_copy_(0, places.rows, token_ids)
        if len(places.tokens):
            self._tokens.write(places.tokens, token_ids)

    def _take_changes(self) -> np.ndarray:
        """Return the flat places of all blocks that the device lacks; they count as sent from here on.

        A place may occur twice: both times the table's own number goes there.
        """
        if not self._changes:
            return np.empty(0, dtype=np.int64)
        width = self._table.block_tables.shape[1]
        places = [np.arange(index * width + start, index * width + end) for index, start, end in self._changes]
        self._changes.clear()
        return np.concatenate(places)

    def _grow(self) -> None:
        """Follow the table, which grows with its rows and with the longest of them."""
        num_rows, max_blocks = self._table.block_tables.shape
        old_rows, old_blocks = self._block_tables.shape
        if (num_rows, max_blocks) == (old_rows, old_blocks):
            return
        block_tables = self._block_tables.new_zeros(num_rows, max_blocks)
        block_tables[:old_rows, :old_blocks] = self._block_tables
        last_tokens = self._last_tokens.new_zeros(num_rows)
        last_tokens[:old_rows] = self._last_tokens
        self._block_tables, self._last_tokens = block_tables, last_tokens
