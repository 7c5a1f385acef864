"""The evaluations of a training run: always the same held-out prompts, sampled in the same way.

Left out: when one is due, and which weights the engine holds then.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from partita.config import ConfigError
from partita.engine.api import Sampling
from partita.evals.evaluate import Evaluator, NothingScored
from partita.evals.intervals import Estimate
from partita.evals.measures import Measures, Summary, summarise
from partita.records import Prompt


@dataclass(frozen=True)
class EvalPlan:
    """Held-out prompts, how they are sampled (as in training, but for what `evaluator` says), and what is measured, None for
    the mean reward alone.
    """

    evaluator: Evaluator
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    measures: Measures | None = None

    async def measured(self, n_samples: int) -> dict[str, float]:
        """`eval/reward` with the ends of its interval where it has one, `eval/error_share`, and what `measures` asks for; the share
        alone, and a warning, where nothing could be scored: what was learned is worth more than its evaluation.
        """
        try:
            result = await self.evaluator.run(self.prompts, self.sampling, n_samples)
        except NothingScored as error:
            warnings.warn(f"evaluation: {error}", stacklevel=2)
            return {"eval/error_share": 1.0}
        found = {"eval/error_share": result.error_share, **ends("reward", result.mean)}
        if self.measures is None:
            return found
        try:
            summary = summarise(result.groups, self.measures, n_samples)
        except ConfigError as error:
            warnings.warn(f"evaluation: {error}", stacklevel=2)
            return found
        if summary.failed:
            warnings.warn(f"evaluation: no maj@k: {summary.failed}", stacklevel=2)
        return found | told(summary, f"avg@{n_samples}")


def told(summary: Summary, accuracy: str) -> dict[str, float]:
    """Metrics of everything but the reward; `accuracy` is the name of the measure that is told of each category."""
    found = dict[str, float]()
    for name, estimate in summary.estimates.items():
        if name not in ("reward", "pass@1", "maj@1"):  # the latter two are avg@n
            found |= ends(name, estimate)
    for category, one in summary.categories.items():
        if accuracy in one.estimates:
            found[f"eval/{accuracy}/{category}"] = one.estimates[accuracy].mean
    found |= {"eval/truncated": summary.truncated, "eval/response_length": summary.length}
    return found if summary.answered is None else found | {"eval/answered": summary.answered}


def ends(name: str, estimate: Estimate) -> dict[str, float]:
    """`eval/<name>`, and `_low` and `_high` of it where it has an interval."""
    found = {f"eval/{name}": estimate.mean}
    if estimate.low is not None and estimate.high is not None:
        found |= {f"eval/{name}_low": estimate.low, f"eval/{name}_high": estimate.high}
    return found
