"""The console of a run: what it starts with, each step, samples, warnings, and what was reached.

On a terminal a live view is redrawn in place; elsewhere there is one plain line per step. Model text is untrusted: it
is cleaned of control characters, never read as markup, and shortened, here and nowhere else.
Left out: keeping anything; see `report.sinks`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from rich.console import Console as RichConsole
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from partita.report.config import ConsoleMode
from partita.report.curve import text_chart
from partita.report.live import TALL, frame, header
from partita.report.plain import header_lines, sample_lines, step_line
from partita.report.records import RunSummary, SampleView, StepRecord
from partita.report.text import clean, duration, fit_encoding
from partita.report.view import Headline, RunView

CHART_WIDTH, CHART_HEIGHT = 76, 9


class Console:
    """Shows one run. Call `start`, then `step` (and `sample`, `warn`) as they come, then `finish`; always `close`."""

    def __init__(
        self,
        mode: ConsoleMode,
        total_steps: int,
        title: str,
        *,
        sample_every: int = 5,
        headline: Headline | None = None,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out or sys.stdout
        self._unicode = (getattr(self._out, "encoding", None) or "utf-8").lower().replace("-", "").startswith("utf")
        self._rich = RichConsole(
            file=self._out, markup=False, emoji=False, highlight=False, force_terminal=True if mode == "live" else None
        )
        able = self._rich.is_terminal and not self._rich.is_dumb_terminal and self._unicode
        self.mode = mode if mode != "auto" else "live" if able else "plain"
        self.sample_every = sample_every
        self.view = RunView(title, total_steps, clock, started=clock(), headline=headline or Headline())
        self._live: Live | None = None

    def start(self, facts: Mapping[str, str], history: Sequence[StepRecord] = ()) -> None:
        """Show what is about to run. `history` holds the steps of a run that is resumed, for its curve."""
        self.view.facts = facts
        for record in history:
            self.view.add(record)
        self.view.first_step = history[-1].step if history else 0
        self.view.started = self.view.clock()
        if self.mode == "plain":
            self._print(header_lines(self.view))
        if self.mode == "live":
            self._rich.print(header(self.view))
            self._live = Live(
                get_renderable=lambda: frame(self.view, self._rich), console=self._rich, refresh_per_second=2
            )
            self._live.start()

    def step(self, record: StepRecord) -> None:
        """Show a finished step."""
        self.view.add(record)
        if self.mode == "plain":
            self._print([step_line(self.view)])
        self._refresh()

    def sample_due(self, step: int) -> bool:
        """Whether a sample of this step is shown: the first step, then every `sample_every`; never when that is 0."""
        return self.mode != "quiet" and self.sample_every > 0 and (step == 1 or step % self.sample_every == 0)

    def sample(self, sample: SampleView) -> None:
        """Show one sample of the step shown last, with its group's rewards."""
        self.view.sample = (self.view.step, sample)
        if self.mode == "plain":
            self._print(sample_lines(self.view.step, sample))
        self._refresh()

    def note(self, text: str) -> None:
        """Show a line about the run itself, above the live view where there is one."""
        if self.mode != "quiet":
            self._print([clean(text)], style="bold" if self.mode == "live" else "")

    def warn(self, text: str) -> None:
        """Show a warning; the live view counts equal ones."""
        text = clean(text)
        self.view.warnings[text] = self.view.warnings.get(text, 0) + 1
        if self.mode != "live" or self._live is None:
            self._print([f"warning: {text}"])
        self._refresh()

    def finish(self, summary: RunSummary) -> None:
        """Show what was reached, where it is, and what to do next."""
        self.close()
        reached = self._reached()
        if self.mode == "quiet":
            self._print([f"{reached}  {summary.folder}" if reached else summary.folder])
            return
        styled = self.mode == "live"
        if styled:
            ended = "finished" if self.view.step >= self.view.total_steps else "stopped"
            self._rich.print(Rule(Text(f"{clean(self.view.title)} {ended}", style="bold"), style="cyan"))
        width = min(CHART_WIDTH, self._rich.width - 2) if styled else CHART_WIDTH
        chart = text_chart(
            self.view.points(self.view.headline.metric), width=width, height=CHART_HEIGHT, ascii_only=not self._unicode
        )
        shown = styled and self._rich.height >= TALL  # the last frame above has the chart
        if chart and not shown:
            self._print(
                ["", f"  {self.view.headline.name} by step", *(f"  {line}" for line in chart)],
                style="green" if styled else "",
            )
        lines = [reached, *map(clean, summary.results), *(f"! {clean(line)}" for line in self.view.alerts())]
        self._print(["", *(f"  {line}" for line in lines if line)])
        self._print(["", f"  run folder  {clean(summary.folder)}"])
        if summary.commands:
            margin = max(len(clean(name)) for name in summary.commands)
            self._print(["", "  next"], style="bold" if styled else "")
            self._print([f"    {clean(name):<{margin}}  {clean(line)}" for name, line in summary.commands.items()])

    def close(self) -> None:
        """Leave the live view as it is and give the terminal back; safe to call twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _reached(self) -> str:
        reached = self.view.reached()
        if reached is None:
            return ""
        first, last, n = reached
        arrow = "→" if self._unicode else "->"
        steps = f"first {n} and last {n} steps" if n > 1 else "first and last step"
        took = f"step {self.view.step} of {self.view.total_steps} after {duration(self.view.elapsed)}"
        return f"{self.view.headline.label} {first:.3f} {arrow} {last:.3f} ({steps}), {took}"

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def _print(self, lines: Sequence[str], style: str = "") -> None:
        """Print whole lines; they are never wrapped, so that commands can be copied and logs searched."""
        for line in lines:
            text = line if self._unicode else fit_encoding(line.replace("…", "..."), self._out.encoding)
            if style:
                self._rich.print(Text(text, style=style), soft_wrap=True)
            else:
                self._out.write(text + "\n")
        self._out.flush()
