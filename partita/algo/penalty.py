"""Penalties: terms of the loss that do not come from an advantage, under the same weights as the objective.

Shapes: T packed trained tokens.
Left out: a KL in the reward, which is shaping and has another gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from partita.algo.tokens import Tokens, present
from partita.ops.divergence import Estimator


class Penalty(Protocol):
    """One added loss term."""

    needs: ClassVar[frozenset[str]]
    """Names of the streams it reads."""

    def __call__(self, tokens: Tokens) -> Tensor:
        """Loss per token [T], its coefficient included."""
        ...


@dataclass(frozen=True)
class KlLoss:
    """+ β · KL(π ‖ π_ref), estimated on the sampled tokens (DeepSeekMath, arXiv 2402.03300, equations 3 and 4).

    The estimator decides the gradient: k2 and k3_value_k2_grad descend KL(π ‖ ref), k3 descends KL(ref ‖ π), k1
    nothing.
    """

    coef: float
    estimator: Estimator
    needs: ClassVar[frozenset[str]] = frozenset({"ref"})

    def __call__(self, tokens: Tokens) -> Tensor:
        """Too sure of a token costs; one descent step lowers its log-prob."""
        return self.coef * self.estimator(tokens.logprobs_T - present(tokens.ref_T, "ref_T"))


@dataclass(frozen=True)
class EntropyBonus:
    """- c · H(π), H of the full softmax at the sampling temperature (PPO, arXiv 1707.06347, equation 9)."""

    coef: float
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})

    def __call__(self, tokens: Tokens) -> Tensor:
        """Spread distributions are cheaper. The mean of -log π over samples would have no gradient in expectation."""
        return -self.coef * present(tokens.entropy_T, "entropy_T")
