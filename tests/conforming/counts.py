"""Cases over plain numbers: pass@k and maj@k, preference pairs, group sizes, filters and length penalties.

Left out: maths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from conforming.case import Case, Unknown
from conforming.compare import refused_or

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys, DynamicSampling
from partita.algo.pairwise import Hinge, Ipo, PairLoss, Pairs, Sigmoid, pair_loss
from partita.algo.sampling import allocate
from partita.algo.shape import Overlong
from partita.evals.estimators import avg_at_k, maj_at_k, pass_at_k


def passes(case: Case, name: str, expected: Any) -> Any:
    if name != "pass_at_k":
        raise Unknown(f"expected.{name}: choices are pass_at_k")
    totals, right = case.inputs["n"], case.inputs["c"]
    ks = case.config["k"]
    return [[_pass(n, c, k) for k in ks] for n, c in zip(totals, right, strict=True)]


def _pass(n: int, c: int, k: int) -> Any:
    return refused_or(lambda: pass_at_k(n, c, k))


def majority(case: Case, name: str, expected: Any) -> Any:
    """`maj_at_k` of the gold answer; `maj_gold7` of another one; the mean accuracy."""
    answers, gold = case.inputs["answers"], case.inputs["gold"]
    if name == "avg_at_k":
        return avg_at_k([[float(answer == gold) for answer in answers]]).mean
    if name.startswith("maj_gold"):
        other = name.removeprefix("maj_gold")
        gold = next((answer for answer in answers if str(answer) == other), other)
    elif name != "maj_at_k":
        raise Unknown(f"expected.{name}: choices are maj_at_k, avg_at_k, maj_gold...")
    return [_majority(answers, gold, k) for k in case.config["k"]]


def _majority(answers: list[str | None], gold: str, k: int) -> Any:
    return refused_or(lambda: maj_at_k(answers, gold, k))


def preference(case: Case, name: str, expected: Any) -> Any:
    """Log-prob sums of pairs; lengths where the loss takes means per token."""
    inputs, config = case.inputs, case.config
    beta, smoothing = config.get("beta", 0.1), config.get("label_smoothing", 0.0)
    losses: dict[str, PairLoss] = {"sigmoid": Sigmoid(beta, smoothing), "hinge": Hinge(beta), "ipo": Ipo(beta)}
    sums = {side: torch.tensor(inputs[side], dtype=torch.float64) for side in (
        "policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected",
    )}  # fmt: skip
    policy = [sums["policy_chosen"].requires_grad_(), sums["policy_rejected"].requires_grad_()]
    lengths = [_integers(inputs.get(name)) for name in ("chosen_lengths", "rejected_lengths")]
    pairs = Pairs(policy[0], policy[1], sums["ref_chosen"], sums["ref_rejected"], lengths[0], lengths[1])
    found = pair_loss(config.choice("loss", losses, "sigmoid"), pairs, len(policy[0]))
    gradients = torch.autograd.grad(found.value, policy)
    accuracy = found.stats["preference/accuracy"]
    fields = {
        "margin": found.margin_N, "per_pair_loss": found.loss_N, "loss": found.value,
        "grad_policy_chosen": gradients[0], "grad_policy_rejected": gradients[1],
        "implicit_reward_chosen": found.chosen_reward_N, "implicit_reward_rejected": found.rejected_reward_N,
        "accuracy": accuracy.sum / accuracy.count,
    }  # fmt: skip
    if name not in fields:
        raise Unknown(f"expected.{name}: choices are {', '.join(fields)}")
    return fields[name]


def _integers(given: list[int] | None) -> torch.Tensor | None:
    return None if given is None else torch.tensor(given)


def group_sizes(case: Case, name: str, expected: Any) -> Any:
    """Of the given scores; without any; and where one prompt has the whole score, so that it reaches the cap."""
    inputs = case.inputs
    capped = [0.0] * len(expected)
    capped[expected.index(max(expected))] = 1.0  # the case does not say which prompt it was
    scores = {"group_sizes": inputs["score"], "all_zero_scores": [0.0] * len(expected), "capped": capped}
    if name not in scores:
        raise Unknown(f"expected.{name}: choices are {', '.join(scores)}")
    return allocate(scores[name], inputs["budget"], inputs["g_min"], inputs["g_max"])


def kept_groups(case: Case, name: str, expected: Any) -> Any:
    filters: dict[str, Any] = {"keep_by_count": "mixed_outcomes", "keep_by_std": "mixed_rewards"}
    if name not in filters:
        raise Unknown(f"expected.{name}: choices are {', '.join(filters)}")
    sampling = DynamicSampling(filters[name], correct_threshold=case.config.get("correct_threshold", 1.0))
    keep = compose(AlgorithmKeys(dynamic_sampling=sampling), n_samples=2, max_new_tokens=1).keep
    return [keep(torch.tensor(group, dtype=torch.float64)) for group in case.inputs["groups"]]


def overlong(case: Case, name: str, expected: Any) -> Any:
    """The penalty of lengths. A peer's never ends: a window so many times longer, with as many times the factor."""
    config, lengths = case.config, case.inputs["lengths"]
    limit, window, factor = config["l_max"], config["l_cache"], config.get("factor", 1.0)
    if name not in ("penalty", "unclamped_peer_variant"):
        raise Unknown(f"expected.{name}: choices are penalty, unclamped_peer_variant")
    if name == "unclamped_peer_variant":
        times = 1 + max(0, max(lengths) - limit)
        limit, window, factor = limit + (times - 1) * window, times * window, times * factor
    return Overlong(limit, window, factor).penalty(torch.tensor(lengths))


FAMILIES: dict[str, Callable[[Case, str, Any], Any]] = {
    "n": passes, "answers": majority, "policy_chosen": preference, "score": group_sizes, "groups": kept_groups,
    "lengths": overlong,
}  # fmt: skip
"""By the input that only such a case has."""
