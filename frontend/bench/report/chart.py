"""Lines in a frame, as SVG text that stands in a page by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

Series = tuple[str, Sequence[tuple[float, float]]]

_WIDTH, _HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 24, 12, 42  # to the right there is half a figure of the axis below
_NUM_TICKS = 5
NUM_COLORS = 8


def line_chart(title: str, x_label: str, y_label: str, series: Sequence[Series], *, has_dots: bool = False) -> str:
    """Return a chart; both axes begin at 0.

    Args:
        title: for those who can't see it.
        x_label: of the axis below, with its unit.
        y_label: of the other one.
        series: (name, points) in the order of x; colours follow the order.
        has_dots: draw a dot at each point.
    """
    x_max = _nice_max(max((x for _, points in series for x, _ in points), default=1.0))
    y_max = _nice_max(max((y for _, points in series for _, y in points), default=1.0))

    def place(x: float, y: float) -> str:
        return (
            f"{_LEFT + x / x_max * (_WIDTH - _LEFT - _RIGHT):.1f},"
            f"{_HEIGHT - _BOTTOM - y / y_max * (_HEIGHT - _TOP - _BOTTOM):.1f}"
        )

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in range(_NUM_TICKS + 1):
        x, y = x_max * tick / _NUM_TICKS, y_max * tick / _NUM_TICKS
        (x_place, _), (_, y_place) = place(x, 0).split(","), place(0, y).split(",")
        parts += [
            f'<path class="grid" d="M{place(0, y)} L{place(x_max, y)}"/>',
            f'<text x="{_LEFT - 6}" y="{float(y_place) + 4:.1f}" text-anchor="end">{_figure(y)}</text>',
            f'<text x="{x_place}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_figure(x)}</text>',
        ]
    parts += [
        f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(12 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
    ]
    for index, (name, points) in enumerate(series):
        if not points:
            continue
        path = " L".join(place(x, min(y, y_max)) for x, y in points)
        parts.append(f'<path class="line c{index % NUM_COLORS}" d="M{path}"><title>{escape(name)}</title></path>')
        for x, y in points if has_dots else ():
            x_place, y_place = place(x, y).split(",")
            parts.append(f'<circle class="c{index % NUM_COLORS}" cx="{x_place}" cy="{y_place}" r="3"/>')
    return "".join([*parts, "</svg>"])


def _nice_max(value: float) -> float:
    """Return the next number that five even steps divide readably."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10) if factor * power >= value * 0.999)


def _figure(value: float) -> str:
    return f"{value:.4g}" if value < 10_000 else f"{value:,.0f}"
