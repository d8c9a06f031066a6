"""The host edits rows of logits wherever they are: no tensor of its own meets them on another device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pagewire.gpu_executor.sampling.row_edits import PenaltyStrengths, RowEdits, TokenHistory, apply_edits

VOCAB_SIZE = 40
IDS = np.array([3, 5, 8], dtype=np.int64)
HISTORY = TokenHistory(np.array([1, 2, 5, 5, 60], dtype=np.int32), 2)
EDITS = {
    "allowed": RowEdits(allowed_ids=IDS),
    "masked": RowEdits(masked_ids=[IDS, IDS[:1]]),
    "biased": RowEdits(biased_ids=IDS, biases=np.ones(3, dtype=np.float32)),
    "repetition": RowEdits(penalties=PenaltyStrengths(1.3, 0.0, 0.0)),
    "frequency": RowEdits(penalties=PenaltyStrengths(1.0, 0.5, 0.2)),
}


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices, as a GPU does; single numbers and copies go across."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.ndim]
        if func is not torch.ops.aten._to_copy.default and len({tensor.device for tensor in tensors}) > 1:
            raise RuntimeError(f"{func}: tensors are on two devices")
        return func(*args, **kwargs)


@pytest.mark.parametrize("kind", EDITS)
def test_row_is_edited_on_its_own_device(kind):
    row = torch.empty(VOCAB_SIZE, device="meta")  # any device but the host's
    with OneDevice():
        with pytest.raises(RuntimeError, match="two devices"):
            row[:3] += torch.ones(3)
        apply_edits(row, EDITS[kind], HISTORY)
