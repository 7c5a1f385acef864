"""Evaluation: k samples for each of some prompts from a random stream of its own, and a mean with its interval.

Shapes: P prompts, K samples per prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.engine.api import Engine, Sampling
from partita.evals.estimators import avg_at_k
from partita.evals.intervals import Estimate
from partita.records import Group, Prompt
from partita.rollout.episodes import RolloutError, Scorer, Setting, play
from partita.rollout.workflow import UNLIMITED, Workflow
from partita.tasks.chat import NO_CHAT, Chat
from partita.tasks.reward import Judge

EVAL_STREAM = 1  # training draws from stream 0


class NothingScored(RolloutError):
    """No sample of an evaluation has a reward."""


@dataclass(frozen=True)
class Evaluation:
    """Groups of P prompts with K samples each. A sample without a reward is left out of the mean; `errors` are those whose
    reward failed, beside which a reward may not apply.
    """

    groups: tuple[Group, ...]
    mean: Estimate
    errors: int

    @property
    def rewards(self) -> dict[str, list[float]]:
        """Rewards by prompt uid, for a paired comparison."""
        return {group.prompt.uid: group.rewards for group in self.groups if group.rewards}

    @property
    def error_share(self) -> float:
        """The share of samples whose reward failed."""
        return self.errors / sum(len(group.samples) for group in self.groups)


@dataclass(frozen=True)
class Evaluator:
    """What an evaluation needs beside prompts and sampling."""

    engine: Engine
    workflow: Workflow
    scorer: Scorer
    seed: int
    judge: Judge | None = None
    chat: Chat = NO_CHAT
    context: int = UNLIMITED

    async def run(self, prompts: Sequence[Prompt], sampling: Sampling, n_samples: int) -> Evaluation:
        """Sample, score and estimate. Draws depend on (seed, prompt index, sample) only, so two models can be compared.

        Raises NothingScored when no sample could be scored, with the first error.
        """
        setting = Setting(
            self.engine, self.workflow, self.scorer, sampling, self.seed, EVAL_STREAM, self.judge, self.chat, self.context
        )  # fmt: skip
        groups = tuple(await play(setting, list(enumerate(prompts)), n_samples))
        without = [sample for group in groups for sample in group.samples if sample.reward is None]
        rewards = [group.rewards for group in groups if group.rewards]
        if not rewards:
            raise NothingScored(
                f"no sample could be scored; the first error: {without[0].error if without else 'no prompts'}"
            )
        return Evaluation(groups, avg_at_k(rewards), sum(sample.status == "reward_error" for sample in without))
