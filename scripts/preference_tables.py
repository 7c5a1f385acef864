"""The blocks of the pages on preferences and on the unified view: losses at some values, and one example in every method.

Left out: Markdown and languages, which `algorithm_tables` has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from algorithm_tables import Words, code, numbers, table
from torch import Tensor
from torch.nn.functional import logsigmoid

from partita.algo.algorithm import Algorithm
from partita.algo.bradley import BradleyTerry
from partita.algo.compose import compose
from partita.algo.explain import shown, subject
from partita.algo.keys import AlgorithmKeys
from partita.algo.objective import in_symbols
from partita.algo.pairwise import Hinge, Ipo, Kto, Orpo, PairLoss, Pairs, Robust, Sigmoid, Simpo, pair_loss
from partita.algo.tokens import Current
from partita.algo.unified import METHODS
from partita.records import Batch

BETA = 0.1
PAIR_LOSSES: tuple[PairLoss, ...] = (
    Sigmoid(BETA), Sigmoid(BETA, label_smoothing=0.1), Robust(BETA, label_smoothing=0.1), Hinge(BETA), Ipo(BETA),
    Simpo(2.0, gamma=0.5), Orpo(BETA),
)  # fmt: skip


def pair_losses(words: Words) -> str:
    """The losses of preference pairs at three differences h of what they compare, around -1.5."""
    rows: list[list[str]] = []
    for part in PAIR_LOSSES:
        sides = (torch.tensor([-1.5 + h / 2, -1.5 - h / 2], dtype=torch.float64) for h in (-2.0, 0.0, 2.0))
        values = [float(part(chosen, rejected)) for chosen, rejected in sides]
        rows.append([code(shown(part)), code(words(in_symbols(part))), *(numbers([value]) for value in values)])
    return table([words("part"), words("loss"), "h = -2", "h = 0", "h = 2"], rows)


def judged_losses(words: Words) -> str:
    """KTO at three distances of the log-ratio to its rest point."""
    part, far_S = Kto(BETA, undesirable=1.2), torch.tensor([-20.0, 0.0, 20.0], dtype=torch.float64)
    rows: list[list[str]] = []
    for label, good in (("desirable", True), ("undesirable", False)):
        loss_S = part(far_S, torch.full((3,), good), torch.zeros(()))
        rows.append([words(label), *(numbers([value]) for value in loss_S.tolist())])
    head = table(map(words, ("part", "loss")), [[code(shown(part)), code(words(in_symbols(part)))]])
    return f"{head}\n\n{table(['', 'h - z = -20', 'h - z = 0', 'h - z = 20'], rows)}"


def reward_losses(words: Words) -> str:
    """A reward model's loss of three pairs of scores, plain, with a margin, centred."""
    pairs = ((2.0, 0.5), (0.5, 0.5), (0.5, 2.0))
    rows: list[list[str]] = []
    for part, margin in ((BradleyTerry(), 0.0), (BradleyTerry(), 1.0), (BradleyTerry(centring=0.01), 0.0)):
        wide = [(torch.tensor(c).double(), torch.tensor(r).double()) for c, r in pairs]
        values = [float(part(chosen, rejected, torch.tensor(margin))) for chosen, rejected in wide]
        rows.append([code(shown(part)), code(in_symbols(part)), f"{margin:g}", *(numbers([value]) for value in values)])
    return table([*map(words, ("part", "loss")), "m", *(f"s = {c:g}, {r:g}" for c, r in pairs)], rows)


@dataclass(frozen=True)
class Example:
    """One prompt, a right response of two tokens and a wrong one of three: log-probs, the reference's, a critic's values."""

    policy_T: Tensor
    ref_T: Tensor
    values_T: Tensor
    seq_T: Tensor

    def batch(self, reward_S: Tensor) -> Batch:
        """The two responses as samples of one prompt, sampled by the policy as it is."""
        no_S = torch.zeros(2, dtype=torch.bool)
        return Batch(
            seq_T=self.seq_T, prompt_S=torch.zeros(2, dtype=torch.long), reward_S=reward_S, truncated_S=no_S,
            valid_S=~no_S, prox_T=self.policy_T, behaviour_T=self.policy_T, ref_T=self.ref_T, values_T=self.values_T,
        )  # fmt: skip

    def sides(self, value_T: Tensor) -> tuple[list[float], list[float]]:
        """The tokens of the right response and those of the wrong one."""
        return value_T[self.seq_T == 0].tolist(), value_T[self.seq_T == 1].tolist()

    def slope(self, objective: Callable[[Tensor], Tensor]) -> Tensor:
        """[T]: the gradient of an objective of the policy's log-probs, by autograd."""
        logprobs_T = self.policy_T.clone().requires_grad_()
        (slope_T,) = torch.autograd.grad(objective(logprobs_T), logprobs_T)
        return slope_T


