"""The largest steps run on any pool, and ask of every op what the largest step would."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.batch.forward_metadata import ForwardMetadata
from pagewire.gpu_executor.batch.kv_cache import KVCache
from pagewire.gpu_executor.devices.base import Device
from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.kernels.triton.launches.row import pick
from pagewire.gpu_executor.kernels.triton.launches.sampling import BOUNDS, DESCRIBE_ROWS
from pagewire.gpu_executor.kv_cache_spec import LayerKVCache
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.parallel.share import WHOLE, Share
from pagewire.gpu_executor.profile_run import ProfileRun
from pagewire.gpu_executor.sampling.device_sampler import DeviceSampler
from pagewire.gpu_executor.sampling.draw import Draw
from pagewire.gpu_executor.sampling.pending import FinishedDraws
from pagewire.gpu_executor.sampling.sampler import Sampler
from pagewire.ipc.config import StepLimits
from pagewire.ipc.sampling_params import Sampling
from tests.support.quick_interpreter import language_patched_once
from tests.support.runner import make_runner
from tests.support.tiny_model import tiny_checkpoint

LIMITS = StepLimits(max_num_seqs=5, max_num_batched_tokens=70)
MAX_MODEL_LEN, BLOCK_SIZE = 32, 8
CPU = torch.device("cpu")
STREAM = torch.zeros(1, 64)


class WatchedModel:
    """A model that notes the steps that it is given."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.steps: list[ForwardMetadata] = []
        self.num_logits: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def forward(
        self,
        input_ids: Tensor,
        metadata: ForwardMetadata,
        kv_caches: Sequence[LayerKVCache],
        stream: Tensor | None = None,
    ) -> Tensor:
        self.steps.append(metadata)
        return self._model.forward(input_ids, metadata, kv_caches, stream)

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        self.num_logits.append(hidden.shape[0])
        return self._model.compute_logits(hidden, out)

    def choose_tokens(self, hidden: Tensor, num_drawable: int, kept_rows: Sequence[int]) -> object:
        self.num_logits.append(len(kept_rows))
        return self._model.choose_tokens(hidden, num_drawable, kept_rows)


@pytest.fixture
def model() -> WatchedModel:
    return WatchedModel(make_runner(tiny_checkpoint()).model)


class WatchedPool(KVCache):
    """A pool that notes the copies that it is asked for."""

    copied: list[tuple[int, int]]

    def copy_blocks(self, copies: Sequence[tuple[int, int]], device: Device | None = None) -> None:
        self.copied += copies
        super().copy_blocks(copies, device)


@pytest.fixture
def pool(model: WatchedModel) -> WatchedPool:
    pool = WatchedPool(
        model.kv_cache_specs(),  # type: ignore[operator]
        num_blocks=2,
        block_size=BLOCK_SIZE,
        dtype=torch.float16,
        device=CPU,
        ops=select_ops("reference"),
    )
    pool.copied = []
    for layer in pool.layers:
        layer.key.fill_(1)
        layer.value.fill_(torch.nan)  # what comes out is of no interest
    return pool


@pytest.fixture
def run(model: WatchedModel, pool: WatchedPool) -> ProfileRun:
    return ProfileRun(
        model,  # type: ignore[arg-type]
        Sampler(512, select_ops("reference")),
        pool,
        LIMITS,
        max_model_len=MAX_MODEL_LEN,
        device=CPU,
        stream=STREAM,
    )


def test_the_prefill_fills_the_budget_with_the_longest_prompts(run: ProfileRun, model: WatchedModel) -> None:
    run.prefill()
    alone, step = model.steps
    assert alone.query_start_loc.tolist() == [0, 32, 64, 70]
    assert step.query_start_loc.tolist() == [0, 1, 2, 3, 4, 36, 68, 70]
    assert step.positions.tolist() == [0, 0, 0, 0, *range(32), *range(32), *range(2)]
    assert (step.max_query_len, step.max_seq_len) == (32, MAX_MODEL_LEN)
    assert step.block_tables.shape == (7, 4)
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


def test_what_a_graph_holds_is_measured_with_its_rows_and_where_it_writes(
    model: WatchedModel, pool: WatchedPool
) -> None:
    logits = torch.full((3, 512), -1.0)
    run = ProfileRun(
        model,  # type: ignore[arg-type]
        Sampler(512, select_ops("reference")),
        pool,
        LIMITS,
        max_model_len=MAX_MODEL_LEN,
        device=CPU,
        stream=STREAM,
        graph_logits=logits,
    )
    run.decode_without_draws()
    assert model.num_logits == [3]
    assert not (logits == -1.0).any()


