"""Cases over whole vocabularies: entropy, exact divergences, expectations over all tokens, and TRPO's step.

Shapes: T tokens, V vocabulary.
Left out: maths. Logits go through the product's own chunked heads; the head here is the identity.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from conforming.case import Case, Unknown
from conforming.keys import algorithm_of
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys
from partita.algo.penalty import EntropyBonus
from partita.algo.tokens import Current, live_tokens
from partita.algo.trpo import natural_gradient_step
from partita.ops.logprobs import Side, full_kl, token_logprobs
from partita.records import Batch


def identity(hidden_TD: Tensor) -> Tensor:
    return hidden_TD


def logits(case: Case, name: str) -> Tensor:
    return torch.tensor(case.inputs[name], dtype=torch.float64)


def tokens_alone(count: int, **streams: Any) -> Batch:
    """Every token is a row and a group of its own."""
    every = torch.arange(count)
    no = torch.zeros(count, dtype=torch.bool)
    return Batch(every, every, torch.zeros(count, dtype=torch.float64), no, ~no, **streams)


def entropy_bonus(case: Case) -> dict[str, Any]:
    """Distributions [T, V] and the loss of their entropies."""
    logits_TV = logits(case, "logits").requires_grad_()
    length = logits_TV.shape[0]
    any_T = torch.zeros(length, dtype=torch.long)  # which tokens were taken does not matter
    logprobs_T, entropy_T = token_logprobs(identity, logits_TV, any_T, chunk=2, entropy=True)
    assert entropy_T is not None
    parts = _with_bonus(algorithm_of(case, length, length), case.config["coef"])
    in_loss_T = torch.tensor(case.inputs.get("mask", [1] * length)) != 0
    batch = tokens_alone(length, advantages_T=torch.zeros(length, dtype=torch.float64)).with_(valid_S=in_loss_T)
    value = parts.loss(parts.weights(batch), Current(logprobs_T, entropy_T=entropy_T)).value
    return {"entropy": entropy_T, "loss": value, "grad_logits": torch.autograd.grad(value, logits_TV)[0]}


def _with_bonus(parts: Algorithm, coef: float) -> Algorithm:
    bonus = compose(AlgorithmKeys(entropy_coef=coef), n_samples=2, max_new_tokens=1).penalties
    assert all(isinstance(part, EntropyBonus) for part in bonus)
    return replace(parts, penalties=(*parts.penalties, *bonus))


def step_penalty(case: Case) -> dict[str, Any]:
    """PPO's penalty with the divergence of whole distributions [T, V] of an old and a new policy."""
    old_TV, new_TV = logits(case, "old_logits"), logits(case, "new_logits").requires_grad_()
    action_T = torch.tensor(case.inputs["actions"])
    length = action_T.shape[0]
    usual = {"loss": "ppo_penalty", "kl_estimator": "full"}
    parts = algorithm_of(case.but(**{**usual, **case.config.values}), length, length)
    prox_T, _ = token_logprobs(identity, old_TV, action_T, chunk=2)
    logprobs_T, _ = token_logprobs(identity, new_TV, action_T, chunk=2)
    kl_T = full_kl(Side(identity, old_TV, fixed=True), Side(identity, new_TV), chunk=2)
    advantages_T = torch.tensor(case.inputs["advantages"], dtype=torch.float64)
    batch = parts.weights(tokens_alone(length, advantages_T=advantages_T, prox_T=prox_T))
    current = Current(logprobs_T, kl_full_old_T=kl_T)
    value = parts.loss(batch, current).value
    tokens = live_tokens(batch, current, parts.center(batch, logprobs_T))
    return {
        "ratio": parts.ratio(tokens),
        "kl_per_token": kl_T,
        "loss": value,
        "grad_logits": torch.autograd.grad(value, new_TV)[0],
    }