EXAMPLE = Example(
    policy_T=torch.tensor([-0.5, -1.2, -0.8, -0.4, -1.5], dtype=torch.float64),
    ref_T=torch.tensor([-0.9, -1.1, -0.6, -0.5, -1.0], dtype=torch.float64),
    values_T=torch.tensor([0.5, 0.7, 0.5, 0.4, 0.2], dtype=torch.float64),
    seq_T=torch.tensor([0, 0, 1, 1, 1]),
)


def coefficients(name: str) -> tuple[list[float], list[float]]:
    """The gradient coefficients that a method's real loss has on the example, by response; SFT sees the right one only."""
    right_S = torch.tensor([1.0, 0.0], dtype=torch.float64)
    supervised = AlgorithmKeys(importance_sampling_level="none", loss_agg_mode="seq_mean_token_mean")
    if name == "SFT":
        one = EXAMPLE.batch(right_S).select([0])
        return _found(compose(supervised, n_samples=1, max_new_tokens=8), one).tolist(), []
    if name in ("RFT", "Online RFT"):
        algorithm = compose(supervised, n_samples=2, max_new_tokens=8)
    elif name == "DPO":
        return EXAMPLE.sides(EXAMPLE.slope(dpo_objective))
    else:
        algorithm = subject(name.lower()).composed()
    return EXAMPLE.sides(_found(algorithm, EXAMPLE.batch(right_S)))


def _found(algorithm: Algorithm, batch: Batch) -> Tensor:
    ready = algorithm.weights(algorithm.credit(batch))
    assert ready.prox_T is not None
    return algorithm.gradient_coefficients(ready, Current(ready.prox_T))


def dpo_objective(logprobs_T: Tensor) -> Tensor:
    """Minus DPO's loss of the example's one pair."""
    return -pair_loss(Sigmoid(BETA), Pairs.of_tokens(logprobs_T, EXAMPLE.ref_T, EXAMPLE.seq_T, 1), 1).value


def paper_objective(logprobs_T: Tensor) -> Tensor:
    """What DeepSeekMath's equation 12 maximises: DPO's log-sigmoid of means instead of sums."""
    return logsigmoid(BETA * _mean_difference(logprobs_T))


def paper_gradient() -> Tensor:
    """[T]: DeepSeekMath's equations 13 and 14 as they stand, the log-ratios in 14 read as those of equation 12."""
    sign_T = torch.where(EXAMPLE.seq_T == 0, 1.0, -1.0).to(EXAMPLE.policy_T)
    length_T = torch.bincount(EXAMPLE.seq_T)[EXAMPLE.seq_T]
    return sign_T / length_T * torch.sigmoid(-BETA * _mean_difference(EXAMPLE.policy_T))


def _mean_difference(logprobs_T: Tensor) -> Tensor:
    ratio_T = logprobs_T - EXAMPLE.ref_T
    return ratio_T[EXAMPLE.seq_T == 0].mean() - ratio_T[EXAMPLE.seq_T == 1].mean()


def methods(words: Words) -> str:
    """The unified view, and the coefficients of the example's tokens."""
    rows: list[list[str]] = []
    for method in METHODS:
        told = [words(text) for text in (method.name, method.data, method.reward)]
        rows.append(
            [*told, code(words(method.coefficient)), *(code(numbers(side)) for side in coefficients(method.name))]
        )
    return table([*map(words, ("method", "data", "reward", "gradient coefficient")), "o⁺", "o⁻"], rows)


def dpo_gradients(words: Words) -> str:
    """The gradient in each token's log-prob: of DPO's loss, of DeepSeekMath's objective, and as its table has it."""
    rows = [
        ("DPO", EXAMPLE.slope(dpo_objective)),
        ("DeepSeekMath, equation 12", EXAMPLE.slope(paper_objective)),
        ("DeepSeekMath, equations 13 and 14", paper_gradient()),
    ]
    made = [[words(name), *(code(numbers(side, 4)) for side in EXAMPLE.sides(slope_T))] for name, slope_T in rows]
    return table(["", "o⁺", "o⁻"], made)
