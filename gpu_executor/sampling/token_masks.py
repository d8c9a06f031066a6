"""Which tokens a draw may give, as the core's grammars say: one bit a token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.steps import ScheduledRow

_OUT = np.float32(-math.inf)

TokenMask = np.ndarray
"""[ceil(vocab_size / 32)] uint32, the lowest bit first; 1: the token may be drawn."""

FetchMasks = Callable[[], Sequence[TokenMask | None]]
"""Waits for the masks of a step's draws: one a draw, None where any token will do."""


def masks_of_draws(rows: Sequence[ScheduledRow], masks: Mapping[int, bytes], vocab_size: int) -> list[TokenMask | None]:
    """Return the masks of a step's draws, in order: of each row one, and one behind each of its drafts.

    Args:
        rows: those that draw.
        masks: of the masked ones, by row id, as `RowMasks` has them.
        vocab_size: ids that can be drawn.

    Raises:
        ProtocolError: a masked row has none, or of the wrong size. What may be drawn is then unknown.
    """
    num_words = -(-vocab_size // 32)
    of_draws: list[TokenMask | None] = []
    for row in rows:
        num_positions = 1 + len(row.draft_token_ids)
        if not row.is_masked:
            of_draws += [None] * num_positions
            continue
        found = masks.get(row.row_id)
        if found is None or len(found) not in (0, 4 * num_words * num_positions):
            size = "no masks" if found is None else f"masks of {len(found)} bytes"
            raise ProtocolError(
                f"row {row.row_id} has {size}; it draws behind {num_positions} tokens, {4 * num_words} bytes each"
            )
        if found:
            of_draws += list(np.frombuffer(found, dtype="<u4").reshape(num_positions, num_words))
        else:  # its request has ended meanwhile
            of_draws += [None] * num_positions
    return of_draws


def keep_allowed(row: Tensor, mask: TokenMask) -> Tensor:
    """Return a copy of a row of logits on the host, [vocab_size] float32, with -inf where the mask says no."""
    bits = np.unpackbits(mask.view(np.uint8), count=row.shape[0], bitorder="little")
    # By numpy: torch would wake its threads for a row of 49,152, which takes longer than the row (35 us).
    kept = np.full(row.shape[0], _OUT)
    np.copyto(kept, row.numpy(), where=bits.view(np.bool_))
    return torch.from_numpy(kept)
