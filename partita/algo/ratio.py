"""Ratios: how far the policy has moved since its tokens were scored, as the factor that a gate holds.

Shapes: T packed trained tokens.
Left out: behaviour weights. The centre here is the trainer's own log-prob; what the sampler believed enters elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from partita.algo.tokens import Tokens
from partita.ops.divergence import clamp_log_ratio


class Ratio(Protocol):
    """The differentiable factor of the advantage."""

    whole_sequence: ClassVar[bool]
    """Whether all tokens of a sample share one ratio, and therefore one advantage: the mean of its tokens'."""

    def __call__(self, tokens: Tokens) -> Tensor:
        """[T]; its gradient with respect to the log-probs is the direction in which an advantage pushes."""
        ...

    def formula(self) -> str:
        """The ratio, in symbols."""
        ...


@dataclass(frozen=True)
class TokenRatio:
    """ρ_t = π(o_t) / π_old(o_t), the log-ratio held within ±20 before the exp (PPO, arXiv 1707.06347, section 3)."""

    whole_sequence: ClassVar[bool] = False

    def __call__(self, tokens: Tokens) -> Tensor:
        """On policy exactly 1, with gradient 1."""
        return torch.exp(clamp_log_ratio(tokens.logprobs_T - tokens.prox_T))

    def formula(self) -> str:
        """One ratio per token."""
        return "ρ_it = π(o_it) / π_old(o_it)"


@dataclass(frozen=True)
class SequenceRatio:
    """s_i = exp(1/|o_i| Σ_t log π(o_it)/π_old(o_it)), differentiated through (GSPO, arXiv 2507.18071, section 4.1).

    The mean is held within ±20, not the tokens' log-ratios before it.
    """

    whole_sequence: ClassVar[bool] = True

    def __call__(self, tokens: Tokens) -> Tensor:
        """The geometric mean of the token ratios, on every token."""
        return torch.exp(clamp_log_ratio(tokens.sequence_mean(tokens.logprobs_T - tokens.prox_T)))

    def formula(self) -> str:
        """One ratio per response."""
        return "ρ_it = s_i = exp(1/|o_i| Σ_t log π(o_it)/π_old(o_it))"


@dataclass(frozen=True)
class SequenceTokenRatio:
    """s_it = sg[s_i] · π(o_it) / sg[π(o_it)]: GSPO's value, a gradient per token (GSPO, arXiv 2507.18071, section 4.3).

    Equal to `SequenceRatio` where the advantage is the same on all tokens of a response; made for one that varies.
    """

    whole_sequence: ClassVar[bool] = False

    def __call__(self, tokens: Tokens) -> Tensor:
        """The response's ratio, with gradient to the token itself only."""
        mean_T = tokens.sequence_mean((tokens.logprobs_T - tokens.prox_T).detach())
        return torch.exp(clamp_log_ratio(mean_T)) * torch.exp(tokens.logprobs_T - tokens.logprobs_T.detach())

    def formula(self) -> str:
        """The response's ratio, moved by one token."""
        return "ρ_it = sg[s_i] · π(o_it) / sg[π(o_it)], s_i = exp(1/|o_i| Σ_t log π(o_it)/π_old(o_it))"


@dataclass(frozen=True)
class ProductRatio:
    """Π_t ρ_it: the ratio of whole responses, without a mean. It leaves any clip range within a few dozen tokens."""

    whole_sequence: ClassVar[bool] = True

    def __call__(self, tokens: Tokens) -> Tensor:
        """The product of the token ratios, on every token."""
        return torch.exp(clamp_log_ratio(tokens.sequence_sum(tokens.logprobs_T - tokens.prox_T)))

    def formula(self) -> str:
        """One ratio per response."""
        return "ρ_it = Π_t π(o_it)/π_old(o_it)"


@dataclass(frozen=True)
class NoRatio:
    """log π(o_t) in place of a ratio: the score function of REINFORCE (Williams 1992)."""

    whole_sequence: ClassVar[bool] = False

    def __call__(self, tokens: Tokens) -> Tensor:
        """Not a constant, although no ratio is taken: its gradient is 1 on every token."""
        return tokens.logprobs_T

    def formula(self) -> str:
        """The log-prob itself."""
        return "ρ_it = log π(o_it): no ratio"


RATIOS: dict[str, Ratio] = {
    "token": TokenRatio(),
    "sequence": SequenceRatio(),
    "sequence_token": SequenceTokenRatio(),
    "sequence_product": ProductRatio(),
    "none": NoRatio(),
}
"""The values of `importance_sampling_level`."""
