"""Credit: how much of a sample's reward each of its tokens answers for, before statistics.

Shapes: T packed trained tokens, S samples.
Left out: values. Generalised advantage estimation stands in `ops.returns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from partita.algo.shape import NOTHING
from partita.algo.tokens import present
from partita.ops.returns import place_at_end, reward_to_go
from partita.ops.segments import segment_sum
from partita.records import Batch


@dataclass(frozen=True)
class Worth:
    """What each sample [S] is worth or, where it varies along a sample, each token [T]; and returns for a critic."""

    value: Tensor
    per_token: bool
    returns_T: Tensor | None = None


class Credit(Protocol):
    """Turns scores and token rewards into worth."""

    needs: ClassVar[frozenset[str]]
    """Names of the streams it reads."""

    def __call__(self, batch: Batch) -> Worth:
        """Worth in float64."""
        ...


@dataclass(frozen=True)
class Outcome:
    """r_i + Σ_t r_it: one number for the whole sample, so a KL in the reward is summed before any statistics."""

    needs: ClassVar[frozenset[str]] = NOTHING

    def __call__(self, batch: Batch) -> Worth:
        """Worth per sample."""
        value_S = present(batch.score_S, "score_S")
        if batch.token_rewards_T is not None:
            value_S = value_S + segment_sum(batch.token_rewards_T, batch.seq_T, batch.samples)
        return Worth(value_S, per_token=False)


@dataclass(frozen=True)
class RewardToGo:
    """Σ_(k≥t) γ^(k-t) r_k, with the outcome paid on the last token (Williams 1992; Sutton & Barto, section 13.3)."""

    discount: float
    needs: ClassVar[frozenset[str]] = NOTHING

    def __call__(self, batch: Batch) -> Worth:
        """Worth per token, which is also its return."""
        reward_T = place_at_end(present(batch.score_S, "score_S").to(torch.float64), batch.seq_T)
        if batch.token_rewards_T is not None:
            reward_T = reward_T + batch.token_rewards_T
        returns_T = reward_to_go(reward_T, batch.seq_T, self.discount)
        return Worth(returns_T, per_token=True, returns_T=returns_T)
