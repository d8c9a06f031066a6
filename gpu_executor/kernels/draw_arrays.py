"""The rows of a step that are left to chance, as the arrays that a `DrawTable` is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from .device_draws import DrawTable
from .draws import Filters, NoiseKey

_UINT32_MASK = 2**32 - 1
_FIELDS = [field.name for field in fields(DrawTable)]
_ROWS, _POSITIONS = _FIELDS.index("rows"), _FIELDS.index("positions")


class RandomRow(NamedTuple):
    """One row that is left to chance.

    Attributes:
        row: which row of logits.
        temperature: what the logits are divided by.
        filters: which tokens stay.
        key: whose noise the first draw adds; the next draws are those of the next children.
        slots: where the draws' tokens go.
    """

    row: int
    temperature: float
    filters: Filters
    key: NoiseKey
    slots: Sequence[int]


@dataclass(frozen=True, slots=True)
class DrawArrays:
    """A `DrawTable` on the host.

    Attributes:
        arrays: its arrays, in the order of its fields.
        num_top_k, max_top_k, num_limited: see there.
    """

    arrays: list[np.ndarray]
    num_top_k: int
    max_top_k: int
    num_limited: int

    @classmethod
    def of(cls, rows: Sequence[RandomRow], num_drawable: int) -> DrawArrays:
        """Lay out rows; at least one."""
        ordered = sorted(rows, key=lambda row: not 0 < row.filters.top_k < num_drawable)  # those with top_k first
        top_ks = [row.filters.top_k for row in ordered if 0 < row.filters.top_k < num_drawable]
        limited = [index for index, row in enumerate(ordered) if row.filters.top_p < 1]
        unlimited = [index for index, row in enumerate(ordered) if row.filters.top_p >= 1]
        draws = [
            (index, slot, ordered[index].key.child + offset)
            for index in (*limited, *unlimited)
            for offset, slot in enumerate(ordered[index].slots)
        ]
        owners, slots, children = zip(*draws, strict=True)
        log_min_ps = [math.log(row.filters.min_p) if row.filters.min_p > 0 else -math.inf for row in ordered]
        return cls(
            arrays=[
                np.array([row.row for row in ordered], dtype=np.int32),
                np.array([row.temperature for row in ordered], dtype=np.float32),
                np.array(log_min_ps, dtype=np.float32),
                np.array(top_ks, dtype=np.int32),
                np.array([row.filters.top_p for row in ordered], dtype=np.float64),
                np.array([row.key.seed for row in ordered], dtype=np.int64),
                _words([row.key.position for row in ordered]),
                np.array(owners, dtype=np.int32),
                np.array(slots, dtype=np.int32),
                _words(children),
            ],
            num_top_k=len(top_ks),
            max_top_k=max(top_ks, default=0),
            num_limited=sum(len(ordered[index].slots) for index in limited),
        )

    def at(self, positions: np.ndarray) -> DrawArrays:
        """Return the same draws at other places among their rows' output tokens.

        Args:
            positions: [number of rows of logits] int64.
        """
        arrays = list(self.arrays)
        arrays[_POSITIONS] = _words(positions[arrays[_ROWS]])
        return replace(self, arrays=arrays)

    def table(self, tensors: Sequence[Tensor]) -> DrawTable:
        """Return the table whose tensors are these arrays on a device."""
        return DrawTable(*tensors, num_top_k=self.num_top_k, max_top_k=self.max_top_k, num_limited=self.num_limited)


def _words(numbers: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return numbers as 32 bits each, whose sign means nothing."""
    return (np.array(numbers, dtype=np.int64) & _UINT32_MASK).astype(np.uint32).view(np.int32)
