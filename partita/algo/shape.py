"""Shaping: what turns the task's reward into the score that credit is given for.

Shapes: T packed trained tokens, S samples. Each part maps a batch to a batch; `score_S` is the score so far, in
float64, and `token_rewards_T` what is paid on single tokens. `counted_S` names the samples that enter statistics.
Left out: the order. `compose` fixes it: overlong, bias, scale, clip, normalisation, KL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from partita.algo.norm import Norm, Units
from partita.algo.tokens import present
from partita.ops.divergence import Estimator
from partita.ops.segments import dense_ids
from partita.records import Batch

NOTHING: frozenset[str] = frozenset()


class Shape(Protocol):
    """One step of reward shaping."""

    needs: ClassVar[frozenset[str]]
    """Names of the streams it reads."""

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """The batch with a new score or new token rewards."""
        ...


@dataclass(frozen=True)
class Overlong:
    """r + f · p(n): p falls from 0 at L - w tokens to -1 at the limit L, and stays (DAPO, arXiv 2503.14476, eq. 13).

    n counts generated tokens, EOS included. The window w is at least 1, where the limit itself is the first length that is
    punished.
    """

    limit: int
    window: int
    factor: float = 1.0
    needs: ClassVar[frozenset[str]] = NOTHING

    def penalty(self, length_S: Tensor) -> Tensor:
        """p(n) · f for each length, in float64."""
        over_S = (self.limit - self.window - length_S).to(torch.float64) / self.window
        return self.factor * over_S.clamp(-1.0, 0.0)

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Add the penalty to the score."""
        return batch.with_(score_S=present(batch.score_S, "score_S") + self.penalty(batch.length_S))


@dataclass(frozen=True)
class Bias:
    """r + b."""

    value: float
    needs: ClassVar[frozenset[str]] = NOTHING

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Add a constant to the score."""
        return batch.with_(score_S=present(batch.score_S, "score_S") + self.value)


@dataclass(frozen=True)
class Factor:
    """r · c."""

    value: float
    needs: ClassVar[frozenset[str]] = NOTHING

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Multiply the score by a constant."""
        return batch.with_(score_S=present(batch.score_S, "score_S") * self.value)


@dataclass(frozen=True)
class Clip:
    """min(max(r, -c), c)."""

    limit: float
    needs: ClassVar[frozenset[str]] = NOTHING

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Hold the score within ± the limit."""
        return batch.with_(score_S=present(batch.score_S, "score_S").clamp(-self.limit, self.limit))


@dataclass(frozen=True)
class RewardNorm:
    """Statistics over the samples' scores, before credit and before any KL."""

    norm: Norm
    needs: ClassVar[frozenset[str]] = NOTHING

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Normalise the score."""
        group_S, groups = dense_ids(batch.prompt_S)
        score_S = self.norm(present(batch.score_S, "score_S"), Units(group_S, groups, counted_S))
        return batch.with_(score_S=score_S)


@dataclass(frozen=True)
class KlInReward:
    """r_t - β · KL_t, estimated from the log-probs before the update against the reference, not from the current ones.

    β > 0 keeps the policy near the reference (Ziegler et al. 2019, arXiv 1909.08593, equation 2).
    """

    coef: float
    estimator: Estimator
    needs: ClassVar[frozenset[str]] = frozenset({"prox", "ref"})

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Subtract the token's divergence from the token's reward."""
        log_ratio_T = (present(batch.prox_T, "prox_T") - present(batch.ref_T, "ref_T")).to(torch.float64)
        paid_T = 0.0 if batch.token_rewards_T is None else batch.token_rewards_T
        return batch.with_(token_rewards_T=paid_T - self.coef * self.estimator(log_ratio_T))
