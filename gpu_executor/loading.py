"""From `LoadModel` to a runner that can take steps: configuration, weights, KV pool, one warm step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from pagewire.ipc.errors import ConfigError, ErrorInfo
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, ExecutorReady, LoadModel, NewRow, ScheduledRow

from .adapters.reading import AdapterReader
from .adapters.store import AdapterStore
from .batch.device_tokens import most_token_bytes
from .batch.input_batch import InputBatch
from .batch.kv_cache import KVCache
from .batch.step_plan import RowLimits
from .compute_dtype import CHECKPOINT_DTYPES, dtype_name
from .cuda_graphs import DecodeGraphs, GraphBuffers
from .device_memory import Allocator, GpuMeter, HostMeter, MemoryMeter
from .devices.graph_recorder import CudaRecorder
from .host_limits import HostLimits
from .kernels.ops import Ops
from .load_plan import LoadPlan, plan_load
from .loaded_model import LoadedModel
from .memory import MemoryUse, blocks_ever_needed, size_pool
from .model_runner import ModelRunner
from .models.base import Model
from .parallel.connect import connect_ranks
from .parallel.peers import NO_PEERS, Peers
from .parallel.share import WHOLE
from .parallel.stage_link import StageLink
from .sampling.device_sampler import DeviceSampler
from .sampling.pending import Drawing
from .sampling.sampler import Sampler
from .speculation.draft_model import DraftModel
from .speculation.proposer import Proposer
from .speculation.select import make_text_proposer

logger = logging.getLogger(__name__)

_WARM_ROW_ID = 0  # the core counts its rows from 1


@dataclass(frozen=True, slots=True)
class LoadedExecutor:
    """What a load leaves: the runner, the ops that its model calls, and the answer for the core."""

    runner: ModelRunner
    ops: Ops
    ready: ExecutorReady


class StartupClock:
    """Times the phases of a start, in order.

    Args:
        phases: (name, seconds) of what came before.
        clock: seconds, monotonic.
    """

    def __init__(
        self, phases: tuple[tuple[str, float], ...] = (), clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._phases = list(phases)
        self._clock = clock

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        started = self._clock()
        yield
        self._phases.append((name, round(self._clock() - started, 3)))

    @property
    def phases(self) -> tuple[tuple[str, float], ...]:
        """(name, seconds) of all phases that are over."""
        return tuple(self._phases)


def load_executor(message: LoadModel, host: HostLimits, startup: StartupClock) -> LoadedExecutor:
    """Load the model that a message names, allocate its KV pool and run one token through it.

    Raises:
        StartError: the configuration, the checkpoint or the machine does not allow it.
    """
    with startup.phase("model configuration"):
        plan = plan_load(message.config, host, message.placement)
    peers = _join_ranks(plan, startup)
    meter = _make_meter(plan, host)
    with startup.phase("weights"):
        target = LoadedModel.load(plan, peers)
        draft = _load_draft(target, peers)
    adapters = _make_adapter_store(target)
    meter.note_weights()
    sampler = _make_sampler(plan)
    buffers = _make_graph_buffers(plan)
    with startup.phase("memory profile"):
        use = meter.measure(
            target.make_profile_run(sampler, None if buffers is None else buffers.logits),
            len(plan.graph_sizes),
            None if draft is None else draft.make_profile_run(sampler),
        )
        if adapters is not None:  # read later, some of them at run time
            use = replace(use, workspace=use.workspace + plan.config.lora.max_loaded * adapters.most_bytes())
        if plan.ops.draws_on_device:  # made when a request first asks for penalties
            of_tokens = most_token_bytes(plan.limits.max_num_seqs, plan.max_model_len)
            use = replace(use, workspace=use.workspace + of_tokens)
    with startup.phase("KV cache"):
        num_blocks, budget = _settle_blocks(message, peers, target, draft, use, meter.free_share)
        kv_cache = target.make_kv_cache(num_blocks)
        drafts = None if draft is None else (draft, draft.make_kv_cache(num_blocks))
    graphs = _make_graphs(plan, target.model, kv_cache, buffers, use)
    runner = _make_runner(target, kv_cache, drafts, sampler, graphs, _link_stages(plan, peers))
    runner.adapters = adapters
    digests: dict[int, str] = {}
    failed_adapters: dict[int, ErrorInfo] = {}
    if adapters is not None:
        with startup.phase("adapters"):
            digests, failed_adapters = _load_adapters(adapters, message)
    with startup.phase("warm-up"):
        _run_one_token(runner, message.executor_epoch)
    if graphs is not None and peers.of_layers.size > 1:
        with startup.phase("CUDA graphs"):
            graphs.capture_all(peers.of_layers)
    device_type = plan.device.torch_device.type
    ready = ExecutorReady(
        executor_epoch=message.executor_epoch,
        num_blocks=num_blocks,
        device=device_type,
        device_name="" if device_type == "cpu" else plan.device.name,
        dtype=plan.dtypes,
        kv_cache_dtype=dtype_name(plan.kv_dtype),
        startup=startup.phases,
        memory=budget,
        failed_adapters=failed_adapters,
        adapter_digests=digests,
    )
    return LoadedExecutor(runner=runner, ops=plan.ops, ready=ready)


def _join_ranks(plan: LoadPlan, startup: StartupClock) -> Peers:
    mesh = plan.config.parallel.mesh
    if mesh.world_size == 1:
        return NO_PEERS
    with startup.phase("other ranks"):
        peers = connect_ranks(
            plan.placement, mesh, plan.device.torch_device, is_batch_invariant=plan.config.model.batch_invariant
        )
    plan.ops.join(peers.of_layers)
    return peers


def _link_stages(plan: LoadPlan, peers: Peers) -> StageLink | None:
    if peers.of_stages is None:
        return None
    return StageLink(
        peers.of_stages,
        peers.stage,
        hidden_size=plan.model.hidden_size,
        dtype=plan.dtype,
        device=plan.device.torch_device,
    )


def _make_meter(plan: LoadPlan, host: HostLimits) -> MemoryMeter:
    if plan.device.is_asynchronous:
        return GpuMeter(plan.device, Allocator(plan.device.torch_device))
    return HostMeter(
        host,
        plan.model,
        plan.limits,
        plan.weight_dtype,
        widens=not plan.ops.has_float32_activations,
        num_ranks=plan.ops.ranks.size,
        draft=None if plan.draft is None else plan.draft.model,
    )


def _load_draft(target: LoadedModel, peers: Peers) -> LoadedModel | None:
    """Load the model that guesses, where there is one: on the ranks that draw, which divide its layers between them."""
    plan = target.plan
    if plan.draft is None or not peers.stage.is_last:
        return None
    if plan.ops.draws_on_device:
        raise ConfigError(
            f"--speculative-model {plan.draft.model.model_path}: draft models are not served yet by kernels that draw "
            f"on the device ({plan.ops.describe()}); give --speculative-method ngram or suffix instead."
        )
    return LoadedModel.load(plan.draft, replace(peers, stage=WHOLE), other_bytes=target.weight_bytes)


def _make_adapter_store(target: LoadedModel) -> AdapterStore | None:
    plan = target.plan
    if not plan.config.lora.enable_lora:
        return None
    # Where kernels keep activations in float32, weights may be of any type: adapters have the checkpoint's.
    dtype = plan.weight_dtype or CHECKPOINT_DTYPES.get(plan.model.dtype, torch.bfloat16)
    reader = AdapterReader(target.model, plan.ops, dtype, plan.device.torch_device, plan.config.lora.max_lora_rank)
    return AdapterStore(reader)


def _load_adapters(adapters: AdapterStore, message: LoadModel) -> tuple[dict[int, str], dict[int, ErrorInfo]]:
    """Read the adapters that there are; return their digests, and why those can't be read that could once."""
    digests: dict[int, str] = {}
    failed: dict[int, ErrorInfo] = {}
    for adapter in message.adapters:
        if message.num_blocks is None:  # the first start, which tells its user
            digests[adapter.load_id] = adapters.load(adapter)
            continue
        match adapters.try_load(adapter):
            case str() as digest:
                digests[adapter.load_id] = digest
            case error:
                logger.error("adapter %r is lost: %s", adapter.name, error.message)
                failed[adapter.load_id] = error
    return digests, failed


