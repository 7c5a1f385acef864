"""Gates: the per-token objective of a ratio and an advantage, to be maximised.

Shapes: T packed trained tokens.
Left out: weights and signs. The loss is minus the objective, times `weight_T`, summed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gated:
    """The objective [T], and by name the tokens [T] whose gradient the gate has cut."""

    objective_T: Tensor
    clipped: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


class Gate(Protocol):
    """Decides how much of ρA is believed."""

    def __call__(self, ratio_T: Tensor, advantages_T: Tensor) -> Gated:
        """The objective per token."""
        ...


@dataclass(frozen=True)
class MinClip:
    """min(ρA, clip(ρ, 1-low, 1+high)·A); with `dual` and A < 0 never below dual·A.

    PPO, arXiv 1707.06347, equation 7; low ≠ high: DAPO, arXiv 2503.14476, section 3.1; dual: Ye et al. 2019,
    arXiv 1912.09729.
    The bounds belong to the band: a ratio exactly on one still has its gradient.
    """

    low: float
    high: float
    dual: float | None = None

    def __call__(self, ratio_T: Tensor, advantages_T: Tensor) -> Gated:
        """A token is clipped where its gradient is cut: too far up for A > 0, too far down for A < 0."""
        free_T = ratio_T * advantages_T
        held_T = ratio_T.clamp(1 - self.low, 1 + self.high) * advantages_T
        objective_T = torch.minimum(free_T, held_T)
        clipped = {
            "low": (advantages_T < 0) & (ratio_T < 1 - self.low),
            "high": (advantages_T > 0) & (ratio_T > 1 + self.high),
        }
        if self.dual is not None:
            clipped["dual"] = (advantages_T < 0) & (ratio_T > self.dual)
            objective_T = torch.where(clipped["dual"], self.dual * advantages_T, objective_T)
        return Gated(objective_T, clipped)


@dataclass(frozen=True)
class Open:
    """ρA: nothing is held back."""

    def __call__(self, ratio_T: Tensor, advantages_T: Tensor) -> Gated:
        """The plain policy-gradient objective."""
        return Gated(ratio_T * advantages_T)
