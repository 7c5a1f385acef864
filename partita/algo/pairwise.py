"""Losses of preferences: DPO's sigmoid with label smoothing, robust DPO, hinge, IPO, SimPO and ORPO of pairs; KTO of single
judged responses.

Shapes: T packed tokens of whole responses, S responses, N pairs. Log-probs in nats; sums over a response in float64,
where a float32 sum over thousands of tokens can turn the sign of a margin.
Left out: data and models. The reference's log-probs must come from the same tokens, cut in the same place. Losses of a
reward model's scores (`bradley`).
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

    A response without tokens has the sum 0. The reference's are needed by losses that compare with it, lengths by losses
    that take means per token; None otherwise.
    """

    policy_chosen_N: Tensor
    policy_rejected_N: Tensor
    ref_chosen_N: Tensor | None = None
    ref_rejected_N: Tensor | None = None
    chosen_length_N: Tensor | None = None
    rejected_length_N: Tensor | None = None

    @classmethod
    def of_tokens(cls, policy_T: Tensor, ref_T: Tensor | None, seq_T: Tensor, pairs: int) -> Pairs:
        """Sum packed response tokens: pair n is response 2n, chosen, and 2n + 1, rejected. Padding is not among them."""
        policy_S, length_S = segment_sum(policy_T, seq_T, 2 * pairs), torch.bincount(seq_T, minlength=2 * pairs)
        return cls.of_sums(policy_S, None if ref_T is None else segment_sum(ref_T, seq_T, 2 * pairs), length_S)

    @classmethod
    def of_sums(cls, policy_S: Tensor, ref_S: Tensor | None, length_S: Tensor) -> Pairs:
        """From log-probs of whole responses, chosen and rejected in turns."""
        ref_chosen_N, ref_rejected_N = (None, None) if ref_S is None else (ref_S[::2], ref_S[1::2])
        return cls(policy_S[::2], policy_S[1::2], ref_chosen_N, ref_rejected_N, length_S[::2], length_S[1::2])

    def compared(self, loss: PairLoss) -> tuple[Tensor, Tensor]:
        """What the loss compares of the chosen and of the rejected response [N], float64: log π/π_ref, or log π alone without
        a reference; summed over the response's tokens, or its mean over them.

        Raises ValueError where the reference or the lengths that this takes are not there.
        """
        chosen_N, rejected_N = self.policy_chosen_N.to(torch.float64), self.policy_rejected_N.to(torch.float64)
        if loss.reference:
            if self.ref_chosen_N is None or self.ref_rejected_N is None:
                raise ValueError("this loss compares with a reference: Pairs needs ref_chosen_N and ref_rejected_N")
            chosen_N, rejected_N = chosen_N - self.ref_chosen_N, rejected_N - self.ref_rejected_N
        if not loss.per_token:
            return chosen_N, rejected_N
        if self.chosen_length_N is None or self.rejected_length_N is None:
            raise ValueError("this loss takes means per token: Pairs needs chosen_length_N and rejected_length_N")
        return chosen_N / self.chosen_length_N.clamp(min=1), rejected_N / self.rejected_length_N.clamp(min=1)


class PairLoss(Protocol):
    """What a pair costs."""

    per_token: ClassVar[bool]
    """Whether it compares means over a response's tokens instead of sums."""
    reference: ClassVar[bool]
    """Whether it compares log π/π_ref instead of log π."""

    @property
    def beta(self) -> float:
        """What an implicit reward is multiplied by."""
        ...

    def __call__(self, chosen_N: Tensor, rejected_N: Tensor) -> Tensor:
        """Loss [N] of what `Pairs.compared` gives."""
        ...

    def formula(self) -> str:
        """The loss in c and r, what is compared of the two responses, and h = c - r."""
        ...


@dataclass(frozen=True)
class Sigmoid:
    """-(1-ε) log σ(βh) - ε log σ(-βh) (DPO, Rafailov et al. 2023, arXiv 2305.18290, equation 7).

    ε is the chance that a pair is labelled the wrong way round: conservative DPO (Mitchell 2023,
    https://ericmitchell.ai/cdpo.pdf, equation 3). Never the log of a sigmoid: at a margin of -2000 that is -inf.
    Raises ValueError for an ε that is no chance below one half.
    """

    beta: float
    label_smoothing: float = 0.0
    per_token: ClassVar[bool] = False
    reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _refuse_coin_flips(self.label_smoothing)

    def __call__(self, chosen_N: Tensor, rejected_N: Tensor) -> Tensor:
        """The gradient saturates at β for a pair that is ranked wrongly."""
        margin_N = self.beta * (chosen_N - rejected_N)
        return -(1 - self.label_smoothing) * logsigmoid(margin_N) - self.label_smoothing * logsigmoid(-margin_N)

    def formula(self) -> str:
        """The two log-sigmoids, or one."""
        if self.label_smoothing == 0:
            return f"-log σ({self.beta:g} h)"
        wrong = self.label_smoothing
        return f"-{1 - wrong:g} log σ({self.beta:g} h) - {wrong:g} log σ(-{self.beta:g} h)"


