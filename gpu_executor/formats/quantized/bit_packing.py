"""Codes of 4 or 8 bits out of the 32-bit words that integer formats store them in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Words that are unpacked at a time: what is in between the stored and the unpacked form stays in the cache.
CHUNK_WORDS = 1 << 18


@dataclass(frozen=True, slots=True)
class Words:
    """The words that hold a run of codes, and perhaps others at both ends.

    Attributes:
        run: the words.
        codes: the run, of the codes of those words.
    """

    run: range
    codes: slice

    def cut(self, unpacked: Tensor) -> Tensor:
        """Return the run's codes, [num_rows, codes], of those of its words."""
        return unpacked[:, self.codes].contiguous()


def words_of(codes: range, bits: int) -> Words:
    """Return the words that a run of codes of `bits` bits lies in."""
    per_word = 32 // bits
    run = range(codes.start // per_word, -(-codes.stop // per_word))
    first = codes.start - run.start * per_word
    return Words(run, slice(first, first + len(codes)))


def unpack_rows(words: Tensor, bits: int) -> Tensor:
    """Unpack words along their last dimension, the lowest bits of a word first.

    Args:
        words: [num_rows, num_words] int32, on the host.
        bits: of a code, 4 or 8.

    Returns:
        [num_rows, num_words * 32 / bits] uint8.
    """
    num_bytes = 4 * words.shape[1]
    # A copy in any case: a matrix of one row counts as contiguous whichever way it is turned.
    words = words.clone(memory_format=torch.contiguous_format)
    # The bytes of a word lie in its order: every platform that torch runs on is little-endian.
    stored = words.view(torch.uint8).view(words.shape[0], num_bytes)
    if bits == 8:
        return stored
    codes = torch.empty(words.shape[0], num_bytes, 2, dtype=torch.uint8)
    _split_nibbles(stored, codes)
    return codes.view(words.shape[0], 2 * num_bytes)


def unpack_columns(words: Tensor, bits: int) -> Tensor:
    """Unpack words along their first dimension, the lowest bits of a word first, and transpose.

    Args:
        words: [num_words, num_columns] int32, on the host.
        bits: of a code, 4 or 8.

    Returns:
        [num_columns, num_words * 32 / bits] uint8.
    """
    num_words, num_columns = words.shape
    codes = torch.empty(num_columns, num_words * 32 // bits, dtype=torch.uint8)
    step = max(CHUNK_WORDS // max(num_words, 1), 1)
    for begin in range(0, num_columns, step):
        end = min(begin + step, num_columns)
        codes[begin:end] = unpack_rows(words[:, begin:end].t(), bits)
    return codes


def _split_nibbles(stored: Tensor, codes: Tensor) -> None:
    """[..., n] bytes -> [..., n, 2] codes."""
    torch.bitwise_and(stored, 0x0F, out=codes[..., 0])
    torch.bitwise_right_shift(stored, 4, out=codes[..., 1])
