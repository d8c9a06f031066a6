"""Which of a step's tokens say something of a prompt, besides the draws: its logprobs, or its vector."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Literal

import numpy as np

from pagewire.ipc.steps import ScheduledRow

from .row_table import RowTable
from .step_inputs import PoolSpan, PromptSpan


def prompt_spans(
    rows: Sequence[ScheduledRow],
    reporters: Container[int],
    index_of: Mapping[int, int],
    table: RowTable,
    query_starts: np.ndarray,
) -> list[PromptSpan]:
    """Return the prompt positions whose next tokens' logprobs are wanted.

    Args:
        rows: the step's rows.
        reporters: ids of rows that want prompt logprobs.
        index_of: row id -> its place in the table.
        table: all rows.
        query_starts: [num_rows + 1] int64, cumulative token counts.
    """
    spans = []
    for i, row in enumerate(rows) if reporters else ():
        if row.row_id not in reporters:
            continue
        index = index_of[row.row_id]
        start = row.num_computed_tokens + 1
        end = min(start + row.num_scheduled_tokens, table.num_prompt_tokens[index])
        if start < end:
            token_ids = table.token_ids[index, start:end].tolist()
            spans.append(PromptSpan(row=i, start=start, token_ids=token_ids, first_token=int(query_starts[i])))
    return spans


def pool_spans(
    rows: Sequence[ScheduledRow],
    pooling_of: Mapping[int, Literal["last", "mean"]],
    index_of: Mapping[int, int],
    table: RowTable,
    query_starts: np.ndarray,
) -> list[PoolSpan]:
    """Return the tokens of rows that are pooled; `pooling_of` says which and how, the rest is as above."""
    spans = []
    for i, row in enumerate(rows) if pooling_of else ():
        pooling = pooling_of.get(row.row_id)
        if pooling is not None:
            end = row.num_computed_tokens + row.num_scheduled_tokens
            spans.append(
                PoolSpan(
                    row_id=row.row_id,
                    pooling=pooling,
                    first_token=int(query_starts[i]),
                    num_tokens=row.num_scheduled_tokens,
                    end=end,
                    is_last=end == table.num_prompt_tokens[index_of[row.row_id]],
                )
            )
    return spans
