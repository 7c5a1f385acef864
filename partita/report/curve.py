"""Learning curves as text: a sparkline, and a chart of braille or ASCII characters with labelled axes.

A point is (x, y). Points that are not finite are left out. Left out: several series in one chart, logarithmic axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"
# Bit of a braille cell by dot row (top to bottom) and dot column (left, right); Unicode 2800 to 28FF.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """At most `width` characters; with more values than characters each one shows the mean of a stretch.

    A constant curve is drawn at middle height.
    """
    shown = _buckets([value for value in values if math.isfinite(value)], width)
    if not shown:
        return ""
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    low, high = min(shown), max(shown)
    if high == low:
        return blocks[len(blocks) // 2 - 1] * len(shown)
    top = len(blocks) - 1
    return "".join(blocks[round((value - low) / (high - low) * top)] for value in shown)


def text_chart(points: Sequence[Point], *, width: int, height: int, ascii_only: bool = False) -> list[str]:
    """A line chart as `height` lines plus the x axis (two lines), each at most `width` characters.

    Braille dots (2 x 4 a character) or, with `ascii_only`, one `*` a character. No lines when there is no finite point.
    """
    points = finite(points)
    if not points:
        return []
    y_scale = Scale.of([y for _, y in points], most=max(1, (height - 1) // 2))  # a label every other line at most
    x_low, x_high = span([x for x, _ in points])
    labels = {_row_of(tick, y_scale, height): number(tick, y_scale.step) for tick in y_scale.ticks}
    margin = max(len(label) for label in labels.values())
    columns = max(width - margin - 2, 4)
    dots_x, dots_y = (1, 1) if ascii_only else (2, 4)
    grid = _Grid(columns * dots_x, height * dots_y)
    spots = [
        (
            round((x - x_low) / (x_high - x_low) * (grid.width - 1)),
            round((y_scale.high - y) / (y_scale.high - y_scale.low) * (grid.height - 1)),
        )
        for x, y in points
    ]
    for start, end in zip(spots[:1] + spots[:-1], spots, strict=True):
        grid.line(start, end)
    rows = grid.ascii() if ascii_only else grid.braille()
    tick, wall, corner, dash = ("+", "|", "+", "-") if ascii_only else ("┤", "│", "└", "─")
    lines = [f"{labels.get(i, ''):>{margin}} {tick if i in labels else wall}{row}" for i, row in enumerate(rows)]
    first, last = f"{points[0][0]:g}", f"{points[-1][0]:g}"
    axis = first + last.rjust(columns - len(first)) if len(points) > 1 else first
    return [line.rstrip() for line in [*lines, f"{'':{margin}} {corner}{dash * columns}", f"{'':{margin}}  {axis}"]]


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high` with round tick values `step` apart."""

    low: float
    high: float
    step: float

    @classmethod
    def of(cls, values: Sequence[float], most: int = 5, whole: bool = False) -> Scale:
        """The axis that holds all values with at most `most` + 1 ticks, at whole numbers if asked."""
        low, high = span(values)
        rough = (high - low) / most
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * (1 - 1e-9))
        step = max(1.0, float(math.ceil(step))) if whole else step
        return cls(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step)

    @property
    def ticks(self) -> list[float]:
        """All ticks, both ends included."""
        return [self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1)]


class _Grid:
    """Dots that lines are drawn on."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.dots: set[tuple[int, int]] = set()

    def line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Set the dots between two points, both ends included."""
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for i in range(steps + 1):
            x = round(start[0] + (end[0] - start[0]) * i / steps)
            y = round(start[1] + (end[1] - start[1]) * i / steps)
            self.dots.add((x, y))

    def braille(self) -> list[str]:
        cells: dict[tuple[int, int], int] = {}
        for x, y in self.dots:
            cell = (x // 2, y // 4)
            cells[cell] = cells.get(cell, 0) | DOTS[y % 4][x % 2]
        return [
            "".join(chr(0x2800 + cells[(x, y)]) if (x, y) in cells else " " for x in range(self.width // 2))
            for y in range(self.height // 4)
        ]

    def ascii(self) -> list[str]:
        return ["".join("*" if (x, y) in self.dots else " " for x in range(self.width)) for y in range(self.height)]


def finite(points: Sequence[Point]) -> list[Point]:
    """The points whose coordinates are both finite."""
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def span(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest value, held apart when they are equal."""
    low, high = min(values), max(values)
    if high - low > 1e-12 * max(abs(low), abs(high), 1e-30):
        return low, high
    room = max(abs(low) * 0.1, 0.1)
    return low - room, high + room


def _buckets(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def _row_of(value: float, scale: Scale, height: int) -> int:
    return round((scale.high - value) / (scale.high - scale.low) * (height - 1))


def number(value: float, step: float) -> str:
    """The value with as many decimals as the step between ticks; very small and large ones as powers of ten."""
    if step < 1e-4 or step >= 1e6:
        return f"{value:.3g}"
    decimals = next(d for d in range(7) if abs(round(step, d) - step) < step * 1e-6)
    return f"{value:.{decimals}f}".replace("-0", "0") if abs(value) < step * 1e-6 else f"{value:.{decimals}f}"
