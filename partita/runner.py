"""The running training: what the loop's verbs mean, in one place, with everything that a checkpoint must hold.

Left out: how the parts are made (`build`) and in which order a step uses them (`loop`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from partita.algo.algorithm import Algorithm
from partita.algo.compose import controllers
from partita.algo.control import Controls, When
from partita.algo.stats import LOSS_METRICS
from partita.best import best_folder, remove_beaten, restore_best
from partita.columns import with_columns
from partita.ends import TOLD, EarlyStop, Ends
from partita.engine.api import Engine
from partita.evals.plan import EvalPlan
from partita.extras import Brought
from partita.models.export import remove_leftovers
from partita.records import Group
from partita.replay.saved import saved, setting_of
from partita.report.metrics import Metrics, Timer
from partita.report.records import StepRecord
from partita.report.reporter import Reporter
from partita.report.sinks import write_atomic
from partita.rollout.adaptive import AdaptiveSizes
from partita.rollout.rollouts import Refill, Retry, Rollouts, Taken
from partita.rollout.summary import summarise_taken
from partita.run import RunConfig
from partita.runfolder import CHECKPOINTS, CRITIC_EXPORT, EXPORT
from partita.stages import Progress, carried, changes
from partita.steptimes import EngineClock, step_times
from partita.tasks.judges.judge import Judges
from partita.tasks.rates import FILE as PASS_RATES
from partita.train.batch import RolloutBatch, collate
from partita.train.learner import Learner
from partita.train.record import LearnRecord
from partita.train.team import Team


@dataclass(frozen=True)
class Phase:
    """All that differs between the stages of a run. config: the stage's, with its keys in place."""

    config: RunConfig
    algorithm: Algorithm
    refill: Refill | None = None
    retry: Retry | None = None


