"""Ranks divide the rows of a vocabulary in order, and each finds the ids that it holds."""

from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.layers.build_context import BuildContext
from pagewire.gpu_executor.layers.embedding import VocabEmbedding
from pagewire.gpu_executor.parallel.share import Share
from pagewire.gpu_executor.quantization.dense import DenseMethod
from tests.support.memory_tensor import load_target


@pytest.mark.parametrize(
    ("vocab_size", "size", "counts"),
    [(12, 1, [12]), (12, 4, [3, 3, 3, 3]), (10, 4, [3, 3, 3, 1]), (5, 4, [2, 2, 1, 0])],
)
def test_ranks_hold_all_rows_in_order(vocab_size: int, size: int, counts: list[int]) -> None:
    rows = torch.randn(vocab_size, 8, generator=torch.Generator().manual_seed(0))
    ops = select_ops("reference")
    held = []
    for rank in range(size):
        context = BuildContext(
            ops, DenseMethod(ops), torch.float32, torch.float32, torch.device("cpu"), Share(rank, size)
        )
        embedding = VocabEmbedding("embedding", vocab_size, 8, context)
        (target,) = embedding.weight_targets()
        load_target(target, rows)
        assert target.is_elsewhere == (counts[rank] == 0)
        assert embedding.max_rows == counts[0]
        assert embedding.weight.out_features == len(embedding.token_ids) == counts[rank]
        if counts[rank]:
            held.append(ops.embedding(torch.arange(counts[rank]), embedding.weight, torch.float32))
    assert torch.equal(torch.cat(held), rows)
