"""Which part of a layer a rank holds, and which layers a stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """One of `size` ranks that divide something between them in order.

    Attributes:
        rank: from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether no rank comes before this one."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether no rank comes after this one."""
        return self.rank == self.size - 1

    def of(self, count: int) -> range:
        """Return this rank's part of `count` things that the ranks divide evenly.

        That the number can be divided was checked before anything was started (`checkpoint.placement`).
        """
        each, rest = divmod(count, self.size)
        assert rest == 0, f"{count} can't be divided by {self.size}"
        return range(self.rank * each, (self.rank + 1) * each)

    def of_repeated(self, count: int) -> range:
        """Return this rank's part, where several ranks in a row hold the same thing if there are fewer than ranks."""
        if count >= self.size:
            return self.of(count)
        index = self.rank * count // self.size
        return range(index, index + 1)

    def of_uneven(self, count: int) -> range:
        """Return this rank's part where the last ranks may have less, or nothing: all others have as many as rank 0."""
        each = -(-count // self.size)
        begin = min(self.rank * each, count)
        return range(begin, min(begin + each, count))

    def of_nearly_even(self, count: int) -> range:
        """Return this rank's part where none has more than one thing more than another: the first ranks have it."""
        each, rest = divmod(count, self.size)
        begin = self.rank * each + min(self.rank, rest)
        return range(begin, begin + each + (self.rank < rest))


WHOLE = Share()
