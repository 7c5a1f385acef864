"""The state of a run that a screen shows, and which metrics it shows under which name.

Left out: drawing. `report.plain` and `report.live` turn this state into lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from partita.report.curve import Point
from partita.report.metrics import WORK
from partita.report.records import SampleView, StepRecord

NO_PHASES = {"step", "overhead_share", *WORK}
RECENT = 10  # steps that the estimate of the time left averages over


@dataclass(frozen=True)
class Column:
    """One metric on the screen. `short` names it in a plain line (None: not there); `format` keeps its width."""

    metric: str
    label: str
    short: str | None
    format: str


COLUMNS = (
    Column("reward/mean", "reward", "reward", "6.3f"),
    Column("response_length/mean", "response length", "len", "5.1f"),
    Column("kl_ref/k3", "KL to reference", "kl_ref", "6.4f"),
    Column("kl_step/k3", "KL old to new", "kl_step", "6.4f"),
    Column("mismatch/k3", "KL sampler to trainer", "mismatch", "6.4f"),
    Column("entropy", "entropy", "ent", "5.2f"),
    Column("clip_fraction", "clip fraction", "clip", "5.3f"),
    Column("grad_norm", "gradient norm", None, "6.2f"),
)
OFFLINE_COLUMNS = (
    Column("reward/mean", "reward of own answers", "reward", "6.3f"),
    Column("loss", "loss", "loss", "7.4f"),
    Column("preference/accuracy", "pairs ranked rightly", "accuracy", "5.3f"),
    Column("preference/margin", "margin of implicit rewards", "margin", "6.3f"),
    Column("reward_model/accuracy", "pairs ranked rightly", "accuracy", "5.3f"),
    Column("reward_model/margin", "margin of scores", "margin", "6.3f"),
    Column("grad_norm", "gradient norm", "grad", "6.2f"),
)
SPEED = Column("tokens_per_second", "tokens/s", "tok/s", "5,.0f")


@dataclass(frozen=True)
class Headline:
    """The number that a run is about: in the chart, in its last line, and in the picture `<name>.svg`."""

    metric: str = "reward/mean"
    label: str = "mean reward"
    name: str = "reward"
    columns: tuple[Column, ...] = COLUMNS


@dataclass(frozen=True)
class Alert:
    """A metric that is worth a warning whenever it is above zero."""

    metric: str
    label: str
    short: str
    share: bool = False


ALERTS = (
    Alert("dead_steps", "optimizer steps without a learning signal, left out", "dead_steps"),
    Alert("nonfinite_steps", "optimizer steps with a loss or gradient that is not finite, skipped", "nonfinite_steps"),
    Alert("reward/error_share", "samples whose reward failed", "reward_errors", share=True),
    Alert("reward/not_applicable", "samples that no reward function applies to", "not_applicable", share=True),
    Alert("eval/error_share", "samples of evaluations whose reward failed", "eval_errors", share=True),
)


@dataclass
class RunView:
    """Everything seen so far. `first_step` is the step before the first one of this process (a resumed run's last)."""

    title: str
    total_steps: int
    clock: Callable[[], float]
    started: float = 0.0
    first_step: int = 0
    headline: Headline = field(default_factory=Headline)
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    records: list[StepRecord] = field(default_factory=list[StepRecord])
    series: dict[str, list[Point]] = field(default_factory=dict[str, list[Point]])
    sample: tuple[int, SampleView] | None = None
    warnings: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, record: StepRecord) -> None:
        """Add a finished step."""
        for name, value in record.metrics.items():
            if math.isfinite(value):
                self.series.setdefault(name, []).append((float(record.step), value))
        self.records.append(record)

    @property
    def step(self) -> int:
        """The last finished step, 0 before the first."""
        return self.records[-1].step if self.records else self.first_step

    @property
    def elapsed(self) -> float:
        """Wall seconds since this process started training."""
        return self.clock() - self.started

    @property
    def eta(self) -> float | None:
        """Wall seconds left, from the recent steps of this process; None before the first."""
        recent = [step_seconds(record) for record in self.records[-RECENT:] if record.step > self.first_step]
        timed = [seconds for seconds in recent if seconds > 0]
        return sum(timed) / len(timed) * max(self.total_steps - self.step, 0) if timed else None

    def points(self, metric: str) -> list[Point]:
        """(step, value) where the metric is present and finite."""
        return self.series.get(metric, [])

    def alerts(self) -> list[str]:
        """Warnings so far, repeated ones once with their number, then the run's alert metrics."""
        # a copy: the thread that redraws must not meet a dict that grows
        lines = [text if n == 1 else f"{text} ({n} times)" for text, n in list(self.warnings.items())]
        for alert in ALERTS:
            values = [value for _, value in self.points(alert.metric)]
            if alert.share and sum(values) > 0:
                lines.append(f"{alert.label}: {sum(values) / len(values):.1%} on average, {values[-1]:.1%} last")
            elif sum(values) > 0:
                lines.append(f"{alert.label}: {sum(values):g} (in {sum(v > 0 for v in values)} of {self.step} steps)")
        return lines

    def reached(self, window: int = 3) -> tuple[float, float, int] | None:
        """Means over the first n and the last n steps that have the headline's metric, and n: at most `window` and the half."""
        values = [value for _, value in self.points(self.headline.metric)]
        if not values:
            return None
        n = max(1, min(window, len(values) // 2))
        return sum(values[:n]) / n, sum(values[-n:]) / n, n


def phases(record: StepRecord) -> dict[str, float]:
    """Wall seconds per phase of a step, without the total and without what is counted inside the phases."""
    times = {name.removeprefix("time/"): v for name, v in record.metrics.items() if name.startswith("time/")}
    return {name: seconds for name, seconds in times.items() if name not in NO_PHASES and math.isfinite(seconds)}


def step_seconds(record: StepRecord) -> float:
    """Wall seconds of a step: `time/step`, or the sum of its phases when that is absent."""
    total = record.metrics.get("time/step")
    return sum(phases(record).values()) if total is None else total