def _make_sampler(plan: LoadPlan) -> Drawing:
    if plan.ops.draws_on_device:
        return DeviceSampler(plan.num_drawable, plan.ops, plan.device)
    return Sampler(plan.num_drawable, plan.ops)


def _settle_blocks(
    message: LoadModel,
    peers: Peers,
    target: LoadedModel,
    draft: LoadedModel | None,
    use: MemoryUse,
    free_share: float | None,
) -> tuple[int, str]:
    """Return the number of blocks and the budget's line: an earlier epoch's number, or what fits on all ranks."""
    if message.num_blocks is not None:
        return message.num_blocks, f"{message.num_blocks:,} KV blocks, as settled at the first start"
    plan = target.plan
    cache = plan.config.cache
    peers.everyone.least(0)  # all have their weights, so that what is free is what they divide
    budget = size_pool(
        cache,
        plan.device.memory().divided(plan.num_sharing),
        use,
        block_bytes=target.block_bytes + (0 if draft is None else draft.block_bytes),
        max_blocks=blocks_ever_needed(plan.limits.max_num_seqs, plan.max_model_len, cache.block_size),
        free_share=free_share,
    )
    num_blocks = peers.everyone.least(budget.num_blocks)
    if num_blocks < budget.num_blocks:
        budget = replace(budget, num_blocks=num_blocks, limit="a rank with less room")
    described = budget.describe()
    if draft is not None:
        of_weights, per_token = draft.weight_bytes / 2**30, draft.block_bytes / cache.block_size / 1024
        described += f"; of that, the draft model has {of_weights:.2f} GiB of weights and {per_token:.1f} KiB a token"
    return num_blocks, described


