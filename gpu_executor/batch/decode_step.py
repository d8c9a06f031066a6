"""The inputs of a step of decodes, kept for the next one: as a rule it has the same rows, each one token further.

A forward of a small model reads more memory than the caches hold, so that what runs between two forwards finds none of
its code and data there: the general way of building a step's inputs then takes ten times as long as in a loop of its
own (0.2 to 0.3 ms on a 2-core machine, of 6 for the whole step). Here a step rewrites a few numbers in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pagewire.ipc.steps import ScheduledRow

from .forward_metadata import ForwardMetadata
from .row_table import RowTable


def is_decode_step(rows: Sequence[ScheduledRow]) -> bool:
    """Say whether every row computes one token and draws from it."""
    return all(row.num_scheduled_tokens == 1 and row.num_draws for row in rows)


class DecodeStep:
    """Inputs for one list of rows, as long as each step has exactly these, and no others come or go.

    Args:
        row_ids: the step's rows, in order.
        indices: their places in the table.
        table: the rows. Blocks may be appended and replaced between steps.
        block_size: tokens a KV block holds.
        device: where inputs are wanted.
    """

    def __init__(
        self, row_ids: list[int], indices: list[int], table: RowTable, block_size: int, device: torch.device
    ) -> None:
        self.row_ids = row_ids
        self._indices = indices
        self._table = table
        self._block_size = block_size
        self._device = device
        num_rows = len(row_ids)
        self._input_ids = np.empty(num_rows, dtype=np.int64)
        self._positions = np.empty(num_rows, dtype=np.int64)
        self._slots = np.empty(num_rows, dtype=np.int64)
        self._seq_lens = np.empty(num_rows, dtype=np.int32)
        self._block_tables = table.block_tables[indices]
        self._tensors = tuple(
            map(torch.from_numpy, (self._input_ids, self._positions, self._slots, self._seq_lens, self._block_tables))
        )
        self._query_start_loc = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        self._logits_indices = torch.arange(num_rows, dtype=torch.int64, device=device)

    def has_room(self) -> bool:
        """Say whether the block tables still fit."""
        return len(self._block_tables[0]) == len(self._table.block_tables[0])

    def build(self, rows: Sequence[ScheduledRow]) -> tuple[Tensor, ForwardMetadata]:
        """Return the token ids and the metadata of a step; the tensors are those of the step before, rewritten.

        Args:
            rows: the step's rows, whose blocks are in the table.
        """
        # Single numbers are read and written through memoryviews: an array's own indexing takes several times as long.
        input_ids, positions, slots = self._input_ids.data, self._positions.data, self._slots.data
        seq_lens, blocks, tokens = self._seq_lens.data, self._block_tables.data, self._table.token_ids.data
        block_size = self._block_size
        max_seq_len = 0
        for i, (row, index) in enumerate(zip(rows, self._indices, strict=True)):
            if row.new_block_ids or row.replaced_block is not None:
                self._block_tables[i] = self._table.block_tables[index]
            position = row.num_computed_tokens
            place, offset = divmod(position, block_size)
            input_ids[i] = tokens[index, position]
            positions[i] = position
            slots[i] = blocks[i, place] * block_size + offset
            seq_lens[i] = position + 1
            max_seq_len = max(max_seq_len, position + 1)
        tensors = self._tensors
        if self._device.type != "cpu":
            tensors = tuple(tensor.to(self._device) for tensor in tensors)
        metadata = ForwardMetadata(
            positions=tensors[1],
            slot_mapping=tensors[2],
            block_tables=tensors[4],
            query_start_loc=self._query_start_loc,
            seq_lens=tensors[3],
            logits_indices=self._logits_indices,
            block_size=block_size,
            max_query_len=1,
            max_seq_len=max_seq_len,
        )
        return tensors[0], metadata
