"""The critic's loss: squared error to the returns that credit fixed, under the same weights as the policy's.

Shapes: T packed trained tokens.
Left out: the critic. A model with a value head gives `values_T`; what it costs is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from partita.algo.stats import Stats, mean_over


class ValueLoss(Protocol):
    """Loss of predicted values against returns."""

    def __call__(self, values_T: Tensor, old_values_T: Tensor, returns_T: Tensor) -> Tensor:
        """Loss per token [T]."""
        ...

    def formula(self) -> str:
        """The loss per token."""
        ...


@dataclass(frozen=True)
class ClippedSquare:
    """½ · max((V - R)², (clip(V, V_old ± clip) - R)²); without the max for clip None.

    The clip is around the old prediction and in the unit of the returns. Taking the max it never lowers the loss; where
    the clipped branch wins and V is outside the band the gradient is 0. Schulman et al., openai/baselines ppo2; the paper
    (arXiv 1707.06347, equation 9) has the plain square, and some write it without ½ (`half` False).
    """

    clip: float | None
    half: bool = True

    def __call__(self, values_T: Tensor, old_values_T: Tensor, returns_T: Tensor) -> Tensor:
        """Loss per token."""
        loss_T = (values_T - returns_T).square()
        if self.clip is not None:
            near_T = old_values_T + (values_T - old_values_T).clamp(-self.clip, self.clip)
            loss_T = torch.maximum(loss_T, (near_T - returns_T).square())
        return loss_T / 2 if self.half else loss_T

    def formula(self) -> str:
        """The squares that are compared."""
        half = "½ " if self.half else ""
        if self.clip is None:
            return f"{half}(V - R)²"
        return f"{half}max((V - R)², (clip(V, V_old ± {self.clip:g}) - R)²)"


def value_stats(values_T: Tensor, returns_T: Tensor, valid_T: Tensor) -> Stats:
    """How well old values foretold the returns: 1 - Var(R - V) / Var(R) over valid tokens (1 is perfect, 0 no better than a
    constant, below 0 worse), absent where all returns are equal; and the means of both.
    """
    value_N, return_N = (stream_T.to(torch.float64)[valid_T] for stream_T in (values_T, returns_T))
    spread = return_N.var(correction=0) if len(return_N) else torch.zeros(())
    known = spread > 0
    explained = 1 - (return_N - value_N).var(correction=0) / spread if bool(known) else torch.zeros(())
    return {
        "critic/explained_variance": mean_over(explained[None], known[None]),
        "critic/value": mean_over(values_T.to(torch.float64), valid_T),
        "critic/return": mean_over(returns_T.to(torch.float64), valid_T),
    }
