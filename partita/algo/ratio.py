"""Ratios: how far the policy has moved since its tokens were scored, as the factor that a gate holds.

Shapes: T packed trained tokens.
Left out: behaviour weights. The centre here is the trainer's own log-prob; what the sampler believed enters elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from partita.algo.tokens import Tokens
from partita.ops.divergence import clamp_log_ratio


class Ratio(Protocol):
    """The differentiable factor of the advantage."""

    def __call__(self, tokens: Tokens) -> Tensor:
        """[T]; its gradient with respect to the log-probs is the direction in which an advantage pushes."""
        ...


@dataclass(frozen=True)
class TokenRatio:
    """ρ_t = π(o_t) / π_old(o_t), the log-ratio held within ±20 before the exp (PPO, arXiv 1707.06347, section 3)."""

    def __call__(self, tokens: Tokens) -> Tensor:
        """On policy exactly 1, with gradient 1."""
        return torch.exp(clamp_log_ratio(tokens.logprobs_T - tokens.prox_T))


@dataclass(frozen=True)
class NoRatio:
    """log π(o_t) in place of a ratio: the score function of REINFORCE (Williams 1992)."""

    def __call__(self, tokens: Tokens) -> Tensor:
        """Not a constant, although no ratio is taken: its gradient is 1 on every token."""
        return tokens.logprobs_T
