"""From `LoadModel` to a runner that can take steps: configuration, weights, KV pool, one warm step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from pagewire.ipc.errors import MachineError
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, ExecutorReady, LoadModel, NewRow, ScheduledRow

from .batch.device_tokens import most_token_bytes
from .batch.input_batch import InputBatch
from .batch.kv_cache import KVCache, bytes_per_block
from .batch.step_plan import RowLimits
from .compute_dtype import dtype_name
from .cuda_graphs import DecodeGraphs, GraphBuffers
from .device_memory import Allocator, GpuMeter, HostMeter, MemoryMeter
from .devices.graph_recorder import CudaRecorder
from .host_limits import HostLimits
from .kernels.ops import Ops
from .kv_scales import KVScales, choose_scales
from .load_plan import LoadPlan, plan_load
from .memory import MemoryUse, blocks_ever_needed, check_weights_fit, size_pool
from .model_runner import ModelRunner
from .models.base import Model
from .models.registry import build_model
from .parallel.connect import connect_ranks
from .parallel.peers import NO_PEERS, Peers
from .parallel.stage_link import StageLink
from .profile_run import ProfileRun
from .sampling.device_sampler import DeviceSampler
from .sampling.pending import Drawing
from .sampling.sampler import Sampler
from .speculation.select import make_proposer
from .weights import load_weights

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
        model = _load_model(plan, peers)
    all_scales = choose_scales(model.kv_scales(), plan.kv_dtype, plan.model.model_path)
    kv_scales = all_scales[model.stage_layers.start : model.stage_layers.stop]
    meter.note_weights()
    sampler = _make_sampler(plan)
    buffers = _make_graph_buffers(plan)
    with startup.phase("memory profile"):
        use = meter.measure(_make_profile_run(plan, model, sampler, kv_scales, buffers), len(plan.graph_sizes))
        if plan.ops.draws_on_device:  # made when a request first asks for penalties
            of_tokens = most_token_bytes(plan.limits.max_num_seqs, plan.max_model_len)
            use = replace(use, workspace=use.workspace + of_tokens)
    with startup.phase("KV cache"):
        num_blocks, budget = _settle_blocks(message, plan, peers, model, use, meter.free_share)
        kv_cache = _make_kv_cache(plan, model, num_blocks, kv_scales)
    graphs = _make_graphs(plan, model, kv_cache, buffers, use)
    runner = _make_runner(plan, model, kv_cache, sampler, graphs, _link_stages(plan, peers))
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
    )


def _load_model(plan: LoadPlan, peers: Peers) -> Model:
    options, device, max_model_len = plan.config.model, plan.device.torch_device, plan.max_model_len
    try:
        model = build_model(
            plan.model,
            plan.ops,
            dtype=plan.weight_dtype,
            device=device,
            max_model_len=max_model_len,
            share=peers.share,
            stage=peers.stage,
            divides_experts=plan.config.parallel.enable_expert_parallel,
        )
    except RuntimeError as exc:  # torch's answer when an allocation fails
        raise MachineError(
            f"Can't allocate the weights of {plan.model.model_path} and a rotary table of {max_model_len} positions on "
            f"{device}: lower --max-model-len, give a smaller --dtype, serve a smaller model, or free memory."
        ) from exc
    share, memory = plan.config.cache.gpu_memory_utilization, plan.device.memory()
    # Others that share the memory may have read theirs already: what is free is not divided yet.
    memory = replace(memory.divided(plan.num_sharing), free_bytes=memory.free_bytes)

    def check_size(num_bytes: int) -> None:
        check_weights_fit(num_bytes, plan.dtypes, share, memory)
        logger.info("weights: %.1f MB in memory; %s", num_bytes / 1e6, plan.dtypes)

    load_weights(
        model,
        plan.model,
        load_format=options.load_format,
        num_threads=plan.num_threads,
        check_size=check_size,
    )
    return model


def _make_sampler(plan: LoadPlan) -> Drawing:
    if plan.ops.draws_on_device:
        return DeviceSampler(plan.num_drawable, plan.ops, plan.device)
    return Sampler(plan.num_drawable, plan.ops)


def _make_profile_run(
    plan: LoadPlan, model: Model, sampler: Drawing, kv_scales: Sequence[KVScales], buffers: GraphBuffers | None
) -> ProfileRun:
    return ProfileRun(
        model,
        sampler,
        _make_kv_cache(plan, model, 2, kv_scales),
        plan.limits,
        max_model_len=plan.max_model_len,
        device=plan.device.torch_device,
        stream=torch.zeros(1, plan.model.hidden_size, dtype=plan.dtype, device=plan.device.torch_device),
        graph_logits=None if buffers is None else buffers.logits,
    )


def _settle_blocks(
    message: LoadModel, plan: LoadPlan, peers: Peers, model: Model, use: MemoryUse, free_share: float | None
) -> tuple[int, str]:
    """Return the number of blocks and the budget's line: an earlier epoch's number, or what fits on all ranks."""
    if message.num_blocks is not None:
        return message.num_blocks, f"{message.num_blocks:,} KV blocks, as settled at the first start"
    cache = plan.config.cache
    peers.everyone.least(0)  # all have their weights, so that what is free is what they divide
    budget = size_pool(
        cache,
        plan.device.memory().divided(plan.num_sharing),
        use,
        block_bytes=bytes_per_block(model.kv_cache_specs(), cache.block_size, plan.kv_dtype),
        max_blocks=blocks_ever_needed(plan.limits.max_num_seqs, plan.max_model_len, cache.block_size),
        free_share=free_share,
    )
    num_blocks = peers.everyone.least(budget.num_blocks)
    if num_blocks < budget.num_blocks:
        budget = replace(budget, num_blocks=num_blocks, limit="a rank with less room")
    return num_blocks, budget.describe()


def _make_kv_cache(plan: LoadPlan, model: Model, num_blocks: int, scales: Sequence[KVScales]) -> KVCache:
    return KVCache(
        model.kv_cache_specs(),
        num_blocks=num_blocks,
        block_size=plan.config.cache.block_size,
        dtype=plan.kv_dtype,
        device=plan.device.torch_device,
        ops=plan.ops,
        scales=scales,
    )


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
    plan: LoadPlan,
    model: Model,
    kv_cache: KVCache,
    sampler: Drawing,
    graphs: DecodeGraphs | None,
    link: StageLink | None,
) -> ModelRunner:
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
    proposer = make_proposer(plan.config.speculative) if plan.answers else None
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
