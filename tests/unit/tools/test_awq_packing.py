"""AWQ's order, by its public description."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagewire.ipc.errors import ConfigError
from tools.awq_packing import AWQPacking


def test_words_hold_the_even_channels_below_the_odd_ones():
    matrix = (torch.randn(16, 64, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    qweight, qzeros, scales = AWQPacking(32).pack(matrix)
    assert (qweight.shape, qzeros.shape, scales.shape) == ((64, 2), (2, 2), (2, 16))
    wanted, group = matrix.t().double().numpy(), np.arange(64) // 32
    scale, zero = scales.double().numpy()[group], unpack(qzeros)[group]
    # Each code is the nearest that there is, whatever scale and zero point its group got.
    assert np.abs(unpack(qweight) - np.clip(wanted / scale + zero, 0, 15)).max() <= 0.5 + 1e-5
    # Those fit: 15 steps span a group's weights, but for the few that may be clipped for the good of all others.
    spans = [np.ptp(wanted[begin : begin + 32], axis=0) for begin in (0, 32)]
    ratio = 15 * scales.double().numpy() / np.stack(spans)
    assert 0.6 < ratio.min() < ratio.max() < 1.05


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
