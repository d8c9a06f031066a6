"""What lies in a device's memory while a model is served, and what is left for keys and values.

The engine measures all this at its start; on paper, what the runtime and the largest step take are estimated.
"""

from __future__ import annotations

import msgspec

from ..model_config import ModelConfig
from ..placement import Placement
from .devices import DeviceSpec
from .roofline import kv_bytes_per_token
from .served import Served
from .weights import weight_bytes

# What a driver's context, the libraries of matrix products and an allocator's slack take; then what libraries keep that
# connect devices; then captured graphs. Estimates from the field, not measured here.
_CONTEXT_BYTES = int(0.9 * 2**30)
_CONNECTED_BYTES = int(0.6 * 2**30)
_GRAPH_BYTES = int(0.5 * 2**30)

# What experts' tokens hold at a time: the engine takes them through in parts.
_MOST_EXPERT_NUMBERS = 3 << 26

BLOCK_SIZE = 16
"""Tokens of a KV block, as the engine has it by default."""


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One device's memory; that of the device with the largest part. All sizes in bytes.

    Attributes:
        total: of the device.
        usable: the share of it that may be used.
        weights: of the model, this device's part.
        runtime: contexts and libraries.
        workspace: activations of the largest step.
        graphs: captured launches.
        kv_bytes_per_token: of keys and values, this device's part.
    """

    total: int
    usable: int
    weights: int
    runtime: int
    workspace: int
    graphs: int
    kv_bytes_per_token: int

    @property
    def kv(self) -> int:
        """What is left for keys and values; below 0 if the rest is too much by itself."""
        return self.usable - self.weights - self.runtime - self.workspace - self.graphs

    @property
    def num_blocks(self) -> int:
        """KV blocks that fit."""
        return max(0, self.kv // (self.kv_bytes_per_token * BLOCK_SIZE))

    def max_requests(self, context: int) -> int:
        """Return how many requests of so many tokens fit at once; one has a block for a copy on write besides."""
        return max(0, self.num_blocks - 1) // _blocks(context)

    def longest_context(self, num_requests: int, max_position: int) -> int:
        """Return the most tokens that each of so many requests may have; 0 if none fits."""
        blocks = max(0, self.num_blocks - 1) // num_requests
        return min(max_position, blocks * BLOCK_SIZE)


def plan_memory(served: Served, placement: Placement, device: DeviceSpec) -> MemoryPlan:
    """Return how the memory of a device would be divided."""
    return MemoryPlan(
        total=device.memory_bytes,
        usable=int(device.memory_bytes * served.utilization),
        weights=weight_bytes(served.model, served.bits, placement),
        runtime=_CONTEXT_BYTES + (_CONNECTED_BYTES if placement.num_devices > 1 else 0),
        workspace=_workspace_bytes(served, placement),
        graphs=_GRAPH_BYTES,
        kv_bytes_per_token=kv_bytes_per_token(served, placement),
    )


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


def _workspace_bytes(served: Served, placement: Placement) -> int:
    """Return the activations of the widest part of a layer, and the logits with the copy that filters work on.

    Each device has the logits of its own part of the vocabulary, as in the roofline.
    """
    model, limits = served.model, served.limits
    qkv = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim // placement.tp
    inner = model.intermediate_size // placement.tp
    tokens = limits.max_num_batched_tokens
    experts = min(tokens * _expert_activations(model, placement), _MOST_EXPERT_NUMBERS)
    activations = 2 * (4 * tokens * model.hidden_size + max(tokens * max(2 * qkv, 3 * inner), experts))
    vocab_rows = -(-model.vocab_size // placement.tp)
    logits = 2 * 4 * min(limits.max_num_seqs, limits.max_num_batched_tokens) * vocab_rows
    return activations + logits


def _expert_activations(model: ModelConfig, placement: Placement) -> int:
    """Return the numbers that a token's experts hold: what the feed-forward block of each does, and its output."""
    if model.mixture is None:
        return 0
    inner = -(-model.mixture.intermediate_size // placement.tp)
    return model.mixture.num_chosen * (3 * inner + model.hidden_size)
