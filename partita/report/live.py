"""The live view of a run on a terminal: progress, metrics with their course, where the time goes, one sample.

`frame` is a pure function of the state and the size of the terminal; it never draws more lines than there are.
Model text enters as `rich.text.Text`, never as markup. Left out: refreshing, which `report.console` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from partita.report.curve import sparkline, text_chart
from partita.report.plain import group_text, reward_text
from partita.report.records import SampleView
from partita.report.text import clean, duration, prompt_tail, shorten
from partita.report.view import SPEED, RunView, phases, step_seconds

PHASE_COLOURS = ("cyan", "magenta", "blue", "yellow", "green", "red", "white")
CHART_LINES = 11
TALL = 40  # from this height on the frame has a chart of the reward


def header(view: RunView) -> RenderableType:
    """The title and the facts in a panel."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in view.facts.items():
        grid.add_row(Text(clean(name)), Text(clean(value)))
    title = Text.assemble(("Partita", "bold cyan"), (" · ", "dim"), (clean(view.title), "bold"))
    return Panel(grid, title=title, title_align="left", border_style="cyan", padding=(0, 1))


def frame(view: RunView, console: Console) -> RenderableType:
    """The whole view for the size of this console."""
    width, height = console.size
    parts: list[RenderableType] = [_progress(view, width), Text()]
    used = 2
    if not view.records:
        return Group(*parts, Text("  the first step is running", style="dim"), *_warnings(view, 3))
    rows = _metric_rows(view)
    parts += [_metric_table(rows, width), Text(), _time_bar(view, width)]
    used += len(rows) + 4
    warnings = _warnings(view, 4)
    used += len(warnings)
    if height >= TALL:
        chart = text_chart(view.points(view.headline.metric), width=width - 4, height=CHART_LINES - 2)
        parts += [Text(), *(Text("  " + line, style="green", no_wrap=True) for line in chart)]
        used += CHART_LINES + 1
    room = height - used - 1
    if view.sample and room >= 6:
        parts.append(_sample(*view.sample, console, room))
    return Group(*parts, *warnings)


def _progress(view: RunView, width: int) -> RenderableType:
    bar = ProgressBar(total=view.total_steps, completed=view.step, width=max(width - 56, 10))
    left = "" if view.eta is None or view.step >= view.total_steps else f"  eta {duration(view.eta)}"
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        Text.assemble((f" step {view.step}", "bold"), f"/{view.total_steps}"),
        bar,
        Text(f"{view.step / max(view.total_steps, 1):.0%}", style="bold"),
        Text(f" elapsed {duration(view.elapsed)}{left}", style="dim", no_wrap=True),
    )
    return grid


def _metric_rows(view: RunView) -> list[tuple[str, str, str, list[float]]]:
    """Label, value now, value at the start, all values; metrics that never had a value have no row."""
    rows: list[tuple[str, str, str, list[float]]] = []
    for column in (*view.headline.columns, SPEED):
        values = [value for _, value in view.points(column.metric)]
        if values:
            present = column.metric in view.records[-1].metrics
            now = f"{values[-1]:{column.format}}".strip() if present else "absent"
            rows.append((column.label, now, f"{values[0]:{column.format}}".strip(), values))
    return rows


def _metric_table(rows: Sequence[tuple[str, str, str, list[float]]], width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, min_width=8)
    grid.add_column(justify="right", no_wrap=True, min_width=8)
    grid.add_column(no_wrap=True)
    grid.add_row(*(Text(name, style="dim") for name in ("", "now", "at first", "course")))
    room = max(width - 50, 8)
    for index, (label, now, first, values) in enumerate(rows):
        main = index == 0
        grid.add_row(
            Text(" " + label, style="bold" if main else ""),
            Text(now, style="bold green" if main else "bold"),
            Text(first, style="dim"),
            Text(sparkline(values, room), style="green" if main else "cyan"),
        )
    return grid


def _time_bar(view: RunView, width: int) -> RenderableType:
    """Two lines: a bar of the last step's phases, and what each colour stands for."""
    record = view.records[-1]
    times = phases(record)
    total = max(step_seconds(record), sum(times.values()), 1e-9)
    room = max(width - 26, 10)
    bar = Text(f" {'time of a step':<15}", no_wrap=True)
    bar.append(f"{step_seconds(record):6.1f} s  ", style="bold")
    key = Text(" " * 26 if width >= 90 else " ", no_wrap=True, overflow="ellipsis")
    edge = 0.0
    for index, (name, seconds) in enumerate(times.items()):
        colour = PHASE_COLOURS[index % len(PHASE_COLOURS)]
        # cells from rounded edges, so that the parts add up to the bar
        cells = round((edge + seconds) / total * room) - round(edge / total * room)
        edge += seconds
        bar.append("█" * cells, style=colour)
        if seconds >= 0.05:
            key.append("■ ", style=colour).append(f"{clean(name)} {seconds:.1f}  ")
    bar.append("░" * (room - round(edge / total * room)), style="dim")
    return Group(bar, key)


def _sample(step: int, sample: SampleView, console: Console, room: int) -> RenderableType:
    """A panel of at most `room` lines."""
    width = console.width - 4
    lines_left = max(room - 3 - (sample.answer is not None), 2)
    prompt_lines = min(3, max(lines_left // 3, 1))
    body: list[RenderableType] = []
    body += _block(
        prompt_tail(sample.prompt, width * prompt_lines - 2), "dim", console, width, prompt_lines, keep_end=True
    )
    limit = lines_left - len(body)
    body += _block(shorten(sample.response, width * limit), "", console, width, limit)
    if sample.answer is not None:
        body.append(Text.assemble(("answer ", "dim"), shorten(sample.answer, width - 8), no_wrap=True))
    body.append(_group_rewards(sample))
    reward = sample.rewards[sample.shown]
    style = "bold green" if reward is not None and reward > 0 else "bold red"
    title = Text.assemble(f"sample of step {step} · reward ", (reward_text(reward), style))
    return Panel(Group(*body), title=title, title_align="left", border_style="dim", padding=(0, 1))


def _group_rewards(sample: SampleView) -> Text:
    return Text.assemble(("group  ", "dim"), group_text(sample), no_wrap=True, overflow="ellipsis")


def _block(text: str, style: str, console: Console, width: int, limit: int, keep_end: bool = False) -> list[Text]:
    """The text wrapped to at most `limit` lines; what does not fit is left out of the middle, or of the start."""
    wrapped = list(Text(text.strip(), style=style).wrap(console, width, overflow="fold"))
    if len(wrapped) <= limit:
        return wrapped
    if keep_end:
        return wrapped[-limit:]
    if limit < 3:
        return wrapped[:limit]
    return [*wrapped[: limit - 2], Text("…", style="dim"), wrapped[-1]]


def _warnings(view: RunView, most: int) -> list[Text]:
    lines = view.alerts()
    shown = [Text(f" ! {clean(line)}", style="yellow", no_wrap=True, overflow="ellipsis") for line in lines[-most:]]
    hidden = len(lines) - len(shown)
    return shown if hidden <= 0 else [Text(f" ! {hidden} earlier warnings", style="yellow"), *shown]
