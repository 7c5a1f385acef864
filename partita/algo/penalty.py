"""Penalties: terms of the loss that do not come from an advantage, under the same weights as the objective.

Shapes: T packed trained tokens.
Left out: a KL in the reward, which is shaping and has another gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from partita.algo.tokens import Tokens, present
from partita.ops.divergence import Estimator, clamp_log_ratio, k1


class Penalty(Protocol):
    """One added loss term."""

    @property
    def coef(self) -> float:
        """Its coefficient; a term with 0 moves nothing."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """Names of the streams it reads."""
        ...

    @property
    def of_the_step(self) -> bool:
        """Whether it is at its minimum, without any gradient, until the policy has moved."""
        ...

    def __call__(self, tokens: Tokens) -> Tensor:
        """Loss per token [T], its coefficient included."""
        ...

    def formula(self) -> str:
        """The term as it stands in the objective, sign included."""
        ...


@dataclass(frozen=True)
class KlLoss:
    """+ β · KL(π ‖ π_ref), estimated on the sampled tokens (DeepSeekMath, arXiv 2402.03300, equations 3 and 4).

    The estimator decides the gradient: k2 and k3_value_k2_grad descend KL(π ‖ ref), k3 descends KL(ref ‖ π), k1
    nothing. None takes the whole vocabulary: value and gradient of KL(π ‖ ref) without an estimate.
    `importance_corrected` multiplies by the token ratio, differentiated too, which makes an estimate on tokens of the old
    policy one of the current policy (DeepSeek-V3.2, arXiv 2512.02556, section 3.1).
    """

    coef: float
    estimator: Estimator | None
    importance_corrected: bool = False

    @property
    def of_the_step(self) -> bool:
        """The reference is another policy."""
        return False

    @property
    def needs(self) -> frozenset[str]:
        """The reference's log-probs, or both distributions."""
        return frozenset({"ref", "kl_full_ref"} if self.estimator is None else {"ref"})

    def __call__(self, tokens: Tokens) -> Tensor:
        """Too sure of a token costs; one descent step lowers its log-prob."""
        if self.estimator is None:
            kl_T = present(tokens.kl_full_ref_T, "kl_full_ref_T")
        else:
            kl_T = self.estimator(tokens.logprobs_T - present(tokens.ref_T, "ref_T"))
        if self.importance_corrected:
            kl_T = torch.exp(clamp_log_ratio(tokens.logprobs_T - tokens.prox_T)) * kl_T
        return self.coef * kl_T

    def formula(self) -> str:
        """Minus β times the estimate."""
        name = "KL" if self.estimator is None else self.estimator.__name__
        return f"- {self.coef:g} {'ρ_it · ' if self.importance_corrected else ''}{name}(π ‖ π_ref)"


@dataclass(frozen=True)
class StepKl:
    """+ β · KL(π_old ‖ π): PPO's penalty in place of a clip (arXiv 1707.06347, section 4, equation 8).

    The tokens come from π_old, so here every unbiased estimator also has the right gradient. None takes the whole
    vocabulary. Another direction and another reference than the KL to a reference policy. `measured_after`: its rule
    reads the divergence after the last optimizer step, which must then be scored.
    """

    coef: float
    estimator: Estimator | None
    measured_after: bool = False

    @property
    def of_the_step(self) -> bool:
        """Not by k1, which has the same slope everywhere: only its mean over the policy's tokens is 0."""
        return self.estimator is not k1

    @property
    def needs(self) -> frozenset[str]:
        """Nothing beyond the ratio's own streams; both distributions; and what a rule is to be told."""
        full = {"kl_full_old"} if self.estimator is None else set[str]()
        return frozenset(full | ({"prox", "kl_after"} if self.measured_after else set[str]()))

    def __call__(self, tokens: Tokens) -> Tensor:
        """A step away from the policy that sampled costs."""
        if self.estimator is None:
            return self.coef * present(tokens.kl_full_old_T, "kl_full_old_T")
        return self.coef * self.estimator(tokens.prox_T - tokens.logprobs_T)

    def formula(self) -> str:
        """Minus β times the estimate."""
        name = "KL" if self.estimator is None else self.estimator.__name__
        return f"- {self.coef:g} {name}(π_old ‖ π)"


@dataclass(frozen=True)
class EntropyBonus:
    """- c · H(π), H of the full softmax at the sampling temperature (PPO, arXiv 1707.06347, equation 9).

    `measured_before`: its rule reads the entropy from before the first optimizer step, which must then be scored.
    """

    coef: float
    measured_before: bool = False

    @property
    def of_the_step(self) -> bool:
        """An entropy always has a slope."""
        return False

    @property
    def needs(self) -> frozenset[str]:
        """The current entropy, and the old one for a rule."""
        return frozenset({"entropy", "old_entropy"} if self.measured_before else {"entropy"})

    def __call__(self, tokens: Tokens) -> Tensor:
        """Spread distributions are cheaper. The mean of -log π over samples would have no gradient in expectation."""
        return -self.coef * present(tokens.entropy_T, "entropy_T")

    def formula(self) -> str:
        """Plus c times the entropy."""
        return f"+ {self.coef:g} H(π)"