@dataclass(frozen=True)
class Hinge:
    """max(0, 1 - βh): the hinge of SLiC-HF (Zhao et al. 2023, arXiv 2305.10425) on DPO's log-ratios, as RSO has it (Liu et
    al. 2023, arXiv 2309.06657).
    """

    beta: float
    per_token: ClassVar[bool] = False
    reference: ClassVar[bool] = True

    def __call__(self, chosen_N: Tensor, rejected_N: Tensor) -> Tensor:
        """A margin of 1 is enough: beyond it there is no gradient."""
        return torch.relu(1 - self.beta * (chosen_N - rejected_N))

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
    reference: ClassVar[bool] = True

    def __call__(self, chosen_N: Tensor, rejected_N: Tensor) -> Tensor:
        """A pair that is too well separated costs as well."""
        return (chosen_N - rejected_N - 1 / (2 * self.beta)).square()

    def formula(self) -> str:
        """The square."""
        return f"(h - {1 / (2 * self.beta):g})², h per token"


@dataclass(frozen=True)
class Robust:
    """(-(1-ε) log σ(βh) + ε log σ(-βh)) / (1 - 2ε): DPO's loss without the bias of labels that are wrong with chance ε
    (Chowdhury et al. 2024, arXiv 2403.00409, section 3).

    Its mean over such labels is DPO's loss of the right ones. Raises ValueError for an ε that is no chance below one half.
    """

    beta: float
    label_smoothing: float
    per_token: ClassVar[bool] = False
    reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _refuse_coin_flips(self.label_smoothing)

    def __call__(self, chosen_N: Tensor, rejected_N: Tensor) -> Tensor:
        """Unbounded below: a pair of large margin is worth more than nothing."""
        margin_N, wrong = self.beta * (chosen_N - rejected_N), self.label_smoothing
        return (-(1 - wrong) * logsigmoid(margin_N) + wrong * logsigmoid(-margin_N)) / (1 - 2 * wrong)

    def formula(self) -> str:
        """The two log-sigmoids."""
        wrong = self.label_smoothing
        signs = f"-{1 - wrong:g} log σ({self.beta:g} h) + {wrong:g} log σ(-{self.beta:g} h)"
        return f"({signs}) / {1 - 2 * wrong:g}"


def _refuse_coin_flips(wrong: float) -> None:
    if not 0 <= wrong < 0.5:
        raise ValueError(
            f"label_smoothing={wrong}: from 0 to below 0.5; labels that are wrong half the time say nothing"
        )


@dataclass(frozen=True)
class Simpo:
    """-log σ(βh - γ), h the difference of *mean* log-probs, without a reference (Meng et al. 2024, arXiv 2405.14734,
    equation 6).

    γ is the margin that the chosen response shall have, in the unit of βh. The authors' code has γ/β as its setting.
    """

    beta: float
    gamma: float
    per_token: ClassVar[bool] = True
    reference: ClassVar[bool] = False

    def __call__(self, chosen_N: Tensor, rejected_N: Tensor) -> Tensor:
        """The margin in the unit of the implicit reward, β times the mean log-prob."""
        return -logsigmoid(self.beta * (chosen_N - rejected_N) - self.gamma)

    def formula(self) -> str:
        """The log-sigmoid."""
        return f"-log σ({self.beta:g} h - {self.gamma:g}), h of mean log-probs"


@dataclass(frozen=True)
class Orpo:
    """-c - β log σ(log odds(c) - log odds(r)), c and r mean log-probs and odds(x) = e^x / (1 - e^x): SFT on the chosen response
    and a penalty, without a reference (Hong et al. 2024, arXiv 2403.07691, equations 4, 6 and 7; β is its λ).
    """

    beta: float
    per_token: ClassVar[bool] = True
    reference: ClassVar[bool] = False

    def __call__(self, chosen_N: Tensor, rejected_N: Tensor) -> Tensor:
        """A mean log-prob of 0 has infinite odds; it is taken for one rounding below."""
        odds_N = _log_odds(chosen_N) - _log_odds(rejected_N)
        return -chosen_N - self.beta * logsigmoid(odds_N)

    def formula(self) -> str:
        """Both terms."""
        return f"-c - {self.beta:g} log σ(log odds(c) - log odds(r)), c and r mean log-probs"


