"""Credit: how much of a sample's reward each of its tokens answers for, before statistics.

Shapes: T packed trained tokens, S samples.
Left out: the recursions. Reward-to-go and generalised advantage estimation stand in `ops.returns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from partita.algo.norm import Norm, Units
from partita.algo.shape import NOTHING
from partita.algo.tokens import present
from partita.ops.returns import gae, place_at_end, reward_to_go
from partita.ops.segments import dense_ids, segment_sum
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

    def __call__(self, batch: Batch, counted_S: Tensor) -> Worth:
        """Worth in float64. `counted_S` names the samples that enter statistics."""
        ...

    def formula(self) -> str:
        """Worth in symbols."""
        ...


@dataclass(frozen=True)
class Outcome:
    """r_i + Σ_t r_it: one number for the whole sample, so a KL in the reward is summed before any statistics."""

    needs: ClassVar[frozenset[str]] = NOTHING

    def __call__(self, batch: Batch, counted_S: Tensor) -> Worth:
        """Worth per sample."""
        value_S = present(batch.score_S, "score_S")
        if batch.token_rewards_T is not None:
            value_S = value_S + segment_sum(batch.token_rewards_T, batch.seq_T, batch.samples)
        return Worth(value_S, per_token=False)

    def formula(self) -> str:
        """The score."""
        return "r_i"


@dataclass(frozen=True)
class RewardToGo:
    """Σ_(k≥t) γ^(k-t) r_k, with the outcome paid on the last token (Williams 1992; Sutton & Barto, section 13.3)."""

    discount: float
    needs: ClassVar[frozenset[str]] = NOTHING

    def __call__(self, batch: Batch, counted_S: Tensor) -> Worth:
        """Worth per token, which is also its return."""
        returns_T = reward_to_go(_rewards(batch), batch.seq_T, self.discount)
        return Worth(returns_T, per_token=True, returns_T=returns_T)

    def formula(self) -> str:
        """The discounted sum."""
        return f"Σ_(k≥t) {self.discount:g}^(k-t) r_k"


@dataclass(frozen=True)
class Gae:
    """A_t = δ_t + γλ A_(t+1), δ_t = r_t + γ V(s_(t+1)) - V(s_t) (Schulman et al. 2015, arXiv 1506.02438, equation 16).

    The outcome is paid on the last token. Returns A + V are fixed here, before any statistics. `bootstrap` takes the
    critic's value of the state after the last token where a sample was cut at the length limit; else it is worth 0.
    """

    discount: float
    gae_lambda: float
    bootstrap: bool = False
    needs: ClassVar[frozenset[str]] = frozenset({"values"})

    def __call__(self, batch: Batch, counted_S: Tensor) -> Worth:
        """Worth per token, and the critic's targets."""
        after_S = None
        if self.bootstrap:
            after_S = torch.where(batch.truncated_S, present(batch.bootstrap_value_S, "bootstrap_value_S"), 0.0)
        values_T = present(batch.values_T, "values_T")
        rewards_T = _rewards(batch)
        advantages_T, returns_T = gae(rewards_T, values_T, batch.seq_T, after_S, self.discount, self.gae_lambda)
        return Worth(advantages_T, per_token=True, returns_T=returns_T)

    def formula(self) -> str:
        """The estimator with its two constants."""
        return (
            f"GAE: Σ_l ({self.discount:g}·{self.gae_lambda:g})^l δ_(t+l), δ_t = r_t + {self.discount:g} V_(t+1) - V_t"
        )


@dataclass(frozen=True)
class ProcessRewards:
    """A_t = Σ over steps that end at or after t of (r_step - mean)/std, statistics over all steps of the group together.

    GRPO with process supervision (DeepSeekMath, arXiv 2402.03300, section 4.1.3). The outcome is not part of it; a
    sample without steps gets 0.
    """

    norm: Norm | None
    needs: ClassVar[frozenset[str]] = frozenset({"step_rewards"})

    def __call__(self, batch: Batch, counted_S: Tensor) -> Worth:
        """Worth per token. Raises ValueError where no sample of a batch has step rewards."""
        if batch.step_rewards_T is None and not bool(counted_S.any()):  # an empty step
            return Worth(torch.zeros_like(batch.seq_T, dtype=torch.float64), per_token=True)
        reward_T = present(batch.step_rewards_T, "step_rewards_T").to(torch.float64)
        ends_T = torch.isfinite(reward_T)
        value_T = torch.where(ends_T, reward_T, 0.0)
        if self.norm is not None:
            group_S, groups = dense_ids(batch.prompt_S)
            steps = Units(group_S[batch.seq_T], groups, ends_T & counted_S[batch.seq_T])
            value_T = self.norm(value_T, steps)
        return Worth(reward_to_go(value_T, batch.seq_T, 1.0), per_token=True)

    def formula(self) -> str:
        """The sum over steps."""
        return f"Σ_(steps ending at or after t) {'r' if self.norm is None else self.norm.formula('r')}"


def _rewards(batch: Batch) -> Tensor:
    """What is paid on each token: the score on the last one, and whatever shaping put on single tokens."""
    reward_T = place_at_end(present(batch.score_S, "score_S").to(torch.float64), batch.seq_T)
    return reward_T if batch.token_rewards_T is None else reward_T + batch.token_rewards_T
