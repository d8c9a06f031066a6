"""Runners and engines in which a draft model guesses for a tiny one."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from pagewire.gpu_executor.batch.kv_cache import KVCache
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.model_runner import ModelRunner
from pagewire.gpu_executor.speculation.draft_model import DraftModel
from tests.support.builders import build_driver
from tests.support.model_driver import ModelDriver
from tests.support.runner import BLOCK_SIZE, _load, make_runner


def make_draft_runner(
    target: Path, draft: Path, *, num_blocks: int, kernels: str = "reference", max_num_batched_tokens: int = 64
) -> ModelRunner:
    """Return a runner with a draft model, whose pool is NaN as well: a guess that read it would fail."""
    runner = make_runner(target, num_blocks=num_blocks, kernels=kernels)
    _, model = _load(draft, kernels)
    cache = KVCache(
        model.kv_cache_specs(),
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        dtype=torch.float16,
        device=torch.device("cpu"),
        ops=select_ops(kernels),
    )
    for layer in cache.layers:
        layer.key.fill_(math.nan)
        layer.value.fill_(math.nan)
    proposer = DraftModel(model, cache, runner.batch, runner.sampler, max_num_batched_tokens=max_num_batched_tokens)
    return ModelRunner(runner.model, runner.kv_cache, runner.batch, runner.sampler, proposer=proposer)


def build_draft_driver(
    target: Path,
    draft: Path,
    *,
    num_blocks: int = 64,
    max_model_len: int = 44,
    max_drafts: int = 3,
    kernels: str = "reference",
    **options: object,
) -> ModelDriver:
    """Return an engine over such a runner; `options` are those of `build_driver`."""
    driver = build_driver(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=max_model_len,
        vocab_size=128,
        max_drafts=max_drafts,
        has_draft_model=True,
        **options,  # type: ignore[arg-type]
    )
    runner = make_draft_runner(target, draft, num_blocks=num_blocks, kernels=kernels)
    return ModelDriver(driver.engine, runner, max_model_len=max_model_len)  # type: ignore[arg-type]
