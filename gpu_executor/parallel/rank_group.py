"""Ranks that share every layer: what they tell each other while they compute one.

Layers and ops call a group and never ask what carries the numbers. A model on one device has the group `ALONE`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class RankGroup(ABC):
    """The ranks of one tensor-parallel group, as one of them sees it.

    Every call is made by all ranks, in the same order, with tensors of the same shape and dtype.

    Attributes:
        rank: this one's place in the group, from 0.
        size: ranks of the group.
        can_be_captured: whether its calls may be part of a captured graph, which all ranks replay alike.
    """

    rank: int
    size: int
    can_be_captured: bool = False

    @abstractmethod
    def sum_in_order(self, x: Tensor) -> Tensor:
        """Add up what the ranks have, rank 0 first, in float32: every rank gets the same bits.

        The order depends on nothing but the number of ranks, so that a row's sum is the same in any batch.

        Args:
            x: any float dtype, contiguous. It is given up: its memory may be what is returned.

        Returns:
            x's shape and dtype.
        """

    @abstractmethod
    def gather(self, x: Tensor) -> list[Tensor]:
        """Return what each rank has, in rank order.

        Args:
            x: contiguous.
        """

    @abstractmethod
    def least(self, number: int) -> int:
        """Return the smallest of the ranks' numbers."""


class Alone(RankGroup):
    """The group of a rank that holds whole layers."""

    rank = 0
    size = 1
    can_be_captured = True

    def sum_in_order(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        return [x]

    def least(self, number: int) -> int:
        return number


ALONE = Alone()
