"""The largest steps run on any pool, and ask of every op what the largest step would."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.batch.forward_metadata import ForwardMetadata
from pagewire.gpu_executor.batch.kv_cache import KVCache
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.kv_cache_spec import LayerKVCache
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.profile_run import ProfileRun
from pagewire.gpu_executor.sampling.sampler import Sampler
from pagewire.ipc.config import StepLimits
from tests.support.runner import make_runner
from tests.support.tiny_model import tiny_checkpoint

LIMITS = StepLimits(max_num_seqs=5, max_num_batched_tokens=70)
MAX_MODEL_LEN, BLOCK_SIZE = 32, 8


class WatchedModel:
    """A model that notes the steps that it is given."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.steps: list[ForwardMetadata] = []
        self.num_logits: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def forward(self, input_ids: Tensor, metadata: ForwardMetadata, kv_caches: Sequence[LayerKVCache]) -> Tensor:
        self.steps.append(metadata)
        return self._model.forward(input_ids, metadata, kv_caches)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        self.num_logits.append(hidden.shape[0])
        return self._model.compute_logits(hidden)

    def choose_tokens(self, hidden: Tensor, num_drawable: int, kept_rows: Sequence[int]) -> object:
        self.num_logits.append(len(kept_rows))
        return self._model.choose_tokens(hidden, num_drawable, kept_rows)


@pytest.fixture
def model() -> WatchedModel:
    return WatchedModel(make_runner(tiny_checkpoint()).model)


@pytest.fixture
def run(model: WatchedModel) -> ProfileRun:
    ops, device = select_ops("reference"), torch.device("cpu")
    pool = KVCache(
        model.kv_cache_specs(),  # type: ignore[operator]
        num_blocks=1,
        block_size=BLOCK_SIZE,
        dtype=torch.float16,
        device=device,
        ops=ops,
    )
    for layer in pool.layers:
        layer.key.fill_(1)
        layer.value.fill_(torch.nan)  # what comes out is of no interest
    return ProfileRun(
        model,  # type: ignore[arg-type]
        Sampler(512, ops),
        pool.layers,
        LIMITS,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        device=device,
    )


def test_the_prefill_fills_the_budget_with_the_longest_prompts(run: ProfileRun, model: WatchedModel) -> None:
    run.prefill()
    (step,) = model.steps
    assert step.query_start_loc.tolist() == [0, 32, 64, 70]
    assert step.positions.tolist() == [*range(32), *range(32), *range(6)]
    assert (step.max_query_len, step.max_seq_len) == (32, MAX_MODEL_LEN)
    assert step.block_tables.shape == (3, 4)
    assert (step.slot_mapping == -1).all()
    assert model.num_logits == [5, 64]  # the draws of all rows that run at once, and a piece of prompt logprobs


def test_the_decode_has_all_rows_and_is_launched_for_the_longest_context(run: ProfileRun, model: WatchedModel) -> None:
    run.decode()
    (step,) = model.steps
    assert step.query_start_loc.tolist() == [0, 1, 2, 3, 4, 5]
    assert (step.max_query_len, step.max_seq_len) == (1, MAX_MODEL_LEN)
    assert model.num_logits == [5]


def test_what_a_graph_holds_has_no_draws(run: ProfileRun, model: WatchedModel) -> None:
    run.decode_without_draws()
    assert len(model.steps) == 1
    assert model.num_logits == [5]


def test_a_rehearsal_has_a_step_of_each_kind_that_fits(run: ProfileRun, model: WatchedModel) -> None:
    run.rehearse()
    assert [step.query_start_loc.tolist() for step in model.steps] == [[0, 1], [0, 16]]  # contexts end at 32
    assert model.num_logits == [0, 1, 1, 0, 1, 1]  # greedy rows need no logits
