"""Which part of a stored tensor a rank reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Rows and columns of a checkpoint tensor, as its shape counts them; a vector has rows alone.

    Attributes:
        rows: runs of rows, ascending, none empty; they become neighbours. None: all rows.
        columns: a run of columns, of a matrix; None: all of them.
    """

    rows: tuple[range, ...] | None = None
    columns: range | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self.rows is None and self.columns is None

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of this part of a tensor of shape `shape`."""
        if self.is_whole:
            return shape
        num_rows = shape[0] if self.rows is None else sum(len(run) for run in self.rows)
        if self.columns is None:
            return (num_rows, *shape[1:])
        return (num_rows, len(self.columns), *shape[2:])


WHOLE_TENSOR = TensorPart()
