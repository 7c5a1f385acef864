"""Losses of preference pairs: DPO's sigmoid with label smoothing, hinge and IPO.

Shapes: T packed tokens of whole responses, S responses, N pairs. Log-probs in nats; sums over a response in float64,
where a float32 sum over thousands of tokens can turn the sign of a margin.
Left out: data and models. The reference's log-probs must come from the same tokens, cut in the same place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from partita.algo.stats import Stats, mean_over
from partita.ops.segments import segment_sum


@dataclass(frozen=True)
class Pairs:
    """Log-probs of whole responses [N], summed over their tokens, and lengths in tokens; the policy's with gradient.

    A response without tokens has the sum 0. Lengths are needed by losses that take means per token, None otherwise.
    """

    policy_chosen_N: Tensor
    policy_rejected_N: Tensor
    ref_chosen_N: Tensor
    ref_rejected_N: Tensor
    chosen_length_N: Tensor | None = None
    rejected_length_N: Tensor | None = None

    @classmethod
    def of_tokens(cls, policy_T: Tensor, ref_T: Tensor, seq_T: Tensor, pairs: int) -> Pairs:
        """Sum packed response tokens: pair n is response 2n, chosen, and 2n + 1, rejected. Padding is not among them."""
        policy_S, ref_S = segment_sum(policy_T, seq_T, 2 * pairs), segment_sum(ref_T, seq_T, 2 * pairs)
        length_S = torch.bincount(seq_T, minlength=2 * pairs)
        return cls(policy_S[::2], policy_S[1::2], ref_S[::2], ref_S[1::2], length_S[::2], length_S[1::2])

    def log_ratios(self, per_token: bool) -> tuple[Tensor, Tensor]:
        """log π/π_ref of the chosen and of the rejected response [N]; or its mean over the response's tokens.

        Raises ValueError where that mean is asked for and the lengths are not there.
        """
        chosen_N = self.policy_chosen_N.to(torch.float64) - self.ref_chosen_N.to(torch.float64)
        rejected_N = self.policy_rejected_N.to(torch.float64) - self.ref_rejected_N.to(torch.float64)
        if not per_token:
            return chosen_N, rejected_N
        if self.chosen_length_N is None or self.rejected_length_N is None:
            raise ValueError("this loss takes means per token: Pairs needs chosen_length_N and rejected_length_N")
        return chosen_N / self.chosen_length_N.clamp(min=1), rejected_N / self.rejected_length_N.clamp(min=1)


class PairLoss(Protocol):
    """What a margin costs."""

    per_token: ClassVar[bool]
    """Whether it compares means over a response's tokens instead of sums."""

    @property
    def beta(self) -> float:
        """How strongly the policy is held to the reference."""
        ...

    def __call__(self, difference_N: Tensor) -> Tensor:
        """Loss [N] of log π/π_ref(chosen) - log π/π_ref(rejected)."""
        ...

    def formula(self) -> str:
        """The loss in the difference h of the two log-ratios."""
        ...


@dataclass(frozen=True)
class Sigmoid:
    """-(1-ε) log σ(βh) - ε log σ(-βh) (DPO, Rafailov et al. 2023, arXiv 2305.18290, equation 7).

    ε is the chance that a pair is labelled the wrong way round: conservative DPO (Mitchell 2023,
    https://ericmitchell.ai/cdpo.pdf, equation 3). Never the log of a sigmoid: at a margin of -2000 that is -inf.
    """

    beta: float
    label_smoothing: float = 0.0
    per_token: ClassVar[bool] = False

    def __call__(self, difference_N: Tensor) -> Tensor:
        """The gradient saturates at β for a pair that is ranked wrongly."""
        margin_N = self.beta * difference_N
        return -(1 - self.label_smoothing) * logsigmoid(margin_N) - self.label_smoothing * logsigmoid(-margin_N)

    def formula(self) -> str:
        """The two log-sigmoids, or one."""
        if self.label_smoothing == 0:
            return f"-log σ({self.beta:g} h)"
        wrong = self.label_smoothing
        return f"-{1 - wrong:g} log σ({self.beta:g} h) - {wrong:g} log σ(-{self.beta:g} h)"


@dataclass(frozen=True)
class Hinge:
    """max(0, 1 - βh) (SLiC-HF, Zhao et al. 2023, arXiv 2305.10425, on DPO's log-ratios)."""

    beta: float
    per_token: ClassVar[bool] = False

    def __call__(self, difference_N: Tensor) -> Tensor:
        """A margin of 1 is enough: beyond it there is no gradient."""
        return torch.relu(1 - self.beta * difference_N)

    def formula(self) -> str:
        """The hinge."""
        return f"max(0, 1 - {self.beta:g} h)"


@dataclass(frozen=True)
class Ipo:
    """(h - 1/(2β))², h a difference of *means per token* (Azar et al. 2023, arXiv 2310.12036, equation 17).

    The paper's sequences have no length; the mean is the form its authors recommend for text, where a fixed target of
    1/(2β) for a sum would mean less the longer the responses are.
    """

    beta: float
    per_token: ClassVar[bool] = True

    def __call__(self, difference_N: Tensor) -> Tensor:
        """A pair that is too well separated costs as well."""
        return (difference_N - 1 / (2 * self.beta)).square()

    def formula(self) -> str:
        """The square."""
        return f"(h - {1 / (2 * self.beta):g})², h per token"


@dataclass(frozen=True)
class Preference:
    """One micro-batch's share of the step and, detached, what it did with each pair [N].

    margin_N is the chosen response's implicit reward β log π/π_ref minus the rejected one's.
    """

    value: Tensor
    loss_N: Tensor
    margin_N: Tensor
    chosen_reward_N: Tensor
    rejected_reward_N: Tensor
    stats: Stats


def pair_loss(loss: PairLoss, pairs: Pairs, pairs_in_step: int) -> Preference:
    """Σ loss / pairs of the whole optimizer step, so that micro-batches add up.

    On every token of a response the gradient is that of the response's log-prob (over its length for means). Raises
    ValueError where the loss needs lengths that are not there.
    """
    chosen_N, rejected_N = pairs.log_ratios(loss.per_token)
    loss_N = loss(chosen_N - rejected_N)
    better_N, worse_N = (loss.beta * chosen_N).detach(), (loss.beta * rejected_N).detach()
    every_N = torch.ones_like(better_N, dtype=torch.bool)
    return Preference(
        value=loss_N.sum() / pairs_in_step,
        loss_N=loss_N.detach(),
        margin_N=better_N - worse_N,
        chosen_reward_N=better_N,
        rejected_reward_N=worse_N,
        stats={
            "preference/accuracy": mean_over(better_N > worse_N, every_N),
            "preference/margin": mean_over(better_N - worse_N, every_N),
            "preference/reward_chosen": mean_over(better_N, every_N),
            "preference/reward_rejected": mean_over(worse_N, every_N),
        },
    )
