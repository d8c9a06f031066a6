"""From `LoadModel` to a runner that can take steps: configuration, weights, KV pool, one warm step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.config import EngineConfig, StepLimits
from pagewire.ipc.errors import MachineError
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, ExecutorReady, LoadModel, NewRow, ScheduledRow

from .batch.input_batch import InputBatch
from .batch.kv_cache import KVCache, bytes_per_block
from .batch.step_plan import RowLimits
from .compute_dtype import compute_dtype, describe_dtypes, resolve_dtype
from .host_limits import HostLimits
from .kernels.ops import Ops
from .kernels.select import select_ops
from .memory import MemoryUse, blocks_ever_needed, check_weights_fit, estimate_workspace, size_pool
from .model_runner import ModelRunner
from .models.base import Model
from .models.registry import build_model
from .sampling.sampler import Sampler
from .weights import load_weights

logger = logging.getLogger(__name__)

_KV_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
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
    config = message.config
    device = torch.device("cpu")
    limits = config.scheduler.step_limits(device.type)
    with startup.phase("model configuration"):
        model_config = load_model_config(Path(config.model.model_path or config.model.model))
        ops = _select_ops(config, host)
        dtype = resolve_dtype(config.model.dtype, model_config, device, ops)
        dtypes = describe_dtypes(dtype, model_config, ops)
        kv_dtype = resolve_kv_dtype(config.cache.kv_cache_dtype, compute_dtype(dtype, ops), device)
    resident_before = host.resident_bytes()
    with startup.phase("weights"):
        model = _build_model(config, model_config, ops, dtype, device)
        share, memory = config.cache.gpu_memory_utilization, host.memory()
        load_weights(
            model,
            model_config,
            num_threads=config.model.cpu_threads or host.num_cpus(),
            check_size=lambda size: check_weights_fit(size, dtypes, share, memory),
        )
    with startup.phase("KV cache"):
        use = MemoryUse(
            weights=max(0, host.resident_bytes() - resident_before),
            runtime=resident_before,
            workspace=estimate_workspace(model_config, limits, dtype, widens=not ops.has_float32_activations),
        )
        num_blocks, budget = _settle_blocks(message, limits, model_config, model, kv_dtype, use, host)
        kv_cache = KVCache(
            model.kv_cache_specs(),
            num_blocks=num_blocks,
            block_size=config.cache.block_size,
            dtype=kv_dtype,
            device=device,
            ops=ops,
        )
        runner = _make_runner(limits, model_config, model, kv_cache, ops, device)
    with startup.phase("warm-up"):
        _run_one_token(runner, message.executor_epoch)
    ready = ExecutorReady(
        executor_epoch=message.executor_epoch,
        num_blocks=num_blocks,
        device=device.type,
        dtype=dtypes,
        kv_cache_dtype=_name(kv_dtype),
        startup=startup.phases,
        memory=budget,
    )
    return LoadedExecutor(runner=runner, ops=ops, ready=ready)


def _select_ops(config: EngineConfig, host: HostLimits) -> Ops:
    """Return the kernels, with the machine's cores divided: only one pool of threads may use them."""
    options, num_cpus = config.model, host.num_cpus()
    ops = select_ops(
        options.kernels,
        num_threads=options.cpu_threads or num_cpus,
        instruction_set=options.cpu_instruction_set,
    )
    # Kernels with threads of their own leave torch little to do. For the reference ops: torch's own number is what
    # OMP_NUM_THREADS or the machine says; a control group's quota it does not know.
    torch.set_num_threads(1 if ops.has_own_threads else options.cpu_threads or min(torch.get_num_threads(), num_cpus))
    logger.info("kernels: %s", ops.describe())
    return ops


def resolve_kv_dtype(requested: str, model_dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of cached keys and values; "auto" is float16 on a CPU, else the model's.

    On a CPU the cache is read far more often than it is written, and half the bytes is half the time.
    """
    if requested == "auto":
        return torch.float16 if device.type == "cpu" else model_dtype
    return _KV_DTYPES[requested]


def _build_model(
    config: EngineConfig, model_config: ModelConfig, ops: Ops, dtype: torch.dtype | None, device: torch.device
) -> Model:
    max_model_len = config.model.max_model_len
    try:
        return build_model(model_config, ops, dtype=dtype, device=device, max_model_len=max_model_len)
    except RuntimeError as exc:  # torch's answer when an allocation fails
        raise MachineError(
            f"Can't allocate the weights of {model_config.model_path} and a rotary table of "
            f"{max_model_len or model_config.max_position} positions on {device}: lower --max-model-len, give a "
            "smaller --dtype, serve a smaller model, or free memory."
        ) from exc


def _settle_blocks(
    message: LoadModel,
    limits: StepLimits,
    model_config: ModelConfig,
    model: Model,
    kv_dtype: torch.dtype,
    use: MemoryUse,
    host: HostLimits,
) -> tuple[int, str]:
    """Return the number of blocks and the budget's line: an earlier epoch's number, or what fits."""
    config = message.config
    block_bytes = bytes_per_block(model.kv_cache_specs(), config.cache.block_size, kv_dtype)
    if message.num_blocks is not None:
        return message.num_blocks, f"{message.num_blocks:,} KV blocks, as settled at the first start"
    max_model_len = config.model.max_model_len or model_config.max_position
    budget = size_pool(
        config.cache,
        host.memory(),
        use,
        block_bytes=block_bytes,
        max_blocks=blocks_ever_needed(limits.max_num_seqs, max_model_len, config.cache.block_size),
    )
    return budget.num_blocks, budget.describe()


def _make_runner(
    limits: StepLimits,
    model_config: ModelConfig,
    model: Model,
    kv_cache: KVCache,
    ops: Ops,
    device: torch.device,
) -> ModelRunner:
    num_drawable = min(model_config.tokenizer_size, model_config.vocab_size)
    row_limits = RowLimits(
        num_blocks=kv_cache.num_blocks,
        block_size=kv_cache.block_size,
        vocab_size=model_config.vocab_size,
        num_drawable=num_drawable,
    )
    batch = InputBatch(limits.max_num_seqs, row_limits, device)
    return ModelRunner(model, kv_cache, batch, Sampler(num_drawable, ops))


def _run_one_token(runner: ModelRunner, epoch: int) -> None:
    """Take a step, so that what a library sets up at first use, or can't do at all, shows now and not at a request."""
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
