"""Evaluation: k samples for each of some prompts from a random stream of its own, and a mean with its interval.

Shapes: P prompts, K samples per prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.engine.api import Draw, Engine, Sampling
from partita.evals.estimators import Estimate, avg_at_k
from partita.records import Group, Prompt, Sample
from partita.rollout.rollouts import RolloutError, Scorer, episode
from partita.rollout.rounds import Rounds, together
from partita.rollout.summary import rewards_of
from partita.rollout.workflow import Workflow

EVAL_STREAM = 1  # training draws from stream 0


@dataclass(frozen=True)
class Evaluation:
    """Groups of P prompts with K samples each. A sample without a reward is left out of the mean and counted."""

    groups: tuple[Group, ...]
    mean: Estimate
    errors: int

    @property
    def rewards(self) -> dict[str, list[float]]:
        """Rewards by prompt uid, for a paired comparison."""
        return {g.prompt.uid: rewards_of(g.samples) for g in self.groups if rewards_of(g.samples)}


@dataclass(frozen=True)
class Evaluator:
    """What an evaluation needs beside prompts and sampling."""

    engine: Engine
    workflow: Workflow
    scorer: Scorer
    seed: int

    async def run(self, prompts: Sequence[Prompt], sampling: Sampling, n_samples: int) -> Evaluation:
        """Sample, score and estimate. Draws depend on (seed, prompt index, sample) only, so two models can be compared.

        Raises RolloutError when no sample could be scored, with the first error.
        """
        rounds = Rounds(self.engine)
        rounds.enter(len(prompts) * n_samples)

        async def one(serial: int, prompt: Prompt, sample: int) -> Sample:
            draw = Draw(self.seed, EVAL_STREAM, serial, sample)
            try:
                return await self.workflow.run(episode(rounds, self.scorer, prompt, sampling, draw))
            finally:
                rounds.leave()

        samples = await together(one(p, prompt, k) for p, prompt in enumerate(prompts) for k in range(n_samples))
        groups = tuple(
            Group(p, prompt, samples[p * n_samples : (p + 1) * n_samples]) for p, prompt in enumerate(prompts)
        )
        failed = [sample for group in groups for sample in group.samples if sample.reward is None]
        rewards = [listed for group in groups if (listed := rewards_of(group.samples))]
        if not rewards:
            raise RolloutError(
                f"no sample could be scored; the first error: {failed[0].error if failed else 'no prompts'}"
            )
        return Evaluation(groups, avg_at_k(rewards), len(failed))