def expected_gradients(case: Case) -> dict[str, Any]:
    """Estimators of one distribution [V] against another, their expectations exact: each token stands there once, weighted
    by its probability.
    """
    estimators = ("k1", "k2", "k3", "abs")
    reverse, forward = _exact(case, "logits", "ref_logits"), _exact(case, "ref_logits", "logits")
    in_loss = {name: _in_loss(case, name) for name in estimators}
    gradients = {f"{name}_in_loss": in_loss[name][1] for name in estimators}
    gradients |= {f"{name}_in_reward": _in_reward(case, name) for name in estimators}
    return {
        "kl_reverse": reverse[0], "true_grad_reverse_KL_pi_ref": reverse[1],
        "kl_forward": forward[0], "true_grad_forward_KL_ref_pi": forward[1],
        "expected_value": {name: in_loss[name][0] for name in estimators}, "expected_grad": gradients,
    }  # fmt: skip


def _exact(case: Case, left: str, right: str) -> tuple[Tensor, Tensor]:
    """KL(left ‖ right) and its gradient by the policy's logits."""
    sides = {name: logits(case, name).requires_grad_(name == "logits") for name in (left, right)}
    kl = full_kl(Side(identity, sides[left][None]), Side(identity, sides[right][None]), chunk=1)[0]
    return kl, torch.autograd.grad(kl, sides["logits"])[0]


def _every_token(case: Case) -> tuple[Tensor, Tensor, Batch]:
    """Logits with gradient, log-probs of all tokens, and a batch of them weighted by probability."""
    logits_V, ref_V = logits(case, "logits").requires_grad_(), logits(case, "ref_logits")
    size = logits_V.shape[0]
    every_V = torch.arange(size)
    logprobs_V, _ = token_logprobs(identity, logits_V.expand(size, -1), every_V, chunk=size)
    ref_logprobs_V, _ = token_logprobs(identity, ref_V.expand(size, -1), every_V, chunk=size)
    batch = tokens_alone(
        size, prox_T=logprobs_V.detach(), ref_T=ref_logprobs_V, weight_T=logprobs_V.detach().exp(),
        advantages_T=torch.zeros(size, dtype=torch.float64),
    )  # fmt: skip
    return logits_V, logprobs_V, batch


def _in_loss(case: Case, estimator: Any) -> tuple[Tensor, Tensor]:
    logits_V, logprobs_V, batch = _every_token(case)
    keys = AlgorithmKeys(kl_loss_coef=1.0, kl_loss_estimator=estimator)
    value = compose(keys, n_samples=2, max_new_tokens=1).loss(batch, Current(logprobs_V)).value
    return value, torch.autograd.grad(value, logits_V)[0]


def _in_reward(case: Case, estimator: Any) -> Tensor:
    logits_V, logprobs_V, batch = _every_token(case)
    keys = AlgorithmKeys(kl_ctl=1.0, kl_estimator=estimator, importance_sampling_level="none")
    parts = compose(keys, n_samples=2, max_new_tokens=1)
    credited = parts.credit(batch)
    value = parts.loss(credited.with_(weight_T=batch.weight_T), Current(logprobs_V)).value
    return torch.autograd.grad(value, logits_V)[0]


def trust_region(case: Case) -> dict[str, Any]:
    advantages_V = torch.tensor(case.inputs["advantages"], dtype=torch.float64)
    step = natural_gradient_step(logits(case, "logits"), advantages_V, case.config["delta"])
    return {
        "grad": step.gradient_V, "fisher": step.fisher_VV, "step": step.step_V, "quadratic_kl": step.quadratic_kl,
        "exact_kl_old_new": step.exact_kl, "surrogate_gain": step.surrogate_gain,
    }  # fmt: skip


def answer(case: Case, name: str, expected: Any) -> Any:
    """What the product has for an expected field; of a table, the entries that the case has."""
    if "old_logits" in case.inputs:
        found = step_penalty(case)
    elif "ref_logits" in case.inputs:
        found = expected_gradients(case)
    elif "delta" in case.config:
        found = trust_region(case)
    else:
        found = entropy_bonus(case)
    if name not in found:
        raise Unknown(f"expected.{name} is not among {', '.join(found)}")
    if not isinstance(expected, dict):
        return found[name]
    lacking = [part for part in expected if part not in found[name]]
    if lacking:
        raise Unknown(f"expected.{name}.{lacking[0]} is not among {', '.join(found[name])}")
    return {part: found[name][part] for part in expected}
