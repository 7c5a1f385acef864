"""A learning curve as a small standalone SVG file, for the run folder and for documentation.

Text is escaped and cleaned, and the background is white, so that the picture reads the same on a dark page.
Left out: several series in one chart, logarithmic axes.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from partita.report.curve import Point, Scale, finite, number, span
from partita.report.text import clean

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 48, 52
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
PALE, STRONG, GRID = "#9cc3e6", "#1f6fb2", "#e4e4e4"


def curve_svg(points: Sequence[Point], title: str, *, x_label: str = "step", y_label: str = "reward") -> str:
    """The SVG text of one curve: every value pale, the mean of the last few strong (from ten points on)."""
    points = finite(points)
    frame = _Frame.of(points)
    window = max(3, len(points) // 10)
    smooth = _trailing_mean(points, window) if len(points) >= 10 else []
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="{FONT}" font-size="13" fill="#444">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 28, title, 'font-size="16" font-weight="600" fill="#111"'),
        *frame.axes(x_label, y_label),
        _line([frame.place(point) for point in points], PALE if smooth else STRONG, 1.5),
        _line([frame.place(point) for point in smooth], STRONG, 2.5),
    ]
    if smooth:
        note = f"pale: each {x_label}; strong: mean of the last {window}"
        parts.append(_text(WIDTH - RIGHT, HEIGHT - 12, note, 'text-anchor="end" font-size="11" fill="#777"'))
    if not points:
        parts.append(_text(WIDTH / 2, HEIGHT / 2, "no values", 'text-anchor="middle"'))
    return "\n".join([*(part for part in parts if part), "</svg>", ""])


@dataclass(frozen=True)
class _Frame:
    """The plotting area: data coordinates to picture coordinates, and the axes."""

    x_low: float
    x_high: float
    x: Scale
    y: Scale

    @classmethod
    def of(cls, points: Sequence[Point]) -> _Frame:
        xs = [x for x, _ in points] or [0.0, 1.0]
        ys = [y for _, y in points] or [0.0, 1.0]
        return cls(*span(xs), Scale.of(xs, most=8, whole=all(x == int(x) for x in xs)), Scale.of(ys))

    def place(self, point: Point) -> Point:
        across = (point[0] - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)
        down = (self.y.high - point[1]) / (self.y.high - self.y.low) * (HEIGHT - TOP - BOTTOM)
        return LEFT + across, TOP + down

    def axes(self, x_label: str, y_label: str) -> list[str]:
        parts: list[str] = []
        for tick in self.y.ticks:
            _, y = self.place((self.x_low, tick))
            parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
            parts.append(_text(LEFT - 8, y + 4, number(tick, self.y.step), 'text-anchor="end"'))
        for tick in self.x.ticks:
            if self.x_low <= tick <= self.x_high:
                x, _ = self.place((tick, self.y.low))
                parts.append(_text(x, HEIGHT - BOTTOM + 20, number(tick, self.x.step), 'text-anchor="middle"'))
        middle = (TOP + HEIGHT - BOTTOM) / 2
        turned = f'text-anchor="middle" transform="rotate(-90 18 {middle:.1f})"'
        return [
            *parts,
            _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label, 'text-anchor="middle"'),
            _text(18, middle, y_label, turned),
        ]


def _trailing_mean(points: Sequence[Point], window: int) -> list[Point]:
    recent = [[y for _, y in points[max(0, i + 1 - window) : i + 1]] for i in range(len(points))]
    return [(x, sum(ys) / len(ys)) for (x, _), ys in zip(points, recent, strict=True)]


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{html.escape(clean(text))}</text>'


def _line(places: Sequence[Point], colour: str, width: float) -> str:
    if len(places) == 1:
        return f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3" fill="{colour}"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"'
    return f'<polyline points="{path}" {style}/>' if places else ""
