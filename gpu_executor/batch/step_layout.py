"""Where the tokens of a step lie: its rows back to back, as arrays on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pagewire.ipc.steps import ScheduledRow

from .row_table import RowTable


class StepLayout(NamedTuple):
    """A step's tokens and rows.

    Attributes:
        input_ids: [num_tokens] int64; `UNKNOWN_TOKEN` where a row's last token is not known yet.
        token_rows: [num_tokens] int64, each token's row: an index into the table.
        positions: [num_tokens] int64, in their rows.
        slots: [num_tokens] int64, where keys and values go.
        query_starts: [num_rows + 1] int64, cumulative token counts.
        seq_lens: [num_rows] int64, tokens of each row after the step.
        max_query_len: the most tokens that a row has in the step.
        max_seq_len: the largest of seq_lens.
    """

    input_ids: np.ndarray
    token_rows: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    query_starts: np.ndarray
    seq_lens: np.ndarray
    max_query_len: int
    max_seq_len: int


def lay_out(rows: Sequence[ScheduledRow], indices: np.ndarray, table: RowTable, block_size: int) -> StepLayout:
    """Lay out a step.

    Args:
        rows: the step's rows, whose blocks are in the table; at least one.
        indices: [num_rows] int64, their places in the table.
        table: all rows.
        block_size: tokens a KV block holds.
    """
    computed = np.array([row.num_computed_tokens for row in rows], dtype=np.int64)
    scheduled = np.array([row.num_scheduled_tokens for row in rows], dtype=np.int64)
    query_starts = np.zeros(len(rows) + 1, dtype=np.int64)
    scheduled.cumsum(out=query_starts[1:])
    token_rows = indices.repeat(scheduled)
    positions = np.arange(query_starts[-1]) - (query_starts[:-1] - computed).repeat(scheduled)
    places = positions // block_size
    blocks = table.block_tables[token_rows, places].astype(np.int64)
    seq_lens = computed + scheduled
    return StepLayout(
        input_ids=table.token_ids[token_rows, positions].astype(np.int64),
        token_rows=token_rows,
        positions=positions,
        slots=(blocks - places) * block_size + positions,
        query_starts=query_starts,
        seq_lens=seq_lens,
        max_query_len=int(scheduled.max()),
        max_seq_len=int(seq_lens.max()),
    )
