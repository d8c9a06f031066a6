"""What a row's processors do to its logits, as data: the host and the device apply the same edits, each in its way.

In this order: the allowed tokens, the masks, the biases, the penalties. Masks come first, so that no bias or penalty
can undo them. A grammar's mask comes before all of them, see `token_masks`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class TokenHistory(NamedTuple):
    """The tokens before a draw.

    Attributes:
        token_ids: [num_tokens] int32, prompt and output.
        num_prompt_tokens: how many of them are prompt.
    """

    token_ids: np.ndarray
    num_prompt_tokens: int

    @property
    def num_output_tokens(self) -> int:
        """Tokens drawn so far, which is the position of the next one among the outputs."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> np.ndarray:
        """[num_output_tokens] int32."""
        return self.token_ids[self.num_prompt_tokens :]


class PenaltyStrengths(NamedTuple):
    """How much less likely tokens get that occurred.

    The repetition penalty divides positive logits and multiplies negative ones, for tokens of prompt and output; then
    the frequency penalty takes off its amount for each occurrence in the output, and the presence penalty once.
    """

    repetition: float
    frequency: float
    presence: float


@dataclass(slots=True)
class RowEdits:
    """Edits of one row; all ids are drawable ones.

    Attributes:
        allowed_ids: [any number] int64, the only tokens that are left; None for all.
        masked_ids: int64 arrays of tokens that are taken out.
        biased_ids: [num_biases] int64, no two alike; None if none is.
        biases: [num_biases] float32, added to them.
        penalties: strengths, for the tokens of the row's history.
    """

    allowed_ids: np.ndarray | None = None
    masked_ids: list[np.ndarray] = field(default_factory=list)
    biased_ids: np.ndarray | None = None
    biases: np.ndarray | None = None
    penalties: PenaltyStrengths | None = None


def apply_edits(row: Tensor, edits: RowEdits, history: TokenHistory) -> None:
    """Edit one row in place, from the host: it waits where the row is on a device that computes on its own.

    Args:
        row: [vocab_size] float32, on any device.
        edits: what to do.
        history: the tokens before the draw.
    """
    if edits.allowed_ids is not None:
        allowed = torch.from_numpy(edits.allowed_ids).to(row.device)
        kept = row[allowed]
        row.fill_(-math.inf)
        row[allowed] = kept
    for masked_ids in edits.masked_ids:
        row[torch.from_numpy(masked_ids).to(row.device)] = -math.inf
    if edits.biased_ids is not None and edits.biases is not None:
        row[torch.from_numpy(edits.biased_ids).to(row.device)] += torch.from_numpy(edits.biases).to(row.device)
    if edits.penalties is not None:
        _penalize(row, edits.penalties, history)


def _penalize(row: Tensor, strengths: PenaltyStrengths, history: TokenHistory) -> None:
    if strengths.repetition != 1.0:
        token_ids = np.unique(history.token_ids)
        seen = _index(token_ids[token_ids < row.shape[0]], row.device)
        logits = row[seen]
        row[seen] = torch.where(logits > 0, logits / strengths.repetition, logits * strengths.repetition)
    if (strengths.frequency or strengths.presence) and history.num_output_tokens:
        token_ids, counts = np.unique(history.output_token_ids, return_counts=True)
        is_drawable = token_ids < row.shape[0]
        cost = counts[is_drawable].astype(np.float32) * np.float32(strengths.frequency) + np.float32(strengths.presence)
        row[_index(token_ids[is_drawable], row.device)] -= torch.from_numpy(cost).to(row.device)


def _index(token_ids: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(token_ids.astype(np.int64)).to(device)
