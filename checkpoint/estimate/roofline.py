"""The least time of a step: for each op the larger of its bytes by the bandwidth and its operations by their rate.

An op reads its inputs from memory and writes its outputs there once. Norms, rotation and the gate are counted as fused
into their neighbours, so that they cost nothing: an engine that is not as good can't get above this limit, nor below
its time. Between devices, a layer's partial sums are gathered twice and added by each one in rank order, as the
engine's promise of equal bits demands. Tokens are taken to choose experts evenly and each for itself, so that T tokens
which choose k of n need n (1 - (1 - k/n)^T) of them.

Source: Williams, Waterman and Patterson 2009, "Roofline" (doi 10.1145/1498765.1498785).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..model_config import LayerKind, ModelConfig
from ..placement import Placement, kv_heads_a_device, layers_a_stage
from ..stage_layers import stage_layers
from .devices import DeviceSpec
from .served import Served
from .weights import Matrix, attention_matrices, dense_matrices, expert_matrices, router_matrix

_ACTIVATION_BYTES = 2
_LOGIT_BYTES = 4  # logits are drawn from in float32


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a step does: so many equal requests.

    Attributes:
        num_requests: each draws one token.
        num_tokens: that each computes in this step: 1 in a decode.
        context: tokens in the KV cache of each, this step's included.
    """

    num_requests: int
    num_tokens: int
    context: int

    @property
    def num_rows(self) -> int:
        """Tokens of the step."""
        return self.num_requests * self.num_tokens


def decode(num_requests: int, context: int) -> Work:
    """Return a step in which each request computes one token."""
    return Work(num_requests=num_requests, num_tokens=1, context=context)


def prefill(num_tokens: int) -> Work:
    """Return a step that computes a whole prompt."""
    return Work(num_requests=1, num_tokens=num_tokens, context=num_tokens)


class OpCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of op costs a device in a step.

    Attributes:
        name: for people.
        count: how often it runs in the step.
        num_bytes: of device memory that one run reads and writes.
        operations: of matrix products in one run; a multiplication and an addition are two.
        link_bytes: that one run receives from other devices.
        between_machines: those are on other machines.
    """

    name: str
    count: int
    num_bytes: float
    operations: float
    link_bytes: float = 0.0
    between_machines: bool = False

    def seconds(self, device: DeviceSpec) -> float:
        """Return the least time of all its runs."""
        return self.count * max(self._parts(device).values())

    def bound_by(self, device: DeviceSpec) -> str:
        """Return which of memory, compute and link sets that time."""
        parts = self._parts(device)
        return max(parts, key=lambda part: parts[part])

    def _parts(self, device: DeviceSpec) -> dict[str, float]:
        return {
            "memory": self.num_bytes / device.bandwidth,
            "compute": self.operations / device.flops,
            "link": device.link_seconds(self.link_bytes, between_machines=self.between_machines),
        }


def kv_bytes_per_token(served: Served, placement: Placement) -> int:
    """Return what a token's keys and values take on the device that has most layers.

    A layer with a window keeps all of them too: blocks belong to all layers together.
    """
    longest = max(map(len, stage_layers(served.model, placement.pp)))
    return longest * _kv_bytes_of_layer(served, placement)


def layer_costs(served: Served, placement: Placement, work: Work) -> tuple[OpCost, ...]:
    """Return what the layers of the longest stage cost one of its devices."""
    model = served.model
    layers = layers_a_stage(model, placement)
    qkv, output = (
        _product(matrix, served.bits.layers, work.num_rows, layers) for matrix in attention_matrices(model, placement)
    )
    gathers = [] if placement.tp == 1 else [_gather(model, placement, work, layers)]
    return (qkv, *_attention(served, placement, work), output, *_blocks(served, placement, work, layers), *gathers)


def _blocks(served: Served, placement: Placement, work: Work, layers: int) -> list[OpCost]:
    """Return the feed-forward blocks: of the longest stage's layers, its share of the mixtures, the rest dense."""
    model, bits, rows = served.model, served.bits.layers, work.num_rows
    if model.mixture is None:
        return [_product(matrix, bits, rows, layers) for matrix in dense_matrices(model, placement)]
    mixtures = min(layers, -(-len(model.mixture.layers) // placement.pp))
    costs = [_product(router_matrix(model), 8 * _ACTIVATION_BYTES, rows, mixtures)]
    costs += [_expert_product(matrix, bits, rows, mixtures) for matrix in expert_matrices(model, placement)]
    if mixtures < layers:
        costs += [_product(matrix, bits, rows, layers - mixtures) for matrix in dense_matrices(model, placement)]
    return costs


def end_costs(served: Served, placement: Placement, work: Work) -> tuple[OpCost, ...]:
    """Return what embedding, output layer and draws cost, which a step passes once, whatever the stages."""
    model, bits = served.model, served.bits
    rows, vocab_rows = work.num_requests, -(-model.vocab_size // placement.tp)
    output = Matrix(name="output layer", out_features=vocab_rows, in_features=model.hidden_size)
    row_bytes = model.hidden_size * (bits.embedding / 8 + _ACTIVATION_BYTES)
    return (
        OpCost(name="embedding", count=1, num_bytes=work.num_rows * row_bytes, operations=0),
        _product(output, bits.output, rows, 1),
        OpCost(name="draws", count=1, num_bytes=rows * vocab_rows * _LOGIT_BYTES, operations=0),
    )


def stage_costs(served: Served, placement: Placement, work: Work) -> tuple[OpCost, ...]:
    """Return what handing a step on from stage to stage costs; each device has its own link to the next stage."""
    if placement.pp == 1:
        return ()
    num_bytes = work.num_rows * served.model.hidden_size * _ACTIVATION_BYTES
    return (
        OpCost(
            name="hand-over between stages",
            count=placement.pp - 1,
            num_bytes=2 * num_bytes,
            operations=0,
            link_bytes=num_bytes,
            between_machines=placement.has_stages_between_machines,
        ),
    )


def seconds(costs: Iterable[OpCost], device: DeviceSpec) -> float:
    """Return the least time of ops that run one after the other."""
    return sum(cost.seconds(device) for cost in costs)


def step_seconds(served: Served, placement: Placement, work: Work, device: DeviceSpec) -> float:
    """Return the least time from a step's start to its tokens, through all stages."""
    stage = seconds(layer_costs(served, placement, work), device)
    ends = (*stage_costs(served, placement, work), *end_costs(served, placement, work))
    return placement.pp * stage + seconds(ends, device)


def _product(matrix: Matrix, bits: float, rows: int, count: int) -> OpCost:
    activations = rows * (matrix.in_features + matrix.out_features) * _ACTIVATION_BYTES
    return OpCost(
        name=matrix.name,
        count=count,
        num_bytes=matrix.num_weights * bits / 8 + activations,
        operations=2 * rows * matrix.num_weights,
    )


def _expert_product(matrix: Matrix, bits: float, rows: int, count: int) -> OpCost:
    """Return the products of a step's tokens with their experts, each of which is read once if any token has it."""
    assert matrix.num_experts is not None, "a matrix of a mixture"
    num_read = matrix.num_experts * (1 - (1 - matrix.num_chosen / matrix.num_experts) ** rows)
    pairs = rows * matrix.num_chosen
    return OpCost(
        name=matrix.name,
        count=count,
        num_bytes=num_read * matrix.num_weights * bits / 8
        + pairs * (matrix.in_features + matrix.out_features) * _ACTIVATION_BYTES,
        operations=2 * pairs * matrix.num_weights,
    )


def _kv_bytes_of_layer(served: Served, placement: Placement) -> int:
    return 2 * kv_heads_a_device(served.model, placement) * served.model.head_dim * served.kv.bytes_a_value


def _attention(served: Served, placement: Placement, work: Work) -> list[OpCost]:
    """Return attention over all layers, by kind; the step's own keys and values are stored first, and read too."""
    model = served.model
    heads, token_bytes = model.num_heads // placement.tp, _kv_bytes_of_layer(served, placement)
    own = work.num_rows * (token_bytes + 2 * heads * model.head_dim * _ACTIVATION_BYTES)
    costs = []
    for kind, count in _layers_by_kind(model, placement):
        window = model.sliding_window if kind is LayerKind.SLIDING else None
        keys_read = work.context if window is None else min(work.context, window + work.num_tokens - 1)
        costs.append(
            OpCost(
                name="attention" if window is None else f"attention, window of {window}",
                count=count,
                num_bytes=work.num_requests * keys_read * token_bytes + own,
                operations=4 * work.num_requests * _pairs(work, window) * heads * model.head_dim,
            )
        )
    return costs


def _pairs(work: Work, window: int | None) -> int:
    """Return how many keys the tokens of a request see, added up."""
    first = work.context - work.num_tokens + 1  # keys that the first token sees, itself included
    if window is None or work.context <= window:
        return work.num_tokens * (first + work.context) // 2
    if first >= window:
        return work.num_tokens * window
    growing = window - first
    return growing * (first + window - 1) // 2 + (work.num_tokens - growing) * window


def _layers_by_kind(model: ModelConfig, placement: Placement) -> Sequence[tuple[LayerKind, int]]:
    """Return the layers of the longest stage: its share of those that see all, rounded up, the rest windowed."""
    full = -(-model.layer_kinds.count(LayerKind.FULL) // placement.pp)
    counts = ((LayerKind.FULL, full), (LayerKind.SLIDING, layers_a_stage(model, placement) - full))
    return [(kind, count) for kind, count in counts if count]


def _gather(model: ModelConfig, placement: Placement, work: Work, layers: int) -> OpCost:
    received = (placement.tp - 1) * work.num_rows * model.hidden_size * _ACTIVATION_BYTES
    return OpCost(
        name="sums between devices",
        count=2 * layers,
        num_bytes=2 * received,
        operations=0,
        link_bytes=received,
        between_machines=placement.shares_layers_between_machines,
    )