def _make_graph_buffers(plan: LoadPlan) -> GraphBuffers | None:
    if not plan.graph_sizes:
        return None
    return GraphBuffers.allocate(
        plan.graph_sizes[-1],
        plan.max_blocks_of_request,
        hidden_size=plan.model.hidden_size,
        vocab_size=plan.model.vocab_size,
        dtype=plan.dtype,
        device=plan.device.torch_device,
    )


def _make_graphs(
    plan: LoadPlan, model: Model, kv_cache: KVCache, buffers: GraphBuffers | None, use: MemoryUse
) -> DecodeGraphs | None:
    if buffers is None:
        return None
    recorder = CudaRecorder(plan.device.torch_device)
    return DecodeGraphs(model, kv_cache, buffers, recorder, sizes=plan.graph_sizes, reserve_bytes=use.graphs)


def _make_runner(
    target: LoadedModel,
    kv_cache: KVCache,
    drafts: tuple[LoadedModel, KVCache] | None,
    sampler: Drawing,
    graphs: DecodeGraphs | None,
    link: StageLink | None,
) -> ModelRunner:
    plan, model = target.plan, target.model
    limits = RowLimits(
        num_blocks=kv_cache.num_blocks,
        block_size=kv_cache.block_size,
        vocab_size=plan.model.vocab_size,
        num_drawable=plan.num_drawable,
    )
    drawing_device = plan.device if plan.ops.draws_on_device else None
    batch = InputBatch(
        plan.limits.max_num_seqs, limits, plan.device.torch_device, drawing_device, draws=model.stage.is_last
    )
    proposer: Proposer | None = None
    if drafts is not None:
        draft, draft_cache = drafts
        max_num_tokens = plan.limits.max_num_batched_tokens
        proposer = DraftModel(draft.model, draft_cache, batch, sampler, max_num_batched_tokens=max_num_tokens)
    elif plan.answers:
        proposer = make_text_proposer(plan.config.speculative)
    return ModelRunner(model, kv_cache, batch, sampler, graphs, link, proposer)


def _run_one_token(runner: ModelRunner, epoch: int) -> None:
    """Take a step, so that what a library sets up at first use, or can't do at all, shows now and not at a request.

    All ranks take it: links between stages are used as well.
    """
    row = NewRow(
        row_id=_WARM_ROW_ID,
        child=0,
        token_ids=[0],
        num_prompt_tokens=1,
        num_computed_tokens=0,
        block_table=[0],
        sampling=Sampling(temperature=1.0, num_logprobs=1),
    )
    step = ExecuteStep(executor_epoch=epoch, step_id=0, new_rows=[row], rows=[ScheduledRow(_WARM_ROW_ID, 0, 1)])
    for result in runner.execute(step).rows:
        if result.error is not None:
            logger.warning("the model's answer to token id 0 is unusable: %s", result.error.message)
    runner.batch.remove([_WARM_ROW_ID])
