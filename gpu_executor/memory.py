"""How many KV blocks fit: one budget for weights, runtime, work space and KV, settled once at the first start."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.config import CacheConfig, StepLimits
from pagewire.ipc.errors import MachineError

from .devices.base import DeviceMemory
from .model_runner import PROMPT_LOGPROBS_ROWS

# Keys that attention gathers at a time, and fp32 numbers it keeps for each of them besides key and value.
_ATTENTION_KEYS = 16384
_SCORES_PER_KEY = 48
_WORKSPACE_SLACK = 1.25  # allocator rounding, and tensors that overlap for the length of one op


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Where the memory goes. All sizes in bytes.

    Attributes:
        total: the device's memory; a CPU: the host's, or the control group's; this executor's part of it.
        source: what sets the total.
        utilization: share of it that may be used.
        free: what could still be had when the weights were loaded.
        weights: the loaded model.
        runtime: the process besides: interpreter and libraries, a GPU's context and code.
        workspace: activations, logits and sampling of the largest step.
        graphs: captured steps; 0 where none are captured.
        block_bytes: one KV block over all layers.
        block_size: tokens a block holds.
        num_blocks: blocks of the pool.
        limit: what kept the pool from being larger.
    """

    total: int
    source: str
    utilization: float
    free: int
    weights: int
    runtime: int
    workspace: int
    graphs: int
    block_bytes: int
    block_size: int
    num_blocks: int
    limit: str

    def describe(self) -> str:
        """Return the whole budget as one line."""
        graphs = f"CUDA graphs {_gib(self.graphs)}, " if self.graphs else ""
        return (
            f"{_gib(self.total)} {self.source} x {self.utilization:g}: weights {_gib(self.weights)}, "
            f"runtime {_gib(self.runtime)}, work space {_gib(self.workspace)}, {graphs}"
            f"KV cache {_gib(self.num_blocks * self.block_bytes)} = {self.num_blocks:,} blocks of {self.block_size} "
            f"tokens at {self.block_bytes / self.block_size / 1024:.1f} KiB a token (limited by {self.limit})"
        )


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What is taken, or spoken for, before the KV pool. All sizes in bytes.

    Attributes:
        weights: the loaded model.
        runtime: the process besides.
        workspace: of the largest step; free yet.
        graphs: of captured steps; free yet.
    """

    weights: int
    runtime: int
    workspace: int
    graphs: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.runtime + self.spoken_for

    @property
    def spoken_for(self) -> int:
        """What is free yet, and will not stay so."""
        return self.workspace + self.graphs

    def describe(self) -> str:
        """Return the sizes as text."""
        graphs = f", CUDA graphs ({_gib(self.graphs)})" if self.graphs else ""
        return (
            f"weights ({_gib(self.weights)}), runtime ({_gib(self.runtime)}){graphs} and work space "
            f"({_gib(self.workspace)})"
        )


def size_pool(
    cache: CacheConfig,
    memory: DeviceMemory,
    use: MemoryUse,
    *,
    block_bytes: int,
    max_blocks: int,
    free_share: float | None = None,
) -> MemoryBudget:
    """Settle the number of KV blocks.

    The share of the total is a limit, and a share of what is free is another.

    Args:
        cache: the flags.
        memory: read after the weights were loaded.
        use: what else needs memory.
        block_bytes: one block over all layers.
        max_blocks: more are never needed (all sequences at their longest).
        free_share: of the free memory that may be used; None: as much as of the total. So it is on a machine whose
            memory others use too, as the pool must not push them out.

    Raises:
        MachineError: not even one block fits, or what the flags ask for is not free.
    """
    share = cache.gpu_memory_utilization
    asked = _asked_blocks(cache, block_bytes)
    if asked is None:
        num_blocks, limit = _blocks_that_fit(share, free_share or share, memory, use, block_bytes)
        if num_blocks > max_blocks:
            num_blocks, limit = max_blocks, "--max-num-seqs x --max-model-len"
    else:
        num_blocks, limit = asked
        if num_blocks * block_bytes > memory.free_bytes - use.spoken_for:
            what = "the work space and the CUDA graphs take" if use.graphs else "the work space takes"
            raise MachineError(
                f"{limit} asks for {_gib(num_blocks * block_bytes)} of KV cache; {_gib(memory.free_bytes)} are free, "
                f"and {what} {_gib(use.spoken_for)} of them. Lower {limit}, or free memory."
            )
    return MemoryBudget(
        total=memory.total_bytes,
        source=memory.source,
        utilization=share,
        free=memory.free_bytes,
        weights=use.weights,
        runtime=use.runtime,
        workspace=use.workspace,
        graphs=use.graphs,
        block_bytes=block_bytes,
        block_size=cache.block_size,
        num_blocks=num_blocks,
        limit=limit,
    )


def _blocks_that_fit(
    share: float, free_share: float, memory: DeviceMemory, use: MemoryUse, block_bytes: int
) -> tuple[int, str]:
    """Return how many blocks fit, and what keeps more of them out."""
    by_total = int(share * memory.total_bytes) - use.total
    by_free = int(free_share * memory.free_bytes) - use.spoken_for
    room, limit = min((by_total, "--gpu-memory-utilization"), (by_free, "free memory"))
    num_blocks = room // block_bytes
    if num_blocks < 1:
        raise MachineError(
            f"No KV block fits: {share:g} of {_gib(memory.total_bytes)} {memory.source}, of which "
            f"{_gib(memory.free_bytes)} are free, must hold {use.describe()} and a block of {_mib(block_bytes)}. "
            "Raise --gpu-memory-utilization, lower --max-num-batched-tokens or --max-num-seqs, serve a smaller model, "
            "or free memory."
        )
    return num_blocks, limit


def _asked_blocks(cache: CacheConfig, block_bytes: int) -> tuple[int, str] | None:
    """Return the number of blocks that a flag fixes, and the flag; None if it is to be measured."""
    if cache.num_gpu_blocks_override is not None:
        return cache.num_gpu_blocks_override, "--num-gpu-blocks-override"
    if cache.kv_cache_memory_bytes is None:
        return None
    if cache.kv_cache_memory_bytes < block_bytes:
        raise MachineError(
            f"--kv-cache-memory-bytes {cache.kv_cache_memory_bytes} is less than one KV block of {block_bytes} bytes; "
            "raise it, or lower --block-size."
        )
    return cache.kv_cache_memory_bytes // block_bytes, "--kv-cache-memory-bytes"


def blocks_ever_needed(max_num_seqs: int, max_model_len: int, block_size: int) -> int:
    """Return how many blocks a pool can use at most: all sequences at their longest, and a block for a copy on write.

    Without that last one a single sequence could not reach max_model_len.
    """
    return max_num_seqs * math.ceil(max_model_len / block_size) + 1


def estimate_workspace(
    model: ModelConfig, limits: StepLimits, dtype: torch.dtype | None, *, widens: bool = True, num_ranks: int = 1
) -> int:
    """Return the bytes that the largest step needs besides weights and KV.

    It is computed, not measured: on a CPU a step of max_num_batched_tokens takes seconds, which a start can't spare,
    and a process's peak says little, since the allocator keeps or returns memory as it likes. Everything counts as
    fp32, which is what reductions and products are accumulated in.

    Args:
        model: the shapes.
        limits: the largest step.
        dtype: what the weights are stored in; None: as in the checkpoint.
        widens: the kernels make a whole matrix fp32 before they multiply by it, if it has another dtype.
        num_ranks: that share each layer; the stream and the logits are whole on each, and sums gather what all have.
    """
    tokens = limits.max_num_batched_tokens
    kv_heads = math.ceil(model.num_kv_heads / num_ranks)
    qkv = (math.ceil(model.num_heads / num_ranks) + 2 * kv_heads) * model.head_dim
    inner, mixture = math.ceil(model.intermediate_size / num_ranks), 0
    if model.mixture is not None:
        # All tokens may choose one expert, which ranks may hold whole; its rows and its output are kept besides.
        inner, mixture = max(inner, model.mixture.intermediate_size), 3 * model.hidden_size
    gathered = num_ranks * model.hidden_size if num_ranks > 1 else 0
    activations = tokens * (4 * model.hidden_size + 3 * qkv + 4 * inner + mixture + gathered)
    attention = _ATTENTION_KEYS * kv_heads * (2 * model.head_dim + _SCORES_PER_KEY)
    logits_rows = max(min(limits.max_num_seqs, tokens), PROMPT_LOGPROBS_ROWS)
    # Logits and their processed copy; a draw over the whole vocabulary keeps some twenty 64-bit numbers a token.
    sampling = (2 * logits_rows + 2 * 20) * model.vocab_size
    widest = max(math.ceil(model.vocab_size / num_ranks), 2 * inner, qkv) * model.hidden_size
    widened = widest if widens and dtype != torch.float32 else 0
    return int(_WORKSPACE_SLACK * torch.float32.itemsize * (activations + attention + sampling) + 4 * widened)


def check_weights_fit(num_bytes: int, dtypes: str, share: float, memory: DeviceMemory) -> None:
    """Refuse a model that is too large before minutes are spent on reading it.

    Args:
        num_bytes: what the weights take once they are loaded.
        dtypes: what they are computed and stored in, for people.
        share: of the memory that may be used.
        memory: before the weights are loaded.

    Raises:
        MachineError: the weights alone exceed it.
    """
    limit = min(int(share * memory.total_bytes), memory.free_bytes)
    if num_bytes > limit:
        raise MachineError(
            f"The weights take {_gib(num_bytes)} as {dtypes}; {_gib(limit)} may be used "
            f"({share:g} of {_gib(memory.total_bytes)} {memory.source}, {_gib(memory.free_bytes)} free). Serve a "
            "smaller model, give a smaller --dtype, raise --gpu-memory-utilization, or free memory."
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.2f} MiB"
