"""One call per finished step: the metrics line, the samples, the trackers and the console.

Left out: when a step is finished and what its metrics are; the loop and `report.metrics` know.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from partita.records import Group
from partita.report.config import ReportConfig
from partita.report.console import Console
from partita.report.records import RunSummary, StepRecord, sample_rows, view_group
from partita.report.sinks import SampleSink, open_sinks, read_metrics
from partita.report.svg import curve_svg


@dataclass(frozen=True)
class RunFacts:
    """What a reporter needs to know of the run: its folder, its name, its length, and where it goes on."""

    folder: Path
    title: str
    total_steps: int
    settings: Mapping[str, Any]
    resume_step: int = 0


class Reporter:
    """Owns the files of a run's report and its console."""

    def __init__(self, config: ReportConfig, run: RunFacts) -> None:
        self.run = run
        self.sinks = open_sinks(
            config, run.folder, run_name=run.title, settings=run.settings, resume_step=run.resume_step
        )
        self.samples = SampleSink(
            run.folder / "samples",
            every=config.save_samples_every, compress=config.compress_samples, resume_step=run.resume_step,
        )  # fmt: skip
        self.console = Console(config.console, run.total_steps, run.title, sample_every=config.sample_every)
        self._warned = warnings.showwarning

    def start(self, facts: Mapping[str, str]) -> None:
        """Show what is about to run; from here on warnings go to the console."""
        warnings.showwarning = lambda message, *_, **__: self.console.warn(str(message))
        self.console.start(facts, read_metrics(self.run.folder / "metrics.jsonl"))

    def step(self, record: StepRecord, groups: Sequence[Group], advantages_T: Tensor | None) -> None:
        """Keep and show a step. `advantages_T` belongs to the samples of `groups` in order."""
        for sink in self.sinks:
            sink.step(record)
        if self.samples.due(record.step):
            self.samples.write(record.step, sample_rows(groups, advantages_T))
        self.console.step(record)
        if groups and self.console.sample_due(record.step):
            group = max(groups, key=_spread)  # the group that teaches most is the one worth reading
            answer = group.prompt.row.get("answer")
            self.console.sample(view_group(group, _best(group), None if answer is None else str(answer)))

    def finish(self, commands: Mapping[str, str], results: Sequence[str] = ()) -> None:
        """Draw the curve, say what was reached and what to do next."""
        points = [
            (float(r.step), r.metrics["reward/mean"]) for r in self.console.view.records if "reward/mean" in r.metrics
        ]
        (self.run.folder / "reward.svg").write_text(curve_svg(points, f"{self.run.title}: mean reward by step"))
        self.console.finish(RunSummary(str(self.run.folder), commands, results))

    def close(self) -> None:
        """Close files, trackers and the console; warnings go where they went before."""
        warnings.showwarning = self._warned
        self.console.close()
        for sink in self.sinks:
            sink.close()


def _rewards(group: Group) -> list[float]:
    return [sample.reward for sample in group.samples if sample.reward is not None]


def _spread(group: Group) -> float:
    rewards = _rewards(group)
    return max(rewards) - min(rewards) if rewards else -1.0


def _best(group: Group) -> int:
    """The sample with the highest reward; the first one when none has a reward."""
    scored = [(sample.reward, -i) for i, sample in enumerate(group.samples) if sample.reward is not None]
    return -max(scored)[1] if scored else 0
