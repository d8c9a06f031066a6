"""The ranks of one engine as a mesh with named axes: pipeline stages, and in each the ranks that share its layers."""

from __future__ import annotations

from typing import NamedTuple


class MeshPlace(NamedTuple):
    """A rank's coordinates.

    Attributes:
        pp: its stage.
        tp: its place among the ranks that share the stage's layers.
    """

    pp: int
    tp: int


class Mesh(NamedTuple):
    """The axes' lengths. Ranks that share layers are neighbours: they speak to each other most.

    Attributes:
        pp: pipeline stages.
        tp: ranks that share each layer.
    """

    pp: int = 1
    tp: int = 1

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.pp * self.tp

    @property
    def output_rank(self) -> int:
        """The rank that answers steps: the first of the last stage."""
        return self.rank_of(MeshPlace(self.pp - 1, 0))

    def rank_of(self, place: MeshPlace) -> int:
        """Return the rank at some coordinates."""
        return place.pp * self.tp + place.tp

    def place_of(self, rank: int) -> MeshPlace:
        """Return a rank's coordinates."""
        return MeshPlace(*divmod(rank, self.tp))
