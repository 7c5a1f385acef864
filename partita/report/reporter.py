"""One call per finished step: the metrics line, the samples, the trackers and the console.

The console shows a step at once; files and trackers take it in a thread of their own, so that no step waits for them.
Left out: when a step is finished and what its metrics are; the loop and `report.metrics` know.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from partita.records import Group
from partita.report.background import Background
from partita.report.config import ReportConfig
from partita.report.console import Console
from partita.report.records import RunSummary, StepRecord, sample_rows, view_group
from partita.report.sinks import BATCHES, BatchSink, SampleSink, Sink, open_sinks, read_metrics, write_atomic
from partita.report.svg import curve_svg
from partita.report.view import Headline


@dataclass(frozen=True)
class RunFacts:
    """What a reporter needs to know of the run: its folder, its name, its length, and where it goes on."""

    folder: Path
    title: str
    total_steps: int
    settings: Mapping[str, Any]
    resume_step: int = 0
    headline: Headline = field(default_factory=Headline)


class Reporter:
    """Owns the files of a run's report and its console. Touches no file before `start`."""

    def __init__(self, config: ReportConfig, run: RunFacts) -> None:
        self.config, self.run = config, run
        self.sinks: list[Sink] = []
        self.samples: SampleSink | None = None
        self.batches: BatchSink | None = None  # where numbers are kept, from the start on
        self.background = Background()
        self.console = Console(
            config.console, run.total_steps, run.title, sample_every=config.sample_every, headline=run.headline
        )
        self._warned = warnings.showwarning

    def start(self, facts: Mapping[str, str]) -> None:
        """Open the files, without what was written after the step to go on from, and show what is about to run.

        From here on warnings go to the console. Raises ReportFileError when the metrics cannot be read.
        """
        config, run = self.config, self.run
        self.sinks = open_sinks(
            config, run.folder, run_name=run.title, settings=run.settings, resume_step=run.resume_step
        )
        self.samples = SampleSink(
            run.folder / "samples",
            every=config.save_samples_every, compress=config.compress_samples, resume_step=run.resume_step,
        )  # fmt: skip
        batches = BatchSink(run.folder / BATCHES, keep=config.keep_batches, resume_step=run.resume_step)
        self.batches = None if config.keep_batches == 0 else batches
        warnings.showwarning = lambda message, *_, **__: self.console.warn(str(message))
        self.console.start(facts, read_metrics(self.run.folder / "metrics.jsonl"))

    def step(self, record: StepRecord, groups: Sequence[Group], advantages_T: Tensor | None) -> None:
        """Keep and show a step. `advantages_T` belongs to the samples of `groups` in order.

        Raises what keeping an earlier one failed with.
        """
        self.background.do(partial(self._keep, record, groups, advantages_T))
        self.console.step(record)
        if groups and self.console.sample_due(record.step):
            group = max(groups, key=_spread)  # the group that teaches most is the one worth reading
            self.console.sample(view_group(group, _best(group)))

    def _keep(self, record: StepRecord, groups: Sequence[Group], advantages_T: Tensor | None) -> None:
        for sink in self.sinks:
            sink.step(record)
        if self.samples is not None and self.samples.due(record.step):
            self.samples.write(record.step, sample_rows(groups, advantages_T))

    @property
    def keeps_numbers(self) -> bool:
        """Whether `numbers` are wanted."""
        return self.batches is not None

    def numbers(self, step: int, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        """Keep the numbers of a step, after it. Nobody may change the tensors any more."""
        if self.batches is not None:
            self.background.do(partial(self.batches.write, step, tensors, header))

    def wait(self) -> None:
        """Until all that is to be kept is on the disk. Raises what failed."""
        self.background.wait()

    def finish(self, commands: Mapping[str, str], results: Sequence[str] = ()) -> None:
        """Draw the curve, say what was reached and what to do next."""
        self.wait()
        told = self.run.headline
        points = [
            (float(r.step), r.metrics[told.metric]) for r in self.console.view.records if told.metric in r.metrics
        ]
        curve = curve_svg(points, f"{self.run.title}: {told.label} by step", y_label=told.name)
        write_atomic(self.run.folder / f"{told.name}.svg", curve.encode())
        self.console.finish(RunSummary(str(self.run.folder), commands, results))

    def close(self) -> None:
        """Close files, trackers and the console; warnings go where they went before."""
        warnings.showwarning = self._warned
        with ExitStack() as closing:  # one that fails does not keep the others open
            for sink in self.sinks:
                closing.callback(sink.close)
            closing.callback(self.console.close)
            self.background.close()


def _spread(group: Group) -> float:
    return max(group.rewards) - min(group.rewards) if group.rewards else -1.0


def _best(group: Group) -> int:
    """The sample with the highest reward; the first one when none has a reward."""
    scored = [(sample.reward, -i) for i, sample in enumerate(group.samples) if sample.reward is not None]
    return -max(scored)[1] if scored else 0
