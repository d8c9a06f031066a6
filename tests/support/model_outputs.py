"""What models are compared by: logits of a prompt, and the tokens that follow some."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.support.paged import Chunk, nan_filled_cache, paged_step
from tests.support.sharded_model import ShardedModel


def logits_of(model: ShardedModel, num_tokens: int = 40) -> Tensor:
    """Return the logits of each token of a random prompt."""
    ids = torch.randint(0, 128, (num_tokens,), generator=torch.Generator().manual_seed(0))
    caches = [nan_filled_cache(spec, 4) for spec in model.kv_cache_specs()]
    return model.compute_logits(model.forward(ids, paged_step([Chunk([3, 1, 2], 0, num_tokens)]), caches))


def greedy_ids(model: ShardedModel, lengths: tuple[int, ...] = (1, 7, 30), num_steps: int = 6) -> list[list[int]]:
    """Return the tokens that follow prompts of some lengths, all in one batch."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.cat([torch.randint(0, 128, (n,), generator=generator) for n in lengths])
    caches = [nan_filled_cache(spec, 3 * len(lengths)) for spec in model.kv_cache_specs()]
    blocks = [range(3 * row, 3 * row + 3) for row in range(len(lengths))]
    chunks = [Chunk(blocks[row], 0, length) for row, length in enumerate(lengths)]
    steps = []
    for _ in range(num_steps):
        hidden = model.forward(ids, paged_step(chunks), caches)
        last_rows = torch.tensor([chunk.num_tokens for chunk in chunks]).cumsum(0) - 1
        steps.append(model.choose_tokens(hidden[last_rows], 500, kept_rows=[]).best_ids)
        ids = torch.tensor(steps[-1])
        chunks = [Chunk(chunk.block_ids, chunk.start + chunk.num_tokens, 1) for chunk in chunks]
    return [list(tokens) for tokens in zip(*steps, strict=True)]


def error_of(logits: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((logits - expected).abs().max() / expected.abs().max())
