"""A mask leaves what it allows, on the host and on the device."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pagewire.gpu_executor.sampling.token_masks import keep_allowed, masks_of_draws
from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.steps import ScheduledRow

VOCAB_SIZE = 70


def mask_bytes(*allowed: int) -> bytes:
    words = np.zeros(3, dtype="<u4")
    for token_id in allowed:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words.tobytes()


def test_allowed_logits_are_kept_and_all_others_are_out():
    row = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    kept = keep_allowed(row, np.frombuffer(mask_bytes(0, 31, 32, 69), dtype="<u4"))
    assert [i for i in range(VOCAB_SIZE) if kept[i] > -math.inf] == [0, 31, 32, 69]
    assert torch.equal(kept[[0, 31, 32, 69]], row[[0, 31, 32, 69]])


def test_each_draw_has_its_mask():
    rows = [
        ScheduledRow(1, 0, 1),
        ScheduledRow(2, 0, 3, draft_token_ids=[5, 6], is_masked=True),
        ScheduledRow(3, 0, 1, is_masked=True),
    ]
    masks = masks_of_draws(rows, {2: mask_bytes(1) + mask_bytes(2) + mask_bytes(3), 3: b""}, VOCAB_SIZE)
    assert masks[0] is None
    assert [mask.tobytes() for mask in masks[1:4]] == [mask_bytes(1), mask_bytes(2), mask_bytes(3)]
    assert masks[4] is None


@pytest.mark.parametrize("masks", [{}, {1: mask_bytes(1)[:-1]}, {1: mask_bytes(1) * 2}])
def test_row_without_its_mask_does_not_draw(masks):
    with pytest.raises(ProtocolError, match="row 1"):
        masks_of_draws([ScheduledRow(1, 0, 1, is_masked=True)], masks, VOCAB_SIZE)