def _log_odds(mean_N: Tensor) -> Tensor:
    below_N = mean_N.clamp(max=-torch.finfo(mean_N.dtype).eps)
    return below_N - torch.log(-torch.expm1(below_N))


@dataclass(frozen=True)
class Kto:
    """w_d (1 - σ(β(h - z))) of a desirable response, w_u (1 - σ(β(z - h))) of an undesirable one, h = log π/π_ref of the whole
    response and z = max(0, mean h of prompts with others' responses), which has no gradient (Ethayarajh et al. 2024, arXiv
    2402.01306, section 4).

    z stands for KL(π ‖ π_ref), so it is held at 0 from below after the mean, not before. Where the classes differ in size,
    w_d n_d / (w_u n_u) belongs between 1 and 3/2.
    """

    beta: float
    desirable: float = 1.0
    undesirable: float = 1.0

    def rest(self, mismatched_S: Tensor) -> Tensor:
        """z, 0-d float64, of the h of mismatched pairs of prompt and response in the whole optimizer step; 0 for none."""
        total = mismatched_S.detach().to(torch.float64).sum()
        return (total / max(1, mismatched_S.shape[0])).clamp(min=0)

    def __call__(self, ratio_S: Tensor, desirable_S: Tensor, rest: Tensor) -> Tensor:
        """Loss [S]. ratio_S: h with gradient. rest: z, 0-d, of the whole optimizer step."""
        sign_S = torch.where(desirable_S, 1.0, -1.0).to(ratio_S)
        weight_S = torch.where(desirable_S, self.desirable, self.undesirable).to(ratio_S)
        return weight_S * (1 - torch.sigmoid(self.beta * sign_S * (ratio_S - rest)))

    def formula(self) -> str:
        """Both branches."""
        return (
            f"{self.desirable:g} (1 - σ({self.beta:g} (h - z))) if desirable, else "
            f"{self.undesirable:g} (1 - σ({self.beta:g} (z - h)))"
        )


@dataclass(frozen=True)
class Preference:
    """One micro-batch's share of the step and, detached, what it did with each pair [N].

    margin_N is the chosen response's implicit reward β log π/π_ref minus the rejected one's; without a reference β log π. Both are
    sums over a response's tokens, or means where the loss is `per_token`.
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
    chosen_N, rejected_N = pairs.compared(loss)
    loss_N = loss(chosen_N, rejected_N)
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
            "preference/logprob_chosen": mean_over(pairs.policy_chosen_N.detach(), every_N),
            "preference/logprob_rejected": mean_over(pairs.policy_rejected_N.detach(), every_N),
        },
    )


@dataclass(frozen=True)
class Judged:
    """One micro-batch's share of the step and, detached, what it did with each response [S]; reward_S is β log π/π_ref."""

    value: Tensor
    loss_S: Tensor
    reward_S: Tensor
    stats: Stats


def judged_loss(loss: Kto, ratio_S: Tensor, desirable_S: Tensor, rest: Tensor, responses_in_step: int) -> Judged:
    """Σ loss / responses of the whole optimizer step, so that micro-batches add up. ratio_S, desirable_S and rest as in
    `Kto`.

    A response is ranked rightly where its log-ratio lies on its own side of z.
    """
    ratio_S = ratio_S.to(torch.float64)
    loss_S = loss(ratio_S, desirable_S, rest)
    reward_S, every_S = (loss.beta * ratio_S).detach(), torch.ones_like(desirable_S)
    right_S = torch.where(desirable_S, ratio_S > rest, ratio_S < rest)
    return Judged(
        value=loss_S.sum() / responses_in_step,
        loss_S=loss_S.detach(),
        reward_S=reward_S,
        stats={
            "preference/accuracy": mean_over(right_S, every_S),
            "preference/reward_desirable": mean_over(reward_S, desirable_S),
            "preference/reward_undesirable": mean_over(reward_S, ~desirable_S),
            "preference/rest": mean_over((loss.beta * rest).expand_as(reward_S), every_S),
        },
    )
