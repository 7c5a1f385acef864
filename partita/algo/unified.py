"""One view of all methods: ∇J = E[1/|o| Σ_t GC · ∇ log π(o_t)], where methods differ in what they learn from, in what says that
it was good, and in the gradient coefficient GC (DeepSeekMath, arXiv 2402.03300, section 5.2.1, equation 5, appendix A.1).

Shapes: T packed trained tokens, S samples, N pairs. Coefficients are float64, in units of a token's weight.
Left out: the coefficients of a composition at any ratio, `Algorithm.gradient_coefficients`; these formulas check it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.credit import Outcome
from partita.algo.gate import GeometricMean
from partita.algo.objective import Row
from partita.algo.pairwise import Pairs, Sigmoid
from partita.algo.penalty import EntropyBonus, KlLoss, Penalty, StepKl
from partita.algo.ratio import ProductRatio
from partita.ops.divergence import k1


@dataclass(frozen=True)
class Method:
    """A row of the unified view: what is learned from, what judges it, and the coefficient on policy."""

    name: str
    data: str
    reward: str
    coefficient: str


METHODS = (
    Method("SFT", "demonstrations", "none: a demonstration counts as right", "1"),
    Method("RFT", "samples of the SFT model", "a rule", "1 if right, else 0"),
    Method("Online RFT", "samples of the policy", "a rule", "1 if right, else 0"),
    Method("DPO", "pairs of samples of the SFT model", "a preference, or a rule", "+β σ(-βh) chosen, -β σ(-βh) rejected"),
    Method("PPO", "samples of the policy", "a reward model", "A_t by GAE"),
    Method("GRPO", "groups of samples of the policy", "a reward model", "A_i + β (π_ref/π - 1)"),
)  # fmt: skip
"""The methods of DeepSeekMath's table, DPO with the coefficient that its loss has."""


def sft(seq_T: Tensor) -> Tensor:
    """[T]: 1. Every token of a demonstration is right."""
    return torch.ones_like(seq_T, dtype=torch.float64)


def rft(right_S: Tensor, seq_T: Tensor) -> Tensor:
    """[T]: 1 on the tokens of right samples, else 0; of rejection sampling, from whichever model the samples come."""
    return right_S[seq_T].to(torch.float64)


def dpo(loss: Sigmoid, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """[N] twice: the coefficient of each token of the chosen and of the rejected response, (1-ε) β σ(-βh) - ε β σ(βh) with
    sign.

    A pair's weight is 1/N and no length divides it. Raises ValueError where the reference is not there.
    """
    chosen_N, rejected_N = pairs.compared(loss)
    margin_N, wrong = loss.beta * (chosen_N - rejected_N).detach(), loss.label_smoothing
    pull_N = loss.beta * ((1 - wrong) * torch.sigmoid(-margin_N) - wrong * torch.sigmoid(margin_N))
    return pull_N, -pull_N


def ppo(advantages_T: Tensor, ratio_T: Tensor, low: float, high: float) -> Tensor:
    """[T]: ρA, 0 where the ratio has left the clip range in the direction of the advantage. On policy A."""
    gone_T = torch.where(advantages_T > 0, ratio_T > 1 + high, ratio_T < 1 - low)
    return torch.where(gone_T, 0.0, (ratio_T * advantages_T).to(torch.float64))


def grpo(advantages_T: Tensor, logprobs_T: Tensor, ref_T: Tensor, beta: float) -> Tensor:
    """[T]: A + β (π_ref/π - 1), on policy, k3 in the loss."""
    return advantages_T.to(torch.float64) + beta * torch.expm1((ref_T - logprobs_T).to(torch.float64))


def coefficient_rows(algorithm: Algorithm) -> list[Row]:
    """The factor of ∇ log π of a composition while the policy has not moved, and what has another gradient beside it."""
    advantage = "A_i" if isinstance(algorithm.assign, Outcome) else "A_it"
    shared = algorithm.ratio.whole_sequence or isinstance(algorithm.gate, GeometricMean)
    weights = [f"{'mean_t w_it' if shared else 'w_it'} ·"] if algorithm.correct else []  # the product of several
    length = ["|o_i|"] if isinstance(algorithm.ratio, ProductRatio) else []
    terms = filter(None, map(_pull, algorithm.penalties))
    rows = [("on policy", " ".join([*weights, *length, advantage, *terms]))]
    beside = [penalty.formula().split(" ", 2) for penalty in algorithm.penalties if _through_logits(penalty)]
    return rows + [("beside it", f"{sign} {coef} ∇ {term}") for sign, coef, term in beside]


def _through_logits(penalty: Penalty) -> bool:
    """Whether its gradient goes through the whole vocabulary instead of the token's log-prob."""
    return isinstance(penalty, EntropyBonus) or (isinstance(penalty, KlLoss) and penalty.estimator is None)


def _pull(penalty: Penalty) -> str:
    """What a penalty adds to the coefficient on policy; nothing for one that is at its minimum there."""
    if isinstance(penalty, StepKl) and penalty.estimator is k1:
        return f"+ {penalty.coef:g}"
    if not isinstance(penalty, KlLoss) or penalty.estimator is None:
        return ""
    ratio = "log π/π_ref"
    slopes = {
        "k1": "- {0}", "k2": f"- {{0}} {ratio}", "k3": "+ {0} (π_ref/π - 1)", "absolute": f"- {{0}} sign({ratio})",
        "k3_value_k2_grad": f"- {{0}} {ratio}",
    }  # fmt: skip
    name, coef = penalty.estimator.__name__, f"{penalty.coef:g}"
    corrected = f" - {coef} {name}(π ‖ π_ref)" if penalty.importance_corrected else ""
    return slopes[name].format(coef) + corrected