def test_a_rehearsal_has_a_step_of_each_kind_that_fits(run: ProfileRun, model: WatchedModel, pool: WatchedPool) -> None:
    run.rehearse()
    usual, rare = model.steps[:3], model.steps[3:]
    assert [step.query_start_loc.tolist() for step in usual] == [[0, 1], [0, 16], [0, 1, 17]]  # contexts end at 32
    assert {step.max_seq_len for step in model.steps} == {MAX_MODEL_LEN}
    assert all(step.query_start_loc.tolist() == [0, 1] for step in rare)
    assert model.num_logits[:6] == [0, 1, 1, 0, 1, 1]  # greedy rows need no logits
    assert pool.copied == [(0, 0), (0, 1)]  # a block over itself, and blocks that are apart


class NotedSteps:
    """A model and a sampler that compute nothing and note what is asked of them."""

    vocab_size = 512
    stage = WHOLE

    def __init__(self) -> None:
        self.contexts: list[tuple[tuple[int, ...], int]] = []
        self.samplings: list[Sampling] = []

    def forward(
        self,
        input_ids: Tensor,
        metadata: ForwardMetadata,
        kv_caches: Sequence[LayerKVCache],
        stream: Tensor | None = None,
    ) -> Tensor:
        lengths = metadata.query_start_loc.diff().tolist()
        self.contexts.append((tuple(lengths), metadata.max_seq_len))
        return torch.zeros(input_ids.shape[0], 1)

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.zeros(hidden.shape[0], 1)

    def begin(
        self, model: object, hidden: Tensor, draws: Sequence[Draw], logits: Tensor | None = None
    ) -> FinishedDraws:
        self.samplings += [draw.row_sampling.sampling for draw in draws[:1]]
        return FinishedDraws([])


@pytest.fixture
def noted(pool: WatchedPool) -> NotedSteps:
    noted = NotedSteps()
    run = ProfileRun(
        noted,  # type: ignore[arg-type]
        noted,  # type: ignore[arg-type]
        pool,
        StepLimits(max_num_seqs=256, max_num_batched_tokens=8192),
        max_model_len=131072,
        device=CPU,
        stream=STREAM,
    )
    run.rehearse()
    run.prefill()
    run.decode()
    return noted


def test_small_steps_are_launched_for_short_contexts_and_for_the_longest(noted: NotedSteps) -> None:
    kinds = {(1,), (16,), (64,), (256,), (512,), (1, 16), (1, 16, 300)}
    assert {lengths for lengths, longest in noted.contexts if longest == 512} == kinds
    assert {lengths for lengths, longest in noted.contexts if longest == 2048} == kinds
    largest = {(8192,), (*[1] * 255, 7937), (1,) * 256}
    assert {lengths for lengths, longest in noted.contexts if longest == 131072} >= kinds | largest


class StageModel(NotedSteps):
    """A stage that notes the streams that it is given."""

    def __init__(self, stage: Share) -> None:
        super().__init__()
        self.stage = stage
        self.streams: list[Tensor | None] = []
        self.num_logits = 0

    def forward(
        self,
        input_ids: Tensor,
        metadata: ForwardMetadata,
        kv_caches: Sequence[LayerKVCache],
        stream: Tensor | None = None,
    ) -> Tensor:
        self.streams.append(stream)
        return torch.zeros(input_ids.shape[0], 64)

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        self.num_logits += 1
        return super().compute_logits(hidden, out)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_stage_is_given_a_stream_and_draws_if_it_is_the_last(pool: WatchedPool, rank: int) -> None:
    model = StageModel(Share(rank, 3))
    run = ProfileRun(
        model,  # type: ignore[arg-type]
        model,  # type: ignore[arg-type]
        pool,
        LIMITS,
        max_model_len=MAX_MODEL_LEN,
        device=CPU,
        stream=STREAM,
    )
    for work in (run.rehearse, run.prefill, run.decode, run.decode_without_draws):
        work()
    assert bool(model.samplings) == bool(model.num_logits) == (rank == 2)
    if rank == 0:
        assert set(model.streams) == {None}
    else:
        assert {stream.shape[1] for stream in model.streams if stream is not None} == {64}
        assert None not in [stream if stream is None else 0 for stream in model.streams]