@dataclass
class Run:
    """One training run, as rank 0 leads it. `first_step` counts finished steps: 0 for a new run, the checkpoint's for a resumed
    one.

    team: the models, on all ranks. phases: one for each stage, one where the config has no stages. part_names: the reward
    functions, in the order of their weights in the algorithms. record: what learning did in the last step. applied: what the
    rules remembered meanwhile. starting: the weights that training started from, where samples come from those but
    evaluations borrow the engine. started: their fingerprint. finished: steps so far.
    """

    config: RunConfig
    folder: Path
    team: Team
    engine: Engine
    rollouts: Rollouts
    phases: tuple[Phase, ...]
    steps: int
    reporter: Reporter
    eval_plan: EvalPlan | None = None
    brought: Brought = field(default_factory=Brought)
    part_names: tuple[str, ...] = ()
    first_step: int = 0
    judges: Judges | None = None
    starting: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    started: int = 0
    timer: Timer = field(default_factory=Timer)
    step_began: float = field(default_factory=time.perf_counter)
    record: LearnRecord = field(default_factory=LearnRecord)
    applied: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    engine_clock: EngineClock = field(init=False)
    controls: Controls = field(init=False, default_factory=Controls)
    progress: Progress = field(init=False)
    ends: Ends = field(init=False)
    finished: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        asked = self.config.early_stop
        self.ends = Ends(self.config.max_hours, self.config.max_tokens, None if asked is None else EarlyStop(asked))
        self.progress = Progress(tuple(self.config.stages))
        self.engine_clock = EngineClock(self.engine)
        self._enter()

    @property
    def learner(self) -> Learner:
        """This rank's."""
        return self.team.learner

    @property
    def phase(self) -> Phase:
        """The stage that the run is in."""
        return self.phases[self.progress.index]

    @property
    def algorithm(self) -> Algorithm:
        """The stage's, as configured: without what the controllers have changed."""
        return self.phase.algorithm

    @property
    def groups_per_step(self) -> int:
        """Prompts of one train step."""
        return self.phase.config.train_dataset.batch_size

    def remaining(self) -> Iterator[int]:
        """The train steps to take, counted from 0: until `steps`, until the prompts of all epochs are used, or `ends`."""
        self.ends.recall(self.reporter.console.view.records)
        step = self.first_step
        while not self._over(step):
            yield step
            step += 1

    def timed(self, phase: str) -> AbstractContextManager[None]:
        """Count the block's wall time as `time/<phase>` of this step."""
        return self.timer.timed(phase)

    async def take(self, step: int) -> Taken:
        """The groups of step `step`; where a judge may ask no more, a checkpoint of the steps before, and BudgetReached."""
        if self.judges is None:
            return await self.rollouts.take(self.groups_per_step)
        save = partial(self.save, step, self.state_dict(step))
        with self.judges.ending(save if step > 0 else lambda: None):
            return await self.rollouts.take(self.groups_per_step)

    def score(self, groups: Sequence[Group], version: int) -> RolloutBatch:
        """The batch of the groups, with the streams that the algorithm needs. `version`: of the newest weights."""
        rollout = collate(groups, seed=self.config.seed, version=version)
        return self.team.score(with_columns(rollout, self.algorithm.needs, self.part_names), self.algorithm)

    def credit(self, rollout: RolloutBatch) -> tuple[Algorithm, RolloutBatch]:
        """Give credit, and let the controllers move before and after it. The algorithm is that of the optimizer steps."""
        algorithm = self.controls.apply(self.algorithm)
        algorithm = self._moved("before_credit", algorithm.statistics(rollout.batch))
        rollout = rollout.with_batch(algorithm.credit(rollout.batch))
        found = Metrics()
        if bool(rollout.batch.valid_S.any()):  # else there is no spread of advantages: that is not one of 0
            found.add(algorithm.credit_stats(rollout.batch))
        return self._moved("after_credit", found.as_dict()), rollout

    def learn(self, rollout: RolloutBatch, algorithm: Algorithm, step: int) -> Metrics:
        """All optimizer steps of a train step."""
        self.applied, total = self.controls.state_dict(), self._length(step)
        metrics, self.record = self.team.learn(rollout, algorithm, step, total, whole=self._watched)
        return metrics

    def publish(self, version: int) -> None:
        """Hand the learner's weights to the engine, unless samples come from the starting ones for the whole run."""
        if self.config.rollout.policy == "newest":
            self.engine.publish(self.policy_weights(), version)

    def policy_weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """The learner's weights of now, as the engine takes them; gathered where it does."""
        return self.team.weights()

    async def finish(self, step: int, taken: Taken, rollout: RolloutBatch, metrics: Metrics) -> None:
        """Controllers, evaluation, report, stage and checkpoint of step `step` (counted from 1), each when due."""
        metrics.add(self.algorithm.credit_stats(rollout.batch))
        rollouts = summarise_taken(taken)
        metrics.merge(rollouts)
        if self.config.train_dataset.streaming:
            metrics.put("prompts_left_out", self.rollouts.prompts.left_out)
        self.finished = step
        self.ends.step_taken(rollouts.counters["response_tokens"])
        samples = {"samples": float(rollout.batch.valid_S.sum())}
        self.controls.observe("after_epochs", metrics.as_dict() | samples)
        if self._eval_due(step):
            with self.timed("eval"):
                await self._evaluate(step, metrics)
        if self.judges is not None:
            metrics.add(self.judges.take_counts())
        self._refresh(step)
        record = self._record(step, metrics)
        self.reporter.step(record, taken.groups, rollout.batch.advantages_T)
        self._keep(step, rollout)
        self._judge(step, record.metrics)
        if self._save_due(step):
            with self.timed("save"):  # counted in the next step
                self.save(step)
        self.step_began = time.perf_counter()

    def save(self, step: int, state: dict[str, Any] | None = None) -> None:
        """Write a checkpoint, after the records of all steps before it. state: an earlier `state_dict`, the present one if None."""
        self.reporter.wait()
        state = self.state_dict(step) if state is None else state
        self.team.save(self.folder / CHECKPOINTS, step, state, self.config.checkpoint.keep_last)
        if self.ends.stop is not None:
            remove_beaten(self.folder, self.ends.stop.best_step)
        if self.rollouts.rates is not None:
            write_atomic(self.folder / PASS_RATES, self.rollouts.rates.lines().encode())

    def state_dict(self, step: int) -> dict[str, Any]:
        """Everything beside tensors that a resumed run needs to go on as if it had not stopped."""
        return {
            "step": step,
            "started": self.started,
            "stage": self.progress.state_dict(),
            "ends": self.ends.state_dict(),
            "rollouts": self.rollouts.state_dict(),
            "controls": self.controls.state_dict(),
            "learner": self.learner.state_dict(),
            "critic": {} if self.team.critic is None else self.team.critic.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state, which the team has read. Raises ValueError for one that does not fit this config."""
        self.first_step = self.finished = state["step"]
        if "stage" in state:  # a run of version 0.1 has one phase
            self.progress.load_state_dict(state["stage"])
        self.ends.load_state_dict(state.get("ends", {}))
        self.controls = Controls()
        self._enter()
        self.rollouts.load_state_dict(state["rollouts"])
        self.controls.load_state_dict(state["controls"])

    @property
    def whole(self) -> bool:
        """Whether all steps were taken that the config asks for."""
        return self.finished >= self.steps or self.rollouts.exhausted

    @property
    def early(self) -> bool:
        """Whether it ends before its last step because it was told to."""
        return self.ends.reason is TOLD and not self.whole

    def end(self) -> None:
        """Export the model, also when a kill came between the last checkpoint and its export; say why and what to do next."""
        folder, reason = self.folder, None if self.whole else self.ends.reason
        if self.early:  # whoever told it to end does not wait for an export
            self.reporter.finish({"go on": self.brought.resume_command(folder)}, [f"ended early: {TOLD.text}"])
            return
        for name in (EXPORT, CRITIC_EXPORT):
            remove_leftovers(folder / name)
        self.export(folder / EXPORT)
        results = [f"ended by {reason.text}"] if reason else []
        results += restore_best(folder, folder / EXPORT, self.ends.stop, self.finished)
        reward = " --reward path/file.py:function" if self.brought.rewards else ""
        further = reason.further if reason else f"total_train_steps={2 * self.steps}"
        self.reporter.finish(
            {
                "evaluate": f"partita eval {folder} --compare{reward}",
                "try": f'partita generate {folder} --prompt "..."',
                "go on": self.brought.resume_command(folder, further),
            },
            results,
        )

    def export(self, folder: Path) -> None:
        """Write the model in Hugging Face format, and the critic beside it, as a sequence-classification model."""
        self.team.export(folder)
        if self.team.critic is not None:
            self.team.export_critic(folder.with_name(CRITIC_EXPORT))

    def _enter(self) -> None:
        """Put the stage in place: its rules, beside what they remember, and how it samples and learns."""
        phase, rollouts = self.phase, self.rollouts
        sampled, known = phase.config.gconfig, rollouts.adaptive
        self.controls = carried(self.controls, Controls(controllers(phase.config.actor)))
        rollouts.sampling = replace(
            rollouts.sampling, max_new_tokens=sampled.max_new_tokens, temperature=sampled.temperature
        )
        rollouts.n_samples, rollouts.refill, rollouts.retry = sampled.n_samples, phase.refill, phase.retry
        rollouts.adaptive = AdaptiveSizes.of(sampled.adaptive_n)
        if rollouts.adaptive is not None and known is not None:
            rollouts.adaptive.load_state_dict(known.state_dict())
        self.team.enter(phase.config.actor, sampled.temperature)

    def _refresh(self, step: int) -> None:
        """Make the policy of now the reference, where that is due."""
        every = None if self.config.ref is None else self.config.ref.refresh_steps
        if self.learner.reference is not None and every is not None and step % every == 0:
            self.team.refresh()

    def _keep(self, step: int, rollout: RolloutBatch) -> None:
        """The numbers of the step, for `partita replay`."""
        if self.reporter.keeps_numbers:
            setting = setting_of(step, self.progress.index, self.phase.config, self.algorithm, self.applied)
            self.reporter.numbers(step, *saved(setting, rollout, self.record))

    @property
    def _watched(self) -> bool:
        """Whether the end of the stage reads what the loss reports, or a rule acts after the optimizer steps and so may read
        it: then that must be over every sample.
        """
        until = self.config.stages[self.progress.index].until if self.config.stages else None
        plateau = until is not None and until.plateau is not None and until.plateau.startswith(LOSS_METRICS)
        return plateau or any(rule.when == "after_epochs" for rule in self.controls.controllers)

    def _judge(self, step: int, metrics: Mapping[str, float]) -> None:
        """Whether the evaluations still get better, and whether a stage ends. An evaluation out of turn, which only the end of a
        run asks for, moves neither: a run that goes on from there has not had it.
        """
        if in_turn := self._in_turn(step):
            counted = metrics
        else:
            counted = {name: value for name, value in metrics.items() if not name.startswith("eval/")}
        if "eval/error_share" in metrics and self.ends.evaluated(step, metrics, in_turn=in_turn):
            with self.timed("save"):
                self.team.export(best_folder(self.folder, step))
        self._advance(step, counted)

    def _advance(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.progress.advance(step, metrics):
            self._enter()
            self.rollouts.forget_surplus()
            if not self._over(step):
                index = self.progress.index
                self.reporter.console.note(f"stages[{index}] begins: {changes(self.config.stages[index])}")

    def _moved(self, when: When, metrics: Mapping[str, float]) -> Algorithm:
        self.controls.observe(when, metrics)
        return self.controls.apply(self.algorithm)

    async def _evaluate(self, step: int, metrics: Metrics) -> None:
        """Of the policy of now, also where the engine holds the starting one; that is in place again afterwards."""
        assert self.eval_plan is not None, "an evaluation is due only with a plan"
        others = self.config.rollout.policy != "newest"
        if others:
            self.engine.publish(self.policy_weights(), step)
        for name, value in (await self.eval_plan.measured(self.config.evaluator.n_samples)).items():
            metrics.put(name, value)
        if others:
            self.engine.publish(self.starting.items(), 0)

    def _record(self, step: int, metrics: Metrics) -> StepRecord:
        phases = self.timer.take() | self.learner.timer.take()  # which counts the critic's seconds too
        times = step_times(phases, time.perf_counter() - self.step_began, self.engine_clock.lap(self.engine))
        values = metrics.as_dict() | self.controls.logged()
        if self.config.stages:
            values["stage"] = float(self.progress.index)
        speed = {"tokens_per_second": values["response_tokens"] / times["time/sample"]}
        return StepRecord(step, values | speed | times)

    def _over(self, finished: int) -> bool:
        return finished >= self.steps or self.rollouts.exhausted or self.ends.reason is not None

    def _length(self, step: int) -> int:
        """Train steps of the whole run, for the learning rate. Where it ends with its prompts, as many as there will be if
        steps go on to use as many prompts as they did: a step that was refilled uses more than a batch.
        """
        limit, rollouts = self.rollouts.prompt_limit, self.rollouts
        # a group that waits has used its prompt for a step to come
        used = max(1, rollouts.used - len(rollouts.surplus))
        return self.steps if limit is None else math.ceil((step + 1) * limit / used)

    def _in_turn(self, step: int) -> bool:
        every = self.config.evaluator.freq_steps
        return self.eval_plan is not None and every is not None and step % every == 0

    def _eval_due(self, step: int) -> bool:
        asked = self.eval_plan is not None and self.config.evaluator.freq_steps is not None
        return asked and (self._in_turn(step) or (self._over(step) and not self.early))

    def _save_due(self, step: int) -> bool:
        every = self.config.checkpoint.freq_steps
        return self._over(step) or (every is not None and step % every == 0)
