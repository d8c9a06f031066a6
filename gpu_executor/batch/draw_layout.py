"""Which of a step's tokens are drawn behind, and which draws a device keeps for the next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pagewire.ipc.steps import ScheduledRow

from .step_layout import StepLayout


class KeptDraws(NamedTuple):
    """Which of a step's draws are kept on the device as the last tokens of their rows: those of rows without drafts.

    Of the draws of a row with drafts, the host says which one ends it.

    Attributes:
        rows: [num_kept] int64, indices into the step's rows.
        draws: [num_kept] int64, indices into the step's draws; None: these are all draws.
    """

    rows: np.ndarray
    draws: np.ndarray | None


def lay_out_draws(
    rows: Sequence[ScheduledRow], draw_rows: Sequence[int], layout: StepLayout
) -> tuple[np.ndarray, KeptDraws]:
    """Return the tokens that are drawn behind, [num_draws] int64 indices among the step's, and which draws are kept.

    Args:
        rows: the step's.
        draw_rows: indices of those that draw.
        layout: of the step.
    """
    last_tokens = layout.query_starts[1:][draw_rows] - 1
    kept_rows = np.array(draw_rows, dtype=np.int64)
    if layout.max_query_len == 1 or not any(row.draft_token_ids for row in rows):
        return last_tokens, KeptDraws(kept_rows, None)
    counts = np.array([1 + len(rows[i].draft_token_ids) for i in draw_rows], dtype=np.int64)
    firsts = counts.cumsum() - counts  # of each row's draws, among all
    offsets = np.arange(counts.sum()) - firsts.repeat(counts)
    is_kept = counts == 1
    return (last_tokens - counts + 1).repeat(counts) + offsets, KeptDraws(kept_rows[is_kept], firsts[is_kept])
