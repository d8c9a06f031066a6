"""AWQ's order, by its public description."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagewire.ipc.errors import ConfigError
from tools.awq_packing import AWQPacking


def test_words_hold_the_even_channels_below_the_odd_ones():
    matrix = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)) * 0.02
    qweight, qzeros, scales = AWQPacking(32).pack(matrix.bfloat16())
    assert (qweight.shape, qzeros.shape, scales.shape) == ((64, 2), (2, 2), (2, 16))
    codes, zeros = (unpack(words) for words in (qweight, qzeros))
    group = np.arange(64) // 32
    unpacked = (codes - zeros[group]) * scales.double().numpy()[group]
    step = scales.double().numpy()[group]
    assert (np.abs(unpacked.T - matrix.double().numpy()) < 1.2 * step.T).mean() > 0.99


def unpack(words: torch.Tensor) -> np.ndarray:
    """Output channel o of a word lies in the nibble that the order 0 2 4 6 1 3 5 7 gives it."""
    numbers = words.numpy().view(np.uint32)
    channels = np.zeros((words.shape[0], words.shape[1] * 8), dtype=np.int64)
    for nibble, channel in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        channels[:, channel::8] = numbers >> (4 * nibble) & 15
    return channels


def test_matrix_that_words_do_not_divide_is_refused():
    with pytest.raises(ConfigError, match=r"^m: awq packs 8 output channels a word, and it has 12"):
        AWQPacking(32).check("m", (12, 64))
