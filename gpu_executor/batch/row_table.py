"""The rows of the persistent batch as arrays, grown when needed, so that a step is built by indexing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

UNKNOWN_TOKEN = -1
"""Stands where a token was drawn on the device, which the host does not know yet."""

FIRST_TOKENS = 1024
"""Columns; a longer row doubles them."""


class RowTable:
    """Token ids and block tables of all rows, addressed by row index (a place in the arrays, reused when freed).

    Attributes:
        token_ids: [num_rows, max_tokens] int32; what lies beyond a row's num_tokens is undefined.
        block_tables: [num_rows, max_blocks] int32; entries beyond a row's num_blocks are undefined and never read.
        num_tokens, num_prompt_tokens, num_blocks: one a row. Lists, since they are read and counted up one by one:
            arrays take five times as long.
        generations: how often each row was freed: tells whoever comes back to a row whether it is still the same.
    """

    def __init__(self, num_rows: int, block_size: int) -> None:
        """Make room for `num_rows` rows; more are added when they come."""
        self.token_ids = np.zeros((num_rows, FIRST_TOKENS), dtype=np.int32)
        self.block_tables = np.zeros((num_rows, -(-FIRST_TOKENS // block_size)), dtype=np.int32)
        self.num_tokens = [0] * num_rows
        self.num_prompt_tokens = [0] * num_rows
        self.num_blocks = [0] * num_rows
        self.generations = [0] * num_rows
        self._free = list(range(num_rows - 1, -1, -1))

    def add(self, token_ids: np.ndarray, num_prompt_tokens: int, block_table: np.ndarray) -> int:
        """Take a free row and fill it; return its index."""
        if not self._free:
            self._add_rows(max(1, len(self.num_tokens)))
        index = self._free.pop()
        self.num_tokens[index] = self.num_blocks[index] = 0
        self.num_prompt_tokens[index] = num_prompt_tokens
        self.append_tokens(index, token_ids)
        self.append_blocks(index, block_table)
        return index

    def free(self, index: int) -> None:
        """Give a row back."""
        self.generations[index] += 1
        self._free.append(index)

    def append_tokens(self, index: int, token_ids: np.ndarray | Sequence[int]) -> None:
        """Add tokens at the end of a row."""
        start = self.num_tokens[index]
        end = start + len(token_ids)
        if end > self.token_ids.shape[1]:
            self.token_ids = _widen(self.token_ids, end)
        self.token_ids[index, start:end] = token_ids
        self.num_tokens[index] = end

    def append_token(self, index: int, token_id: int) -> None:
        """Add one token at the end of a row."""
        place = self.num_tokens[index]
        if place == self.token_ids.shape[1]:
            self.token_ids = _widen(self.token_ids, place + 1)
        self.token_ids[index, place] = token_id
        self.num_tokens[index] = place + 1

    def place_drafts(self, index: int, token_ids: Sequence[int]) -> None:
        """Put guesses behind a row's tokens, for the step at hand; they don't become tokens of it."""
        start = self.num_tokens[index]
        end = start + len(token_ids)
        if end > self.token_ids.shape[1]:
            self.token_ids = _widen(self.token_ids, end)
        self.token_ids[index, start:end] = token_ids

    def append_blocks(self, index: int, block_ids: np.ndarray | Sequence[int]) -> None:
        """Add block ids at the end of a row's block table."""
        start = self.num_blocks[index]
        end = start + len(block_ids)
        if end > self.block_tables.shape[1]:
            self.block_tables = _widen(self.block_tables, end)
        self.block_tables[index, start:end] = block_ids
        self.num_blocks[index] = end

    def tokens_of(self, index: int, num_drafts: int = 0) -> np.ndarray:
        """Return a row's tokens, and drafts behind them: [num_tokens + num_drafts] int32.

        A view that later appends may leave behind.
        """
        return self.token_ids[index, : self.num_tokens[index] + num_drafts]

    def blocks_of(self, index: int) -> np.ndarray:
        """Return a row's block table: [num_blocks] int32, a view."""
        return self.block_tables[index, : self.num_blocks[index]]

    def _add_rows(self, count: int) -> None:
        first = len(self.num_tokens)
        self.token_ids = _add_zeros(self.token_ids, count)
        self.block_tables = _add_zeros(self.block_tables, count)
        for counts in (self.num_tokens, self.num_prompt_tokens, self.num_blocks, self.generations):
            counts.extend([0] * count)
        self._free.extend(range(first + count - 1, first - 1, -1))


def _add_zeros(array: np.ndarray, num_rows: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((num_rows, array.shape[1]), dtype=array.dtype)])


def _widen(array: np.ndarray, needed: int) -> np.ndarray:
    wider = np.zeros((array.shape[0], max(needed, 2 * array.shape[1])), dtype=array.dtype)
    wider[:, : array.shape[1]] = array
    return wider
