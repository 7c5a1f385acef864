"""The loop of training on data: a batch of items, one optimizer step, evaluation, report and checkpoint when each is due.

Left out: how the parts are made (`offline.build`) and what an item costs (`train.objectives`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from partita.ends import TOLD, Told
from partita.models.export import remove_leftovers
from partita.offline.config import OfflineConfig
from partita.offline.source import Source
from partita.report.metrics import Metrics, Timer
from partita.report.records import StepRecord
from partita.report.reporter import Reporter
from partita.runfolder import CHECKPOINTS, EXPORT
from partita.train.offline import Item, OfflineLearner
from partita.train.offline_team import OfflineTeam


@dataclass
class OfflineRun:
    """One run on data, as rank 0 leads it. team: the model, on all ranks. source: gives the items of each step.

    export: writes the trained model into a folder. next_commands: what may be done with it, by name. started: fingerprint of
    the weights it began with. told: by a signal, to end after a step; early: it does.
    """

    config: OfflineConfig
    folder: Path
    team: OfflineTeam
    source: Source
    held_out: Sequence[Item]
    steps: int
    reporter: Reporter
    export: Callable[[Path], None]
    next_commands: Mapping[str, str]
    started: int
    first_step: int = 0
    told: Told = field(default_factory=Told)
    early: bool = False
    timer: Timer = field(default_factory=Timer)
    step_began: float = field(default_factory=time.perf_counter)

    @property
    def learner(self) -> OfflineLearner:
        """This rank's."""
        return self.team.learner

    def remaining(self) -> Iterator[int]:
        """The train steps to take, counted from 0."""
        for step in range(self.first_step, self.steps):
            if self.early:
                return
            yield step

    def timed(self, phase: str) -> AbstractContextManager[None]:
        """Count the block's wall time as `time/<phase>` of this step."""
        return self.timer.timed(phase)

    def finish(self, step: int, metrics: Metrics) -> None:
        """Evaluation, report and checkpoint of step `step`, counted from 1, each when due."""
        values = metrics.as_dict()
        self.early = self.told.early and step < self.steps
        if self._eval_due(step):
            with self.timed("eval"):
                values |= self._evaluated()
        times = self.timer.take() | self.learner.timer.take()
        times["time/step"] = time.perf_counter() - self.step_began
        values["epoch"] = self.source.taken / self.source.size
        speed = {"tokens_per_second": values["trained_tokens"] / times["time/step"]}
        self.reporter.step(StepRecord(step, values | speed | times), (), None)
        if self._save_due(step):
            with self.timed("save"):  # counted in the next step
                self.save(step)
        self.step_began = time.perf_counter()

    def save(self, step: int) -> None:
        """Write a checkpoint, after the records of all steps before it."""
        self.reporter.wait()
        self.team.save(self.folder / CHECKPOINTS, step, self.state_dict(step), self.config.checkpoint.keep_last)

    def state_dict(self, step: int) -> dict[str, Any]:
        """Everything beside tensors that a resumed run needs to go on as if it had not stopped."""
        return {
            "step": step,
            "started": self.started,
            "data": self.source.state_dict(),
            "learner": dict(self.learner.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state; source and team have their parts of it already."""
        self.first_step = state["step"]
        self.source.learned(self.first_step, self.team.weights)

    @property
    def go_on(self) -> str:
        """The command that goes on with this run."""
        return f"partita {self.config.command} --resume {quote(str(self.folder))}"

    def end(self) -> None:
        """Export the model, and say what was reached and what to do next."""
        if self.early:  # whoever told it to end does not wait for an export
            self.reporter.finish({"go on": self.go_on}, [f"ended early: {TOLD.text}"])
            return
        remove_leftovers(self.folder / EXPORT)
        self.export(self.folder / EXPORT)
        results = [f"held out: {self._last_evaluation()}"] if self.held_out else []
        self.reporter.finish(self.next_commands, results)

    def _evaluated(self) -> dict[str, float]:
        found = self.team.evaluate(self.held_out)
        return {f"eval/{name}": value for name, value in found.items()}

    def _last_evaluation(self) -> str:
        for record in reversed(self.reporter.console.view.records):
            if found := {name: v for name, v in record.metrics.items() if name.startswith("eval/")}:
                return ", ".join(f"{name.removeprefix('eval/')} {value:.4g}" for name, value in sorted(found.items()))
        return "not evaluated"

    def _eval_due(self, step: int) -> bool:
        every = self.config.evaluator.freq_steps
        return bool(self.held_out) and (step == self.steps or (every is not None and step % every == 0))

    def _save_due(self, step: int) -> bool:
        every = self.config.checkpoint.freq_steps
        return step == self.steps or self.early or (every is not None and step % every == 0)


def train(run: OfflineRun) -> None:
    """Take a batch, learn from it; until the last step."""
    for step in run.remaining():
        with run.timed("sample"):  # rows, or pairs of the policy's own answers
            items, metrics = run.source.take()
        with run.timed("learn"):
            metrics.merge(run.team.learn(items, step, run.steps))
        with run.timed("publish"):
            run.source.learned(step + 1, run.team.weights)
        run.finish(step + 1, metrics)
    run.end()