def attention_kernels(lengths: Sequence[int], max_seq_len: int) -> set[tuple[str, bool, bool]]:
    """Return the kernels of attention that an H200 compiles for a step of Llama 3.1 8B: name, searched, shared."""
    from pagewire.gpu_executor.kernels.triton import attention_passes as passes

    query = torch.empty(sum(lengths), 32, 128, dtype=torch.bfloat16, device="meta")
    cache = torch.empty(1, 8, 16, 128, dtype=torch.bfloat16, device="meta")
    count = torch.empty(len(lengths), dtype=torch.int32, device="meta")
    metadata = ForwardMetadata(
        positions=count,
        slot_mapping=count,
        block_tables=count,
        query_start_loc=count,
        seq_lens=count,
        logits_indices=count,
        block_size=16,
        max_query_len=max(lengths),
        max_seq_len=max_seq_len,
    )
    device = passes.AttentionDevice(132, shared_kib=227, widens_e4m3=True, workspace_bytes=512 << 20)
    call = passes.AttentionCall(query, LayerKVCache(cache, cache), metadata, query, None, 1.0, None, device)
    kernels = set()
    for launch in passes.list_passes(call, is_batch_invariant=False):
        constants = {**launch.row.constants, "BLOCK_DIM": 128}
        is_shared = False
        if constants["SPLIT_LEN"]:
            splits = passes.most_splits(max_seq_len, None, constants["SPLIT_LEN"])
            is_shared = passes.plan_sharing(call, launch, splits, constants).num_slots > 1
        kernels.add((launch.row.kernel, launch.is_searched, is_shared))
    return kernels


@pytest.mark.parametrize("kinds", [(1,), (16,), (1, 16), (1, 300), (1, 16, 300), (700,)])
def test_every_kernel_of_attention_that_serving_takes_is_rehearsed(noted: NotedSteps, kinds: tuple[int, ...]) -> None:
    pytest.importorskip("triton")
    rehearsed = set().union(*(attention_kernels(lengths, longest) for lengths, longest in noted.contexts))
    for num_rows in (1, 2, 8, 60, 250):
        lengths = (kinds * num_rows)[: max(num_rows, len(kinds))]
        for max_seq_len in (500, 1000, 3000, 8000, 30_000, 131_072):
            served = attention_kernels(lengths, max(max_seq_len, *lengths, 1))
            assert served <= rehearsed, (lengths, max_seq_len)


def test_draws_take_every_kernel_that_draws_can_take(noted: NotedSteps) -> None:
    random = [sampling for sampling in noted.samplings if sampling.temperature > 0]
    bounds = [pick(BOUNDS, top_k=sampling.top_k) for sampling in random]
    assert all(row in bounds for row in BOUNDS)
    reports = [pick(DESCRIBE_ROWS, top=s.num_logprobs) for s in noted.samplings if s.num_logprobs is not None]
    assert all(row in reports for row in DESCRIBE_ROWS)
    edited = [sampling for sampling in noted.samplings if sampling.logit_bias]
    # Edits beside top_k or logprobs are those of the largest draw: the kernel that finds the best tokens does more.
    assert any(sampling.top_k == 0 and sampling.num_logprobs is None for sampling in edited)


@pytest.mark.slow  # interpreted
def test_a_rehearsal_runs_on_kernels_that_draw_on_the_device() -> None:
    pytest.importorskip("triton")
    ops = select_ops("triton", device=CPU)
    model = make_runner(tiny_checkpoint(), kernels="triton").model
    device = CpuDevice(HostLimits())
    pool = KVCache(
        model.kv_cache_specs(), num_blocks=2, block_size=BLOCK_SIZE, dtype=torch.float16, device=CPU, ops=ops
    )
    for layer in pool.layers:
        layer.key.fill_(1)
        layer.value.fill_(1)  # finite logits: all kernels compute
    run = ProfileRun(
        model,
        DeviceSampler(512, ops, device),
        pool,
        StepLimits(max_num_seqs=1, max_num_batched_tokens=1),
        max_model_len=MAX_MODEL_LEN,
        device=CPU,
        stream=STREAM,
    )
    with language_patched_once():
        run.rehearse()
        run.decode()
