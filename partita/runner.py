"""The running training: what the loop's verbs mean, in one place, with everything that a checkpoint must hold.

Left out: how the parts are made (`build`) and in which order a step uses them (`loop`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from partita.algo.algorithm import Algorithm
from partita.algo.control import Controls
from partita.engine.api import Engine, Sampling
from partita.evals.evaluate import Evaluator, NothingScored
from partita.extras import Brought
from partita.models.export import export_hf, remove_leftovers
from partita.models.packed import weights
from partita.records import Prompt
from partita.report.metrics import Metrics, Timer
from partita.report.records import StepRecord
from partita.report.reporter import Reporter
from partita.rollout.rollouts import Rollouts, Taken
from partita.rollout.summary import summarise
from partita.run import RunConfig
from partita.runfolder import CHECKPOINTS, EXPORT
from partita.train.batch import RolloutBatch
from partita.train.checkpoint import save_checkpoint
from partita.train.learner import Learner


@dataclass(frozen=True)
class EvalPlan:
    """Held-out prompts, and how they are sampled: with the training's limits, at the evaluation's temperature."""

    evaluator: Evaluator
    prompts: tuple[Prompt, ...]
    sampling: Sampling


@dataclass
class Run:
    """One training run. `first_step` counts finished steps: 0 for a new run, the checkpoint's for a resumed one."""

    config: RunConfig
    folder: Path
    tokenizer: PreTrainedTokenizerBase
    learner: Learner
    engine: Engine
    rollouts: Rollouts
    algorithm: Algorithm
    controls: Controls
    steps: int
    reporter: Reporter
    eval_plan: EvalPlan | None = None
    brought: Brought = field(default_factory=Brought)
    first_step: int = 0
    timer: Timer = field(default_factory=Timer)
    step_began: float = field(default_factory=time.perf_counter)

    @property
    def groups_per_step(self) -> int:
        """Prompts of one train step."""
        return self.config.train_dataset.batch_size

    def timed(self, phase: str) -> AbstractContextManager[None]:
        """Count the block's wall time as `time/<phase>` of this step."""
        return self.timer.timed(phase)

    def publish(self, version: int) -> None:
        """Hand the learner's weights to the engine."""
        self.engine.publish(weights(self.learner.model), version)

    async def finish(self, step: int, taken: Taken, rollout: RolloutBatch, metrics: Metrics) -> None:
        """Controllers, evaluation, report and checkpoint of step `step` (counted from 1), each when due."""
        metrics.add(self.algorithm.credit_stats(rollout.batch))
        metrics.merge(summarise(taken.started))
        metrics.put("rollout_rounds", taken.rounds)
        self.controls.observe("after_epochs", metrics.as_dict())
        if self._eval_due(step):
            with self.timed("eval"):
                await self._evaluate(metrics)
        self.reporter.step(self._record(step, metrics), taken.groups, rollout.batch.advantages_T)
        if self._save_due(step):
            with self.timed("save"):  # counted in the next step
                self.save(step)
        self.step_began = time.perf_counter()

    def save(self, step: int) -> None:
        """Write a checkpoint."""
        keep = self.config.checkpoint.keep_last
        root = self.folder / CHECKPOINTS
        save_checkpoint(root, step, self.learner.model, self.learner.optimizer, self.state_dict(step), keep)

    def state_dict(self, step: int) -> dict[str, Any]:
        """Everything beside tensors that a resumed run needs to go on as if it had not stopped."""
        return {
            "step": step,
            "rollouts": self.rollouts.state_dict(),
            "controls": self.controls.state_dict(),
            "learner": self.learner.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.first_step = state["step"]
        self.rollouts.load_state_dict(state["rollouts"])
        self.controls.load_state_dict(state["controls"])
        self.learner.load_state_dict(state["learner"])

    def end(self) -> None:
        """Export the model, also when a kill came between the last checkpoint and its export; say what to do next."""
        folder = self.folder
        remove_leftovers(folder / EXPORT)
        self.export(folder / EXPORT)
        reward = " --reward path/file.py:function" if self.brought.rewards else ""
        self.reporter.finish(
            {
                "evaluate": f"partita eval {folder} --compare{reward}",
                "try": f'partita generate {folder} --prompt "..."',
                "go on": self.brought.resume_command(folder, f"total_train_steps={2 * self.steps}"),
            }
        )

    def export(self, folder: Path) -> None:
        """Write the model in Hugging Face format."""
        export_hf(self.learner.model, self.tokenizer, folder)

    async def _evaluate(self, metrics: Metrics) -> None:
        assert self.eval_plan is not None, "an evaluation is due only with a plan"
        plan = self.eval_plan
        try:
            result = await plan.evaluator.run(plan.prompts, plan.sampling, self.config.evaluator.n_samples)
        except NothingScored as error:  # the step that was learned is worth more than its evaluation
            metrics.put("eval/error_share", 1.0)
            warnings.warn(f"evaluation: {error}", stacklevel=2)
            return
        metrics.put("eval/error_share", result.error_share)
        metrics.put("eval/reward", result.mean.mean)
        if result.mean.low is not None and result.mean.high is not None:
            metrics.put("eval/reward_low", result.mean.low)
            metrics.put("eval/reward_high", result.mean.high)

    def _record(self, step: int, metrics: Metrics) -> StepRecord:
        times = self.timer.take() | {"time/step": time.perf_counter() - self.step_began}
        values = metrics.as_dict() | self.controls.logged()
        speed = {"tokens_per_second": values["response_tokens"] / times["time/sample"]}
        return StepRecord(step, values | speed | times)

    def _eval_due(self, step: int) -> bool:
        every = self.config.evaluator.freq_steps
        return self.eval_plan is not None and every is not None and (step % every == 0 or step == self.steps)

    def _save_due(self, step: int) -> bool:
        every = self.config.checkpoint.freq_steps
        return step == self.steps or (every is not None and step % every == 0)
