"""Tables for terminals: columns as wide as they must be, the first to the left, figures to the right."""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "-"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table, a line a row, without a line end after the last."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def figure(value: float | None, digits: int = 1) -> str:
    """Return a number with so many decimal places, a dash for None."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """Return a share from 0 to 1 in percent, a dash for None."""
    return NOTHING if share is None else f"{100 * share:.1f}%"
