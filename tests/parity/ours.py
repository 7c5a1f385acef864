"""Our side of every comparison: keys become an algorithm, which gets the same batch packed.

Shapes: B rows, W padded width, T packed trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from parity.cases import Case
from parity.outcome import Outcome, differentiate
from parity.ragged import Ragged
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose, controllers
from partita.algo.keys import AlgorithmKeys
from partita.algo.pairwise import Hinge, Ipo, Pairs, Robust, Sigmoid, pair_loss
from partita.algo.penalty import EntropyBonus, KlLoss
from partita.algo.shape import KlInReward
from partita.algo.tokens import Current
from partita.config.load import load_config
from partita.records import Batch


def keys(case: Case) -> AlgorithmKeys:
    """The case's keys, read as strictly as a file's."""
    return load_config(AlgorithmKeys, base_tree=dict(case.keys)).value


def algorithm(case: Case) -> Algorithm:
    """The composition."""
    return compose(keys(case), n_samples=4, max_new_tokens=case.budget, part_weights=case.part_weights)


def given(ragged: Ragged) -> Batch:
    """The batch with the advantages that it comes with."""
    return ragged.batch().with_(advantages_T=ragged.pack(ragged.advantages_BW))


def credited(ragged: Ragged, case: Case) -> Batch:
    """The batch with advantages from its rewards."""
    return algorithm(case).credit(ragged.batch())


def loss_of(batch: Batch, ragged: Ragged, case: Case) -> Outcome:
    """The loss of one optimizer step on the samples of the batch, and its gradient to all log-probs."""
    composed = algorithm(case)
    chosen = list(case.rows or range(ragged.rows))
    part = composed.weights(batch.select(chosen))
    token_T = torch.isin(batch.seq_T, torch.tensor(chosen))
    entropy_T = ragged.pack(ragged.values_BW.abs())

    def loss(logprobs_BW: Tensor) -> Tensor:
        current = Current(ragged.pack(logprobs_BW)[token_T], entropy_T=entropy_T[token_T])
        return composed.loss(part, current).value

    return differentiate(loss, ragged.logprobs_BW)


def loss(ragged: Ragged, case: Case) -> Outcome:
    """For given advantages."""
    return loss_of(given(ragged), ragged, case)


def step(ragged: Ragged, case: Case) -> Outcome:
    """From rewards to the loss."""
    return loss_of(credited(ragged, case), ragged, case)


def advantages(ragged: Ragged, case: Case) -> Outcome:
    """From rewards."""
    return Outcome(ragged.unpack(credited(ragged, case).advantages_T))


def returns(ragged: Ragged, case: Case) -> Outcome:
    """The critic's targets."""
    return Outcome(ragged.unpack(credited(ragged, case).returns_T))


def aggregation(ragged: Ragged, case: Case) -> Outcome:
    """The weighted sum of the values; the weights are its gradient."""
    weight_T = algorithm(case).weights(given(ragged)).weight_T
    return differentiate(lambda values_BW: (weight_T * ragged.pack(values_BW)).sum(), ragged.values_BW)


def kl(ragged: Ragged, case: Case) -> Outcome:
    """The estimate that the KL loss takes, per token."""
    (penalty,) = (part for part in algorithm(case).penalties if isinstance(part, KlLoss))
    return differentiate(
        lambda logprobs_BW: penalty.estimator(logprobs_BW - ragged.ref_BW) * ragged.mask_BW, ragged.logprobs_BW
    )


def correction(ragged: Ragged, case: Case) -> Outcome:
    """The factor of each token against the sampler."""
    return Outcome(ragged.unpack(algorithm(case).weights(given(ragged)).correction_T))


def value(ragged: Ragged, case: Case) -> Outcome:
    """The critic's loss, and its gradient to the values."""
    composed = algorithm(case)
    batch = composed.weights(given(ragged)).with_(returns_T=ragged.pack(ragged.returns_BW))
    return differentiate(lambda values_BW: composed.value_loss(batch, ragged.pack(values_BW)).value, ragged.values_BW)


def entropy(ragged: Ragged, case: Case) -> Outcome:
    """What the entropy adds to the loss where no row has an advantage, and its gradient to the entropy."""
    composed = algorithm(case)
    batch = given(ragged)
    batch = composed.weights(batch.with_(advantages_T=torch.zeros_like(batch.advantages_T)))

    def bonus(entropy_BW: Tensor) -> Tensor:
        return composed.loss(batch, Current(batch.prox_T, entropy_T=ragged.pack(entropy_BW))).value

    return differentiate(bonus, ragged.values_BW.abs())


def entropy_coefficient(ragged: Ragged, case: Case) -> Outcome:
    """The coefficient of each of a few steps."""
    composed, (rule,) = algorithm(case), controllers(keys(case))
    used: list[float] = []
    for observed in case.setting["observed"]:
        (bonus,) = (part for part in rule.apply(composed).penalties if isinstance(part, EntropyBonus))
        used.append(bonus.coef)
        rule.observe({"entropy": observed, "old_entropy": observed})
    return Outcome(torch.tensor(used))


def kl_coefficient(ragged: Ragged, case: Case) -> Outcome:
    """The coefficient after each of a few steps."""
    composed, (rule,) = algorithm(case), controllers(keys(case))
    seen: list[float] = []
    for observed in case.setting["observed"]:
        rule.observe({"kl_ref/sequence": observed, "samples": float(case.setting["n_steps"])})
        (part,) = (part for part in rule.apply(composed).shape if isinstance(part, KlInReward))
        seen.append(part.coef)
    return Outcome(torch.tensor(seen))


def shaping(ragged: Ragged, case: Case) -> Outcome:
    """What shaping adds to a reward of 0."""
    batch = ragged.batch()
    return Outcome(algorithm(case).credit(batch.with_(reward_S=torch.zeros_like(batch.reward_S))).score_S)


def pairs(ragged: Ragged, case: Case) -> Outcome:
    """A loss of pairs, the first half of the rows against the second; its keys are the fields of our loss."""
    values = {key: value for key, value in case.keys.items() if key != "loss"}
    made = PAIR_LOSSES[case.keys["loss"]](**values)
    count = ragged.rows // 2
    order = torch.arange(ragged.rows).view(2, count).T.flatten()  # ours: chosen and rejected of a pair side by side
    mask_BW = ragged.mask_BW[order]
    ref_T, seq_T = ragged.ref_BW[order][mask_BW], mask_BW.nonzero()[:, 0]

    def loss(logprobs_BW: Tensor) -> Tensor:
        return pair_loss(made, Pairs.of_tokens(logprobs_BW[order][mask_BW], ref_T, seq_T, count), count).value

    return differentiate(loss, ragged.logprobs_BW)


PAIR_LOSSES: dict[str, type[Any]] = {kind.__name__: kind for kind in (Sigmoid, Hinge, Ipo, Robust)}
COMPARED: dict[str, Callable[[Ragged, Case], Outcome]] = {
    "loss": loss,
    "step": step,
    "advantages": advantages,
    "returns": returns,
    "aggregation": aggregation,
    "kl": kl,
    "correction": correction,
    "value": value,
    "entropy": entropy,
    "entropy_coefficient": entropy_coefficient,
    "kl_coefficient": kl_coefficient,
    "shaping": shaping,
    "pairs": pairs,
}
