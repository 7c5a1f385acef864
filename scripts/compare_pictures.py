"""Several learning curves in several panels, with a legend, as one standalone SVG file.

Text is escaped and cleaned, and the background is white, so that a picture reads the same on a dark page.
Left out: what is drawn (see `compare_report.py`), logarithmic axes.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from partita.report.curve import Point, Scale, finite, number, span
from partita.report.text import clean

FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
GRID, GREY = "#e4e4e4", "#c9c9c9"
COLOURS = ("#1f6fb2", "#d1495b", "#2a9d4a", "#e08a00", "#7b4ea3", "#007f7f", "#5c5c5c")
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 26, 24  # room around a panel's plotting area
HEAD, LINE, FOOT = 44, 20, 22  # the title, a row of the legend, the label of the x axis
CHARACTER = 7.2  # mean width of a character at 13 px, to lay out the legend


@dataclass(frozen=True)
class Series:
    """One line. Series of the same name share an entry of the legend; those without a name have none."""

    points: tuple[Point, ...]
    colour: str
    name: str = ""
    width: float = 2.0


@dataclass(frozen=True)
class Panel:
    """A titled plotting area; later series are drawn over earlier ones."""

    title: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Layout:
    """How panels are put on the sheet. shared: all panels have the same y axis, so that heights compare."""

    columns: int = 3
    width: int = 320
    height: int = 190
    shared: bool = False


def panels_svg(title: str, panels: Sequence[Panel], layout: Layout, x_label: str = "step") -> str:
    """The SVG text of all panels, row by row."""
    legend, rows = _legend(panels, layout.columns * layout.width)
    top = HEAD + rows * LINE
    deep = -(-len(panels) // layout.columns)
    wide, high = layout.columns * layout.width, top + deep * layout.height + FOOT
    everything = [point for panel in panels for one in panel.series for point in finite(one.points)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        f'font-family="{FONT}" font-size="12" fill="#444">',
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
        _text(LEFT, 26, title, 'font-size="16" font-weight="600" fill="#111"'),
        *legend,
    ]
    for i, panel in enumerate(panels):
        down, across = divmod(i, layout.columns)
        own = [point for one in panel.series for point in finite(one.points)]
        frame = _Frame.of(everything if layout.shared else own, layout)
        parts.append(f'<g transform="translate({across * layout.width} {top + down * layout.height})">')
        parts += [_text(LEFT, 18, panel.title, 'font-weight="600" fill="#111"'), *frame.axes()]
        parts += [_line([frame.place(point) for point in finite(one.points)], one) for one in panel.series]
        parts += ["</g>"] if own else [_text(layout.width / 2, layout.height / 2, "no values"), "</g>"]
    parts.append(_text(wide / 2, high - 6, x_label, 'text-anchor="middle"'))
    return "\n".join([*(part for part in parts if part), "</svg>", ""])


@dataclass(frozen=True)
class _Frame:
    """One panel's plotting area: data coordinates to picture coordinates, and the axes."""

    x_low: float
    x_high: float
    x: Scale
    y: Scale
    layout: Layout

    @classmethod
    def of(cls, points: Sequence[Point], layout: Layout) -> _Frame:
        xs = [x for x, _ in points] or [0.0, 1.0]
        ys = [y for _, y in points] or [0.0, 1.0]
        return cls(*span(xs), Scale.of(xs, most=4, whole=True), Scale.of(ys, most=4), layout)

    def place(self, point: Point) -> Point:
        across = (point[0] - self.x_low) / (self.x_high - self.x_low) * (self.layout.width - LEFT - RIGHT)
        down = (self.y.high - point[1]) / (self.y.high - self.y.low) * (self.layout.height - TOP - BOTTOM)
        return LEFT + across, TOP + down

    def axes(self) -> list[str]:
        parts: list[str] = []
        for tick in self.y.ticks:
            _, y = self.place((self.x_low, tick))
            parts.append(f'<path d="M{LEFT} {y:.1f}H{self.layout.width - RIGHT}" stroke="{GRID}"/>')
            parts.append(_text(LEFT - 6, y + 4, number(tick, self.y.step), 'text-anchor="end" font-size="11"'))
        for tick in self.x.ticks:
            if self.x_low <= tick <= self.x_high:
                x, _ = self.place((tick, self.y.low))
                label = number(tick, self.x.step)
                parts.append(_text(x, self.layout.height - BOTTOM + 15, label, 'text-anchor="middle" font-size="11"'))
        return parts


def _legend(panels: Sequence[Panel], wide: int) -> tuple[list[str], int]:
    """A coloured stroke and a name for each name, and the number of rows that takes."""
    entries = dict.fromkeys((one.name, one.colour) for panel in panels for one in panel.series if one.name)
    parts: list[str] = []
    x, row = float(LEFT), 0
    for name, colour in entries:
        length = 30 + CHARACTER * len(name) + 18
        if x + length > wide and x > LEFT:
            x, row = float(LEFT), row + 1
        y = HEAD + row * LINE
        parts.append(f'<path d="M{x:.1f} {y - 4}h22" stroke="{colour}" stroke-width="3"/>')
        parts.append(_text(x + 28, y, name, 'font-size="13"'))
        x += length
    return parts, row + 1 if entries else 0


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{html.escape(clean(text))}</text>'


def _line(places: Sequence[Point], series: Series) -> str:
    if len(places) == 1:
        return f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3" fill="{series.colour}"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = f'fill="none" stroke="{series.colour}" stroke-width="{series.width}" stroke-linejoin="round"'
    return f'<polyline points="{path}" {style}/>' if places else ""
