"""A step's draws as tables for the device: who is left to chance, whose logits are edited, and who is penalized.

The host makes them from what it knows before the forward is done, and sends them in one copy. The first draw of row r
goes to slot r; further draws from a row come after those of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..kernels.device_draws import PenaltyTable
from ..kernels.draw_arrays import DrawArrays, RandomRow
from ..kernels.draws import NoiseKey
from .draw import Draw
from .logits_processors import edits_of
from .row_edits import PenaltyStrengths, RowEdits
from .token_masks import TokenMask


def slots_of(draws: Sequence[Draw]) -> tuple[list[Sequence[int]], int]:
    """Return the slots of each row's draws, one for a greedy row however often it is asked, and the number of slots."""
    slots: list[Sequence[int]] = []
    num_slots = len(draws)
    for row, draw in enumerate(draws):
        num_more = 0 if draw.row_sampling.temperature is None else draw.num_draws - 1
        slots.append((row, *range(num_slots, num_slots + num_more)) if num_more else (row,))
        num_slots += num_more
    return slots, num_slots


def draw_arrays(draws: Sequence[Draw], slots: Sequence[Sequence[int]], vocab_size: int) -> DrawArrays | None:
    """Lay out the rows that are left to chance; None if none is."""
    rows = []
    for row, draw in enumerate(draws):
        row_sampling = draw.row_sampling
        if row_sampling.temperature is None:
            continue
        assert draw.history is not None, "a row that needs its logits comes with its tokens"
        key = NoiseKey(row_sampling.sampling.seed, row_sampling.child, draw.history.num_output_tokens)
        rows.append(RandomRow(row, row_sampling.temperature, row_sampling.filters, key, slots[row]))
    return DrawArrays.of(rows, vocab_size) if rows else None


class EditTensors(NamedTuple):
    """Edits of a step's rows, on the device. Places are indices into the flat logits.

    Attributes:
        rows: [num_edited] int32, the rows that are edited.
        grammar_rows: [num] int64, rows that a grammar leaves some tokens of.
        grammar_masks: [num * num_bytes] uint8, which: a bit a token, the lowest first.
        allowed_rows: [num] int64, rows of which only some tokens are left.
        allowed_places: [num] int64, those tokens.
        masked_places: [num] int64.
        biased_places: [num] int64, no two alike.
        biases: [num] float32.
    """

    rows: Tensor
    grammar_rows: Tensor
    grammar_masks: Tensor
    allowed_rows: Tensor
    allowed_places: Tensor
    masked_places: Tensor
    biased_places: Tensor
    biases: Tensor


@dataclass(frozen=True, slots=True)
class EditArrays:
    """What the processors of a step's rows do, on the host.

    Attributes:
        edits: arrays of `EditTensors`, in the order of its fields.
        is_constant: whether these are the same before the rows' next draws.
        penalized: the rows with penalties.
        strengths: of their penalties: repetitions, frequencies, presences.
        penalties: arrays of a `PenaltyTable`, in the order of its fields.
        kept_token_ids: the last of these, if it is on the device already.
        max_tokens: the most tokens of a row with penalties; 0 if there is none.
    """

    edits: list[np.ndarray]
    is_constant: bool
    penalized: list[int]
    strengths: list[np.ndarray]
    penalties: list[np.ndarray]
    kept_token_ids: Tensor | None
    max_tokens: int

    @classmethod
    def of(
        cls, draws: Sequence[Draw], row_stride: int, masks: Sequence[TokenMask | None] | None = None
    ) -> EditArrays | None:
        """Lay out the edits; None if no row has any.

        Args:
            draws: the step's.
            row_stride: from one row of the flat logits to the next.
            masks: one a draw; None if none is masked.
        """
        edited: list[tuple[int, RowEdits]] = []
        constrained: list[tuple[int, TokenMask]] = []
        penalized: list[tuple[int, PenaltyStrengths]] = []
        is_constant = True
        of_draws = [None] * len(draws) if masks is None else masks
        for row, (draw, mask) in enumerate(zip(draws, of_draws, strict=True)):
            if mask is None and not draw.row_sampling.processors:
                continue
            assert draw.history is not None, "a row that needs its logits comes with its tokens"
            edits = edits_of(draw.row_sampling.processors, draw.history)
            if mask is not None:
                constrained.append((row, mask))
            edited.append((row, edits))
            is_constant &= mask is None and all(processor.is_constant for processor in draw.row_sampling.processors)
            if edits.penalties is not None:
                penalized.append((row, edits.penalties))
        if not edited:
            return None
        strengths = np.array([strengths for _, strengths in penalized], dtype=np.float32).reshape(-1, 3)
        return cls(
            edits=_edit_arrays(edited, constrained, row_stride),
            is_constant=is_constant,
            penalized=[row for row, _ in penalized],
            strengths=[np.ascontiguousarray(column) for column in strengths.T],
            penalties=[],
            kept_token_ids=None,
            max_tokens=0,
        ).at(draws)

    def at(self, draws: Sequence[Draw]) -> EditArrays:
        """Return the same edits before the rows' next draws; they have to be constant."""
        histories = [history for row in self.penalized if (history := draws[row].history) is not None]
        num_tokens = np.array([len(history.token_ids) for history in histories], dtype=np.int32)
        sent: list[np.ndarray] = []
        kept = [place for row in self.penalized if (place := draws[row].kept) is not None]
        if kept:
            assert len(kept) == len(histories), "the device keeps the tokens of all penalized rows or of none"
            starts = np.array([place.start for place in kept], dtype=np.int64)
        else:
            starts = num_tokens.cumsum().astype(np.int64) - num_tokens
            sent = [_joined([history.token_ids for history in histories], np.int32)]
        penalties: list[np.ndarray] = [
            np.array(self.penalized, dtype=np.int32),
            starts,
            np.array([history.num_prompt_tokens for history in histories], dtype=np.int32),
            num_tokens,
            *self.strengths,
            *sent,
        ]
        return replace(
            self,
            penalties=penalties,
            kept_token_ids=kept[0].token_ids if kept else None,
            max_tokens=int(num_tokens.max(initial=0)),
        )

    def penalty_table(self, tensors: Sequence[Tensor]) -> PenaltyTable | None:
        """Return the table whose tensors are `penalties` on a device; None if no row is penalized."""
        if not self.max_tokens:
            return None
        kept = [] if self.kept_token_ids is None else [self.kept_token_ids]
        return PenaltyTable(*tensors, *kept, max_tokens=self.max_tokens)


def _edit_arrays(
    edited: Sequence[tuple[int, RowEdits]], constrained: Sequence[tuple[int, TokenMask]], row_stride: int
) -> list[np.ndarray]:
    allowed = [(row, edits.allowed_ids) for row, edits in edited if edits.allowed_ids is not None]
    masked = [row * row_stride + token_ids for row, edits in edited for token_ids in edits.masked_ids]
    biased = [row * row_stride + edits.biased_ids for row, edits in edited if edits.biased_ids is not None]
    biases = [edits.biases for _, edits in edited if edits.biases is not None]
    return [
        np.array([row for row, _ in edited], dtype=np.int32),
        np.array([row for row, _ in constrained], dtype=np.int64),
        _joined([mask.view(np.uint8) for _, mask in constrained], np.uint8),
        np.array([row for row, _ in allowed], dtype=np.int64),
        _joined([row * row_stride + token_ids for row, token_ids in allowed], np.int64),
        _joined(masked, np.int64),
        _joined(biased, np.int64),
        _joined(biases, np.float32),
    ]


def _joined(arrays: Sequence[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=dtype), *arrays]).astype(dtype, copy=False)
