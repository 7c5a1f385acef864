"""The evaluations of a training run: always the same held-out prompts, sampled in the same way.

Left out: when one is due, and which weights the engine holds then.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from partita.engine.api import Sampling
from partita.evals.evaluate import Evaluator, NothingScored
from partita.records import Prompt


@dataclass(frozen=True)
class EvalPlan:
    """Held-out prompts, and how they are sampled: with the training's limits, at the evaluation's temperature."""

    evaluator: Evaluator
    prompts: tuple[Prompt, ...]
    sampling: Sampling

    async def measured(self, n_samples: int) -> dict[str, float]:
        """`eval/reward` with the ends of its interval where it has one, and `eval/error_share`; that alone, and a warning,
        where nothing could be scored: what was learned is worth more than its evaluation.
        """
        try:
            result = await self.evaluator.run(self.prompts, self.sampling, n_samples)
        except NothingScored as error:
            warnings.warn(f"evaluation: {error}", stacklevel=2)
            return {"eval/error_share": 1.0}
        found = {"eval/error_share": result.error_share, "eval/reward": result.mean.mean}
        if result.mean.low is not None and result.mean.high is not None:
            found |= {"eval/reward_low": result.mean.low, "eval/reward_high": result.mean.high}
        return found
