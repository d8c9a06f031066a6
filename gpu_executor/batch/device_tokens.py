"""The rows' tokens on the device, for draws that read them there: penalties go by all tokens of a row.

A row's tokens are sent once, when it comes. The device adds what it draws, which the host learns only later. Of a row
with drafts the host learns it first: drafts are sent with the step that checks them, and what was drawn, with the next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..sampling.draw import KeptTokens
from .row_table import FIRST_TOKENS, RowTable

# Growing takes room for the old tokens beside the new ones, which have twice as many columns.
_GROWTH_SHARE = 0.5


class NewTokens(NamedTuple):
    """Tokens that the device lacks.

    Attributes:
        places: [num_tokens] int64, where they go.
        token_ids: [num_tokens] int32.
    """

    places: np.ndarray
    token_ids: np.ndarray


class DeviceTokens:
    """Token ids of all rows, made when the first row comes whose draws read them there, and then kept.

    Args:
        device: where.
        table: the rows, on the host.
    """

    def __init__(self, device: torch.device, table: RowTable) -> None:
        self._table = table
        self._flat = torch.zeros(0, dtype=torch.int32, device=device)
        self._num_rows = self._width = 0
        self._readers: set[int] = set()
        self._changes: list[tuple[int, int, int]] = []  # (index, start, end) of tokens that the device lacks

    @property
    def are_read(self) -> bool:
        """Whether a row is held whose draws read its tokens here; what is drawn is not kept otherwise."""
        return bool(self._readers)

    def hold(self, index: int) -> None:
        """Take in a row that reads its tokens; the next step takes them along."""
        self._readers.add(index)
        self.note_tokens(index, 0, self._table.num_tokens[index])

    def note_tokens(self, index: int, start: int, end: int) -> None:
        """Note that a row's tokens [start, end) changed in the table; the next step takes them along if it reads them.

        They have to be known by then, and may be drafts.
        """
        if index in self._readers:
            self._changes.append((index, start, end))

    def release(self, index: int) -> None:
        """Note that a row is gone."""
        if index in self._readers:
            self._readers.remove(index)
            self._changes = [change for change in self._changes if change[0] != index]

    def make_room(self, num_tokens: int) -> None:
        """Follow the table, with room for rows of so many tokens at least."""
        num_rows, width = self._table.token_ids.shape
        width = max(width, self._width)
        if num_tokens > width:
            width = max(num_tokens, 2 * width)
        if (num_rows, width) == (self._num_rows, self._width):
            return
        tokens = self._flat.new_zeros(num_rows, width)
        if self._num_rows:
            tokens[: self._num_rows, : self._width] = self._flat.view(self._num_rows, self._width)
        self._flat, self._num_rows, self._width = tokens.view(-1), num_rows, width

    def take_new(self) -> NewTokens:
        """Return what the device lacks; it counts as sent from here on. To be called once there is room."""
        if not self._changes:
            return NewTokens(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32))
        changes, self._changes = self._changes, []
        places = [np.arange(index * self._width + start, index * self._width + end) for index, start, end in changes]
        tokens = [self._table.token_ids[index, start:end] for index, start, end in changes]
        return NewTokens(np.concatenate(places), np.concatenate(tokens))

    def places_of(self, indices: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return where tokens of some rows are: [num] int64."""
        places: np.ndarray = indices * self._width + positions
        return places

    def write(self, places: Tensor, token_ids: Tensor) -> None:
        """Write tokens to their places.

        Args:
            places: [num] int64, on the device; no two alike, unless their tokens are.
            token_ids: [num], on the device.
        """
        self._flat.index_copy_(0, places, token_ids.to(torch.int32))

    def of(self, index: int) -> KeptTokens:
        """Return where a row's tokens are, for draws of the step whose inputs were sent last."""
        return KeptTokens(self._flat, index * self._width)


def most_token_bytes(num_rows: int, max_tokens: int) -> int:
    """Return what the tokens of rows take at most, while they are moved to more room.

    Args:
        num_rows: held at once.
        max_tokens: of a row; room is made for up to twice as many.
    """
    columns = 1 << (max_tokens - 1).bit_length()
    return int((1 + _GROWTH_SHARE) * num_rows * max(columns, FIRST_TOKENS) * torch.int32.itemsize)
