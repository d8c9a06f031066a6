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

    def row_runs(self, num_rows: int) -> tuple[range, ...]:
        """Return the runs of rows, of a tensor of `num_rows`; there is at least one, which is empty if all are."""
        return (range(num_rows),) if self.rows is None else self.rows or (range(0),)

    def column_run(self, num_columns: int) -> range:
        """Return the run of columns, of a matrix of `num_columns`."""
        return range(num_columns) if self.columns is None else self.columns


WHOLE_TENSOR = TensorPart()
