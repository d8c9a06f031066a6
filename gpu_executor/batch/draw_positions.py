"""Which of a step's tokens are drawn behind, where rows have drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pagewire.ipc.steps import ScheduledRow

from .device_inputs import KeptDraws


def tokens_drawn_behind(last_tokens: np.ndarray, rows: Sequence[ScheduledRow]) -> np.ndarray:
    """Return the tokens that rows draw behind: each row's last one of the step, and before it those with drafts behind.

    Args:
        last_tokens: [num_rows] int64, indices among the step's tokens.
        rows: that draw.
    """
    counts = np.array([1 + len(row.draft_token_ids) for row in rows], dtype=np.int64)
    firsts = last_tokens - counts + 1
    tokens: np.ndarray = firsts.repeat(counts) + np.arange(counts.sum()) - (counts.cumsum() - counts).repeat(counts)
    return tokens


def draws_without_drafts(draw_rows: np.ndarray, rows: Sequence[ScheduledRow]) -> KeptDraws:
    """Return the draws of rows without drafts.

    Args:
        draw_rows: [num_rows] int64, indices of the rows that draw among the step's.
        rows: these.
    """
    counts = np.array([1 + len(row.draft_token_ids) for row in rows], dtype=np.int64)
    is_kept = counts == 1
    return KeptDraws(draw_rows[is_kept], (counts.cumsum() - counts)[is_kept])
