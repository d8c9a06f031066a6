"""A real model runner on a tiny checkpoint, and the smallest scheduler that can drive it."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.gpu_executor.batch.input_batch import InputBatch
from pagewire.gpu_executor.batch.kv_cache import KVCache
from pagewire.gpu_executor.batch.step_plan import RowLimits
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.model_runner import ModelRunner
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.sampling.sampler import Sampler
from pagewire.gpu_executor.speculation.proposer import Proposer
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, NewRow, RowResult, ScheduledRow

BLOCK_SIZE = 4
NUM_BLOCKS = 64


def make_runner(
    checkpoint: Path, *, num_blocks: int = NUM_BLOCKS, kernels: str = "reference", proposer: Proposer | None = None
) -> ModelRunner:
    """Return a runner whose whole pool is NaN: whatever reads a slot that was not written shows.

    With a proposer, its steps take no time: whether drafts would pay then hangs on nothing that is measured.
    """
    torch.set_num_threads(1)  # a tiny model's products are too small to share
    device, ops = torch.device("cpu"), select_ops(kernels)
    config, model = _load(checkpoint, kernels)
    kv_cache = KVCache(
        model.kv_cache_specs(),
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        dtype=torch.float16,
        device=device,
        ops=ops,
    )
    for layer in kv_cache.layers:
        layer.key.fill_(math.nan)
        layer.value.fill_(math.nan)
    limits = RowLimits(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        vocab_size=config.vocab_size,
        num_drawable=config.tokenizer_size,
    )
    clock = time.perf_counter if proposer is None else lambda: 0.0
    batch = InputBatch(max_num_seqs=2, limits=limits, device=device)
    return ModelRunner(model, kv_cache, batch, Sampler(config.tokenizer_size, ops), proposer=proposer, clock=clock)


@functools.cache
def _load(checkpoint: Path, kernels: str) -> tuple[ModelConfig, Model]:
    """Load a model once: it keeps no state between steps."""
    config = load_model_config(checkpoint)
    model = build_model(config, select_ops(kernels), dtype=torch.float32, device=torch.device("cpu"))
    load_weights(model, config)
    return config, model


@dataclass
class Row:
    """A row as its scheduler sees it, and all that the runner said of it."""

    row_id: int
    prompt: list[int]
    sampling: Sampling
    block_table: list[int]
    child: int = 0
    num_computed: int = 0
    tokens: list[int] = field(default_factory=list)
    is_held: bool = False
    results: list[RowResult] = field(default_factory=list)

    @property
    def report(self) -> tuple[list[int], list[object], list[object]]:
        """Tokens, logprobs and prompt logprobs: equal reports are equal bits."""
        return (
            [token_id for result in self.results for token_id in result.token_ids],
            [entry for result in self.results for entry in result.logprobs],
            [entry for result in self.results for entry in result.prompt_logprobs],
        )


class RunnerDriver:
    """Sends steps and applies their results, without prefix cache, preemption or budget."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.num_steps = 0

    def step(
        self, shares: list[tuple[Row, int]], *, drafts: Mapping[int, list[int]] | None = None, **options: object
    ) -> list[RowResult]:
        """Compute so many tokens of each row; a row draws when its last token is among them.

        Drafts are given by row id, and come on top of the tokens.
        """
        drafts = drafts or {}
        self.num_steps += 1
        new_rows, rows = [], []
        for row, num_scheduled in shares:
            known = row.prompt + row.tokens
            if not row.is_held:
                new_rows.append(self.new_row(row, known))
                row.is_held = True
            draws = int(row.num_computed + num_scheduled == len(known))
            guesses = drafts.get(row.row_id, [])
            num_tokens = num_scheduled + len(guesses)
            rows.append(ScheduledRow(row.row_id, row.num_computed, num_tokens, draws, draft_token_ids=guesses))
            row.num_computed += num_scheduled
        step = ExecuteStep(
            executor_epoch=1,
            step_id=self.num_steps,
            new_rows=new_rows,
            rows=rows,
            **options,  # type: ignore[arg-type]
        )
        results = self.runner.execute(step).rows
        for result in results:
            row = next(row for row, _ in shares if row.row_id == result.row_id)
            row.results.append(result)
            given = result.token_ids[: 1 + len(drafts.get(row.row_id, []))]
            row.tokens += given
            row.num_computed += max(len(given) - 1, 0)
        return results

    def run(self, rows: list[Row], *, num_tokens: int, chunk: int = 1000) -> None:
        """Run rows together, prompts in chunks, until each has so many output tokens."""
        while unfinished := [row for row in rows if len(row.tokens) < num_tokens]:
            self.step([(row, min(chunk, len(row.prompt + row.tokens) - row.num_computed)) for row in unfinished])

    @staticmethod
    def new_row(row: Row, known: list[int]) -> NewRow:
        """Return a row's full data."""
        return NewRow(
            row_id=row.row_id,
            child=row.child,
            token_ids=known,
            num_prompt_tokens=len(row.prompt),
            num_computed_tokens=row.num_computed,
            block_table=row.block_table,
            sampling=row.sampling,
        )
