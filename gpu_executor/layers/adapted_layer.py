"""What adapters may change of a decoder layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from .linear import AdaptedProjection


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """The projections behind each of a layer's products; none where adapters leave it alone.

    Attributes:
        qkv, output: of attention.
        gate_up, down: of the feed-forward block.
    """

    qkv: tuple[AdaptedProjection, ...] = ()
    output: tuple[AdaptedProjection, ...] = ()
    gate_up: tuple[AdaptedProjection, ...] = ()
    down: tuple[AdaptedProjection, ...] = ()

    def __iter__(self) -> Iterator[AdaptedProjection]:
        for field in fields(self):
            yield from getattr(self, field.name)
