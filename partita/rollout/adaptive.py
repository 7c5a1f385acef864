"""More samples for prompts that the policy is undecided about: scores from their last rollout, remembered by uid.

Left out: the split itself (`algo.sampling.allocate`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.algo.sampling import allocate
from partita.engine.config import AdaptiveN
from partita.records import Group


def entropy_score(group: Group) -> float | None:
    """Mean of -log p over the group's trained tokens, in nats; None without any (tokens of log-prob -inf aside).

    -log p of a sampled token is an unbiased estimate of the entropy of the distribution that it was drawn from.
    """
    logprobs = [
        logprob
        for sample in group.samples
        for row in sample.rows
        for trained, logprob in zip(row.trained, row.behaviour_logprobs, strict=True)
        if trained and math.isfinite(logprob)
    ]
    # rounding can make the log-prob of a certain token slightly positive
    return max(0.0, -math.fsum(logprobs) / len(logprobs)) if logprobs else None


def variance_score(group: Group) -> float | None:
    """Population variance of the raw finite rewards, p (1 - p) where they are 0 and 1; None when there is none."""
    rewards = [reward for reward in group.rewards if math.isfinite(reward)]
    if not rewards:
        return None
    if min(rewards) == max(rewards):
        return 0.0  # exactly: the mean of equal rewards may be off by a rounding
    mean = math.fsum(rewards) / len(rewards)
    return math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards)


SCORES: dict[str, Callable[[Group], float | None]] = {"entropy": entropy_score, "variance": variance_score}


@dataclass
class AdaptiveSizes:
    """Splits a round's samples over its prompts. `known` holds the score of every prompt seen so far, by uid."""

    low: int
    high: int
    score: str
    known: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def of(cls, config: AdaptiveN | None) -> AdaptiveSizes | None:
        """As the config says; None where it says nothing."""
        return None if config is None else cls(config.min, config.max, config.score)

    def sizes(self, uids: Sequence[str], n_samples: int) -> list[int]:
        """Samples per prompt, `n_samples` on average. A prompt not seen before counts as the mean of those that were."""
        unseen = math.fsum(self.known.values()) / len(self.known) if self.known else 1.0
        return allocate([self.known.get(uid, unseen) for uid in uids], n_samples * len(uids), self.low, self.high)

    def observe(self, groups: Iterable[Group]) -> None:
        """Remember the scores of these groups, given in start order: the last rollout of a prompt counts."""
        for group in groups:
            score = SCORES[self.score](group)
            if score is not None:
                self.known[group.prompt.uid] = score

    def state_dict(self) -> dict[str, Any]:
        """The scores, and what they measure."""
        return {"score": self.score, "known": dict(self.known)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved scores. Those of another measure are of no use: the prompts then count as not seen."""
        self.known = dict(state["known"]) if state["score"] == self.score else {}
