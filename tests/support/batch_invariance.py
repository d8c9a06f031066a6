"""Requests alone, and the same ones in random batches and chunks: a token's logits must have the same bits."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from pagewire.gpu_executor.kv_cache_spec import LayerKVCache
from pagewire.gpu_executor.models.base import Model
from tests.support.paged import Chunk, nan_filled_cache, paged_step

LENGTHS = [40, 17, 90, 1, 33]


def assert_bits_are_a_requests_own(model: Model, kv_dtype: torch.dtype) -> None:
    """Run `LENGTHS` tokens of each of several requests in both ways and compare the logits of every token.

    Args:
        model: loaded, for a vocabulary of 512 and contexts of 128.
        kv_dtype: of the caches.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 512, (n,), generator=generator) for n in LENGTHS]
    block_ids = [range(7 * i + 6, 7 * i - 1, -1) for i in range(len(prompts))]

    def run(caches: Sequence[LayerKVCache], chunks: list[tuple[int, int, int]]) -> list[Tensor]:
        ids = torch.cat([prompts[r][s : s + n] for r, s, n in chunks])
        hidden = model.forward(ids, paged_step([Chunk(block_ids[r], s, n) for r, s, n in chunks]), caches)
        return list(model.compute_logits(hidden).split([n for _, _, n in chunks]))

    def new_caches() -> list[LayerKVCache]:
        return [nan_filled_cache(spec, 35, dtype=kv_dtype) for spec in model.kv_cache_specs()]

    alone = [run(new_caches(), [(r, 0, n)])[0] for r, n in enumerate(LENGTHS)]
    assert all(logits.isfinite().all() for logits in alone)
    rng, caches = random.Random(1), new_caches()
    done = [0] * len(prompts)
    while any(done[r] < n for r, n in enumerate(LENGTHS)):
        waiting = [r for r, n in enumerate(LENGTHS) if done[r] < n]
        chosen = rng.sample(waiting, rng.randint(1, len(waiting)))
        chunks = [(r, done[r], rng.randint(1, min(20, LENGTHS[r] - done[r]))) for r in chosen]
        for (request, start, num_tokens), logits in zip(chunks, run(caches, chunks), strict=True):
            assert torch.equal(logits, alone[request][start : start + num_tokens])
            done[request] += num_tokens
