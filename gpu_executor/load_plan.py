"""What a load settles before it allocates anything: device, kernels and dtypes, or why the flags can't be met."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from pagewire.checkpoint.draft_model import check_draft_model
from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.checkpoint.quantization.requested import apply_requested
from pagewire.ipc.config import EngineConfig, StepLimits
from pagewire.ipc.steps import RankPlacement

from .compute_dtype import compute_dtype, describe_dtypes, resolve_dtype, resolve_kv_dtype
from .cuda_graphs import graph_sizes
from .devices.base import Device
from .devices.select import select_device
from .host_limits import HostLimits
from .kernels.ops import Ops
from .kernels.select import select_ops

logger = logging.getLogger(__name__)

_ALONE = RankPlacement()


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Everything that is chosen once.

    Attributes:
        config: as the engine was started.
        model: what is served.
        device: where.
        ops: by which kernels.
        weight_dtype: of dense weights; None: each as the checkpoint stores it.
        kv_dtype: of cached keys and values.
        limits: of steps.
        num_threads: that read the checkpoint.
        placement: which of the engine's executors this is.
        draft: the same of the model that guesses; its config names that one, and the context that is served.
    """

    config: EngineConfig
    model: ModelConfig
    device: Device
    ops: Ops
    weight_dtype: torch.dtype | None
    kv_dtype: torch.dtype
    limits: StepLimits
    num_threads: int
    placement: RankPlacement = _ALONE
    draft: LoadPlan | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of activations."""
        return compute_dtype(self.weight_dtype, self.ops)

    @property
    def dtypes(self) -> str:
        """What the model computes in and is stored in, for people."""
        return describe_dtypes(self.weight_dtype, self.model, self.ops)

    @property
    def max_model_len(self) -> int:
        """The longest context that may be served, before it is fitted to the pool."""
        return self.config.model.max_model_len or self.model.max_position

    @property
    def max_blocks_of_request(self) -> int:
        """KV blocks that one request can have."""
        return -(-self.max_model_len // self.config.cache.block_size)

    @property
    def num_drawable(self) -> int:
        """Token ids that can be drawn."""
        return min(self.model.tokenizer_size, self.model.vocab_size)

    @property
    def answers(self) -> bool:
        """Whether this executor is the one that answers steps."""
        return self.placement.rank == self.config.parallel.mesh.output_rank

    @property
    def num_sharing(self) -> int:
        """Executors that divide the device's memory; a GPU is one executor's own."""
        return 1 if self.device.is_asynchronous else self.placement.num_on_host

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Rows of the graphs that are captured; none without a GPU.

        None either with pipeline stages, whose links are no part of a graph: a stage has a part of the layers, and as
        many steps in flight as there are stages hide their launches. To be read once `ops` has joined its ranks.
        """
        can_capture = (
            self.device.is_asynchronous
            and self.ops.can_be_captured
            and self.ops.ranks.can_be_captured
            and self.config.parallel.mesh.pp == 1
        )
        if not can_capture or self.config.model.enforce_eager:
            return ()
        # A step of decodes has a token a row.
        return graph_sizes(min(self.limits.max_num_seqs, self.limits.max_num_batched_tokens))


def plan_load(config: EngineConfig, host: HostLimits, placement: RankPlacement = _ALONE) -> LoadPlan:
    """Choose.

    Executors of one host divide its CPUs: each gets that many threads, and no cores of its own.

    Some flags ask a GPU for what a CPU always does and are harmless there: --enforce-eager, as it captures no graphs,
    and --batch-invariant.

    Raises:
        ConfigError: the checkpoint can't be read, or flags ask for what the device, the kernels or this machine lack.
    """
    options, num_cpus = config.model, max(1, host.num_cpus() // placement.num_on_host)
    model = load_model_config(Path(options.model_path or options.model))
    model = apply_requested(model, options.quantization)
    device, has_bfloat16 = select_device(options.device, options.kernels, host, placement)
    torch_device = device.torch_device
    ops = select_ops(
        options.kernels,
        device=torch_device,
        num_threads=options.cpu_threads or num_cpus,
        instruction_set=options.cpu_instruction_set,
        is_batch_invariant=options.batch_invariant,
        attention_backend=options.attention_backend,
    )
    # Kernels with threads of their own leave torch little to do. For the reference ops: torch's own number is what
    # OMP_NUM_THREADS or the machine says; a control group's quota it does not know.
    torch.set_num_threads(1 if ops.has_own_threads else options.cpu_threads or min(torch.get_num_threads(), num_cpus))
    if device.is_asynchronous:
        # Long products are cut along their sums, and the parts added up: in float32, as everywhere here.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    logger.info("kernels: %s on %s", ops.describe(), device.name)
    weight_dtype, kv_dtype = _resolve_dtypes(config, model, torch_device, ops, has_bfloat16=has_bfloat16)
    plan = LoadPlan(
        config=config,
        model=model,
        device=device,
        ops=ops,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        limits=config.scheduler.step_limits(torch_device.type),
        num_threads=options.cpu_threads or num_cpus,
        placement=placement,
    )
    if config.speculative.method != "draft_model":
        return plan
    return replace(plan, draft=_plan_draft(plan, has_bfloat16=has_bfloat16))


def _plan_draft(plan: LoadPlan, *, has_bfloat16: bool) -> LoadPlan:
    """Choose for the model that guesses: it is computed as its checkpoint is stored, by the same rules and kernels."""
    config, speculative = plan.config, plan.config.speculative
    path = speculative.speculative_model_path or speculative.speculative_model
    assert path is not None, "the config was checked"
    model = load_model_config(Path(path))
    check_draft_model(model, plan.model, plan.max_model_len)
    options = msgspec.structs.replace(config.model, model_path=path, max_model_len=plan.max_model_len)
    weight_dtype, kv_dtype = _resolve_dtypes(
        config, model, plan.device.torch_device, plan.ops, has_bfloat16=has_bfloat16
    )
    config = msgspec.structs.replace(config, model=options)
    return replace(plan, config=config, model=model, weight_dtype=weight_dtype, kv_dtype=kv_dtype)


def _resolve_dtypes(
    config: EngineConfig, model: ModelConfig, device: torch.device, ops: Ops, *, has_bfloat16: bool
) -> tuple[torch.dtype | None, torch.dtype]:
    """Return the dtype of a model's dense weights, and of its cached keys and values."""
    weight_dtype = resolve_dtype(config.model.dtype, model, device, ops, has_bfloat16=has_bfloat16)
    dtype = compute_dtype(weight_dtype, ops)
    kv_dtype = resolve_kv_dtype(config.cache.kv_cache_dtype, dtype, device, has_bfloat16=has_bfloat16)
    return weight_dtype, kv_dtype
