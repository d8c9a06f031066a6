"""Adapters as kernels know them: two thin matrices beside a weight, and which tokens of a step they are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .layouts import LinearWeight


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LowRank:
    """A change of one weight: y += (x A^T) B^T. What a backend makes of it lives no longer than this object.

    A weight may stack several projections, of which each has a change of its own: A stacks theirs, and B has zeros
    where one projection's rows meet another one's ranks.

    Attributes:
        a: [ranks of all projections, in_features], as `Ops.prepare_weight` leaves it.
        b: [out_features, ranks of all projections], likewise; the adapter's scale is in it.
    """

    a: LinearWeight
    b: LinearWeight


@dataclass(frozen=True, slots=True)
class AdapterLayer:
    """An adapter's changes of one decoder layer; None: that product stays as it is.

    Attributes:
        qkv, output: of attention.
        gate_up, down: of the feed-forward block.
    """

    qkv: LowRank | None = None
    output: LowRank | None = None
    gate_up: LowRank | None = None
    down: LowRank | None = None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class AdapterWeights:
    """One load of an adapter: a backend may keep what it makes of it for as long as there is this object.

    Attributes:
        layers: its changes of this stage's layers, in order.
    """

    layers: tuple[AdapterLayer, ...]


@dataclass(frozen=True, slots=True)
class AdapterTokens:
    """The tokens of a step that one adapter is for.

    Attributes:
        weights: its changes.
        token_ids: [num_tokens of it] int64, indices into the step's tokens, ascending; None: it is for all of them.
    """

    weights: AdapterWeights
    token_ids: Tensor | None


@dataclass(frozen=True, slots=True)
class TokensOfChange:
    """The tokens of a step that one change of a weight is for: see `AdapterTokens`."""

    change: LowRank
    token_ids: Tensor | None


@dataclass(frozen=True, slots=True)
class LayerChanges:
    """What the adapters of a step change in one layer, product by product: see `AdapterLayer`."""

    qkv: tuple[TokensOfChange, ...] = ()
    output: tuple[TokensOfChange, ...] = ()
    gate_up: tuple[TokensOfChange, ...] = ()
    down: tuple[TokensOfChange, ...] = ()

    @classmethod
    def of(cls, adapters: Sequence[AdapterTokens], layer: int) -> LayerChanges:
        """Return what the adapters of a step change in a layer of the stage."""
        if not adapters:
            return UNCHANGED

        def changes(product: str) -> tuple[TokensOfChange, ...]:
            found = [(getattr(adapter.weights.layers[layer], product), adapter.token_ids) for adapter in adapters]
            return tuple(TokensOfChange(change, token_ids) for change, token_ids in found if change is not None)

        return cls(qkv=changes("qkv"), output=changes("output"), gate_up=changes("gate_up"), down=changes("down"))


UNCHANGED = LayerChanges()
"""No adapter changes anything."""
