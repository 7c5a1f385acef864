"""Shaping: what turns the task's reward into the score that credit is given for.

Shapes: T packed trained tokens, S samples. Each part maps a batch to a batch; `score_S` is the score so far, in
float64, and `token_rewards_T` what is paid on single tokens. `counted_S` names the samples that enter statistics.
Left out: the order. `compose` fixes it: right, overlong, bias, scale, clip, normalisation, KL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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

    @property
    def needs(self) -> frozenset[str]:
        """Names of the streams it reads."""
        ...

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """The batch with a new score or new token rewards."""
        ...

    def formula(self) -> str:
        """What becomes of the score r, in symbols."""
        ...


@dataclass(frozen=True)
class Right:
    """1 where the task's reward r is at least c, else 0: only right samples are learned from (rejection-sampling fine-tuning,
    DeepSeekMath, arXiv 2402.03300, appendix A.1.2 and A.1.3).
    """

    threshold: float
    needs = NOTHING

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Replace the score, which is still the task's reward."""
        right_S = present(batch.score_S, "score_S") >= self.threshold
        return batch.with_(score_S=right_S.to(torch.float64))

    def formula(self) -> str:
        """The new score."""
        return f"1[r ≥ {self.threshold:g}]"


@dataclass(frozen=True)
class Overlong:
    """r + f · p(n): p falls from 0 at L - w tokens to -1 at the limit L, and stays (DAPO, arXiv 2503.14476, eq. 13).

    n counts generated tokens, EOS included. A window of 1 makes the limit itself the first length that is punished, one of 0
    the first length above it: a step, not a division by zero.
    """

    limit: int
    window: int
    factor: float = 1.0
    needs = NOTHING

    def penalty(self, length_S: Tensor) -> Tensor:
        """p(n) · f for each length, in float64."""
        over_S = (self.limit - self.window - length_S).to(torch.float64) / max(self.window, 1)
        return self.factor * over_S.clamp(-1.0, 0.0)

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Add the penalty to the score."""
        return batch.with_(score_S=present(batch.score_S, "score_S") + self.penalty(batch.length_S))

    def formula(self) -> str:
        """The new score."""
        start = self.limit - self.window
        return f"r + {self.factor:g} · clip(({start} - |o|)/{self.window}, -1, 0)"


@dataclass(frozen=True)
class Bias:
    """r + b."""

    value: float
    needs = NOTHING

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Add a constant to the score."""
        return batch.with_(score_S=present(batch.score_S, "score_S") + self.value)

    def formula(self) -> str:
        """The new score."""
        return f"r + {self.value:g}"


@dataclass(frozen=True)
class Factor:
    """r · c."""

    value: float
    needs = NOTHING

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Multiply the score by a constant."""
        return batch.with_(score_S=present(batch.score_S, "score_S") * self.value)

    def formula(self) -> str:
        """The new score."""
        return f"{self.value:g} · r"


@dataclass(frozen=True)
class Clip:
    """min(max(r, -c), c)."""

    limit: float
    needs = NOTHING

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Hold the score within ± the limit."""
        return batch.with_(score_S=present(batch.score_S, "score_S").clamp(-self.limit, self.limit))

    def formula(self) -> str:
        """The new score."""
        return f"clip(r, -{self.limit:g}, {self.limit:g})"


@dataclass(frozen=True)
class RewardNorm:
    """Statistics over the samples' scores, before credit and before any KL."""

    norm: Norm
    needs = NOTHING

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Normalise the score."""
        group_S, groups = dense_ids(batch.prompt_S)
        score_S = self.norm(present(batch.score_S, "score_S"), Units(group_S, groups, counted_S))
        return batch.with_(score_S=score_S)

    def formula(self) -> str:
        """The new score."""
        return self.norm.formula("r")


@dataclass(frozen=True)
class PartsNorm:
    """Σ_k c_k · norm(r_k): each reward function by its own statistics, then the weighted sum (GDPO, arXiv 2601.05242).

    A sum that is normalised as a whole loses the reward with the smaller spread. A sample without a value of one
    function gets 0 from it. Replaces the score, so it comes first.
    """

    norm: Norm
    weights: tuple[float, ...]
    needs = frozenset({"parts"})

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Raises ValueError where the batch has another number of parts than there are weights."""
        if not bool(counted_S.any()):  # an empty step: nothing says how many parts there are
            return batch.with_(score_S=torch.zeros_like(present(batch.score_S, "score_S")))
        parts_SR = present(batch.parts_SR, "parts_SR")
        if parts_SR.shape[1] != len(self.weights):
            raise ValueError(f"{len(self.weights)} reward weights for {parts_SR.shape[1]} reward parts")
        group_S, groups = dense_ids(batch.prompt_S)
        score_S = torch.zeros_like(present(batch.score_S, "score_S"))
        for weight, part_S in zip(self.weights, parts_SR.unbind(1), strict=True):
            finite_S = torch.isfinite(part_S)
            clean_S = torch.where(finite_S, part_S, 0.0)
            score_S = score_S + weight * self.norm(clean_S, Units(group_S, groups, counted_S & finite_S))
        return batch.with_(score_S=score_S)

    def formula(self) -> str:
        """The sum over reward functions."""
        weights = f", c = {', '.join(f'{weight:g}' for weight in self.weights)}" if self.weights else ""
        return f"Σ_k c_k ({self.norm.formula('r_k')}){weights}"


@dataclass(frozen=True)
class KlInReward:
    """r_t - β · KL_t, estimated from the log-probs before the update against the reference, not from the current ones.

    β > 0 keeps the policy near the reference (Ziegler et al. 2019, arXiv 1909.08593, equation 2). None takes the
    divergence over the whole vocabulary: without the noise of the sampled token, but what its choice cost is then only
    felt by the tokens before it.
    """

    coef: float
    estimator: Estimator | None

    @property
    def needs(self) -> frozenset[str]:
        """The old and the reference log-probs, or the divergence of their distributions."""
        return frozenset({"prox", "ref"} if self.estimator is not None else {"prox", "ref", "kl_full_score"})

    def __call__(self, batch: Batch, counted_S: Tensor) -> Batch:
        """Subtract the token's divergence from the token's reward."""
        paid_T = 0.0 if batch.token_rewards_T is None else batch.token_rewards_T
        if self.estimator is None:
            kl_T = present(batch.kl_full_T, "kl_full_T").to(torch.float64)
        else:
            kl_T = self.estimator((present(batch.prox_T, "prox_T") - present(batch.ref_T, "ref_T")).to(torch.float64))
        return batch.with_(token_rewards_T=paid_T - self.coef * kl_T)

    def formula(self) -> str:
        """The new score."""
        name = "KL" if self.estimator is None else self.estimator.__name__
        return f"r_t - {self.coef:g} · {name}(π_old ‖ π_ref)"
