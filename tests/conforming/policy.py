"""Cases over batches of rows: advantages, returns, losses, gradients, ratios and corrections, all from the product.

Shapes: B rows, W padded width, T packed tokens.
Left out: maths. A field of a case is the product's own result, put back into the case's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from conforming.case import Case, Unknown
from conforming.keys import algorithm_of, interpolated, kl_of
from conforming.layout import Layout
from conforming.variants import variant_of
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.balance import Reweight
from partita.algo.center import LogLinear
from partita.algo.compose import compose
from partita.algo.correct import Drift, SecondMoment, Weighted
from partita.algo.credit import RewardToGo
from partita.algo.keys import AlgorithmKeys
from partita.algo.rows import Stale
from partita.algo.tokens import Current, live_tokens
from partita.ops import divergence
from partita.records import Batch

DTYPES = {"float32": torch.float32, "float64": torch.float64}
ESTIMATORS = ("k1", "k2", "k3", "abs", "k3_value_k2_grad")


@dataclass(frozen=True)
class Evaluated:
    """A loss and its gradients, [T] packed."""

    value: Tensor
    gradient_T: Tensor
    each_T: Tensor


def layout_of(case: Case) -> Layout:
    return Layout.of(case.inputs, case.config.choice("dtype", DTYPES, "float64"))


def algorithm(case: Case, layout: Layout) -> Algorithm:
    return algorithm_of(case, layout.rows, layout.mask_BW.shape[1])


def batch_of(case: Case, layout: Layout) -> Batch:
    """The case's streams. Whoever trains the newest weights next has the version after them, unless it is them itself."""
    batch = layout.batch()
    if "current_version" in case.inputs:
        batch = batch.with_(train_version=int(case.inputs["current_version"]) + (0 if interpolated(case) else 1))
    return batch


def credited(case: Case, expected: Any = None) -> tuple[Layout, Batch]:
    """After credit. Where the case wants a number per row, rows without tokens get one to carry it."""
    layout = layout_of(case)
    if not (isinstance(expected, list) and expected and isinstance(expected[0], list)):
        layout = layout.with_a_token_in_every_row()
    return layout, algorithm(case, layout).credit(batch_of(case, layout))


def weighted(case: Case) -> tuple[Layout, Algorithm, Batch]:
    """After credit, where the case has no advantages of its own but rewards, and after weights."""
    layout = layout_of(case)
    parts, batch = algorithm(case, layout), batch_of(case, layout)
    if batch.advantages_T is None and ("rewards" in case.inputs or "token_rewards" in case.inputs):
        batch = parts.credit(batch)
    else:  # advantages are given: of credit, only its judgement of rows without usable numbers
        judge = compose(AlgorithmKeys(), n_samples=2, max_new_tokens=1)
        batch = batch.with_(valid_S=judge.credit(batch).valid_S)
    if batch.advantages_T is None:
        batch = batch.with_(advantages_T=torch.zeros(len(batch.seq_T), dtype=layout.dtype))
    return layout, parts, parts.weights(batch)


def evaluate(case: Case) -> tuple[Layout, Evaluated]:
    """The loss over all micro-batches. A token's own loss is the derivative of the sum by the token's weight."""
    if "per_token_loss" in case.inputs:
        case = _as_advantages(case)
    layout, parts, batch = weighted(case)
    logprobs_T = _logprobs(layout)
    weight_T = _present(batch.weight_T).clone().requires_grad_()
    batch = batch.with_(weight_T=weight_T)
    with _log_ratio_limit(case):
        if "micro_batches" not in case.inputs:
            value = parts.loss(batch, Current(logprobs_T)).value
        else:
            value = _over_micro_batches(case, parts, batch, logprobs_T)
    gradient_T, each_T = torch.autograd.grad(value, (logprobs_T, weight_T), allow_unused=True)
    return layout, Evaluated(value, gradient_T, torch.zeros_like(weight_T) if each_T is None else each_T)


def _over_micro_batches(case: Case, parts: Algorithm, batch: Batch, logprobs_T: Tensor) -> Tensor:
    """Shares of one step add up; or, wrongly, every micro-batch is a step of its own and their losses are averaged."""
    shares: list[Tensor] = []
    own = case.config.choice("denominators", {None: False, "of each micro-batch": True}, None)
    for rows in case.inputs["micro_batches"]:
        token_T = torch.cat([torch.nonzero(batch.seq_T == row)[:, 0] for row in rows])
        part = batch.select(rows)
        shares.append(parts.loss(parts.weights(part) if own else part, Current(logprobs_T[token_T])).value)
    return torch.stack(shares).mean() if own else torch.stack(shares).sum()


def _as_advantages(case: Case) -> Case:
    """A given loss per token is -A log π with A the loss and log π = -1."""
    given = case.inputs["per_token_loss"]
    minus_one = [[-1.0] * len(row) for row in given]
    inputs = case.inputs.over({"advantages": given, "logp": minus_one})
    return replace(case, inputs=inputs).but(loss="reinforce")


def _logprobs(layout: Layout) -> Tensor:
    name = "logp" if "logp" in layout.inputs else "log_ratio"
    return layout.tokens(name).requires_grad_()


def _present(stream: Tensor | None) -> Tensor:
    assert stream is not None
    return stream


@contextmanager
def _log_ratio_limit(case: Case) -> Iterator[None]:
    """The product holds log-ratios within a constant; a case that names another bound sets it."""
    usual = divergence.LOG_RATIO_LIMIT
    divergence.LOG_RATIO_LIMIT = float(case.config.get("log_ratio_clamp", usual))
    try:
        yield
    finally:
        divergence.LOG_RATIO_LIMIT = usual


def advantages(case: Case, expected: Any) -> Tensor:
    if "target_pos_fraction" in case.config:
        return _balanced(case)[0]
    layout, batch = credited(case, expected)
    return layout.as_expected(_present(batch.advantages_T), expected)


def returns(case: Case, expected: Any) -> Tensor:
    layout, batch = credited(case, expected)
    return layout.as_expected(_present(batch.returns_T), expected)


def token_rewards(case: Case, expected: Any) -> Tensor:
    """What is paid on a token is its return where nothing later counts."""
    layout = layout_of(case)
    parts = replace(algorithm(case, layout), assign=RewardToGo(0.0), norm=None)
    return layout.padded(_present(parts.credit(batch_of(case, layout)).advantages_T))


def unnormalised(case: Case, expected: Any) -> Tensor:
    return advantages(replace(case, config=case.config.without("whiten", "baseline", "scale")), expected)


def sequence_reward(case: Case, expected: Any) -> Tensor:
    case = replace(case, config=case.config.without("gamma"))
    return advantages(case.but(credit="outcome"), expected)


def shaped_rewards(case: Case, expected: Any) -> Tensor:
    layout = layout_of(case)
    return _present(algorithm(case, layout).credit(batch_of(case, layout)).score_S)


def loss(case: Case, expected: Any) -> Tensor:
    if "returns" in case.inputs and "logp" not in case.inputs:
        return value_loss(case, expected)
    return evaluate(case)[1].value


def grad_logp(case: Case, expected: Any) -> Tensor:
    layout, found = evaluate(case)
    return layout.padded(found.gradient_T)


def per_token_loss(case: Case, expected: Any) -> Tensor:
    layout, found = evaluate(case)
    return layout.padded(found.each_T)


def _value(case: Case) -> tuple[Layout, Tensor, Tensor]:
    """The critic's loss and its gradient by the new values."""
    layout, parts, batch = weighted(case)
    values_T = layout.tokens("values").requires_grad_()
    value = parts.value_loss(batch, values_T).value
    return layout, value, torch.autograd.grad(value, values_T)[0]


def value_loss(case: Case, expected: Any) -> Tensor:
    return _value(case)[1]


def grad_values(case: Case, expected: Any) -> Tensor:
    layout, _, gradient_T = _value(case)
    return layout.padded(gradient_T)


def coefficients(case: Case, expected: Any) -> Tensor:
    layout, parts, batch = weighted(case)
    return layout.padded(parts.gradient_coefficients(batch, Current(_logprobs(layout))))


def _ratio(case: Case) -> tuple[Layout, Tensor]:
    layout, parts, batch = weighted(case)
    logprobs_T = _logprobs(layout)
    tokens = live_tokens(batch, Current(logprobs_T), parts.center(batch, logprobs_T))
    with _log_ratio_limit(case):
        return layout, parts.ratio(tokens)


def ratio(case: Case, expected: Any) -> Tensor:
    layout, ratio_T = _ratio(case)
    return layout.padded(ratio_T)


def seq_ratio(case: Case, expected: Any) -> Tensor:
    layout, ratio_T = _ratio(case)
    return layout.first(ratio_T, empty=1.0)


def drift(case: Case) -> tuple[Layout, Algorithm, Drift]:
    """What a correction looks at, for all tokens of the case."""
    layout = layout_of(case)
    batch = batch_of(case, layout)
    prox_T = _present(batch.prox_T)
    behaviour_T = prox_T if batch.behaviour_T is None else batch.behaviour_T
    advantages_T = torch.zeros_like(prox_T) if batch.advantages_T is None else batch.advantages_T
    step_T = prox_T - layout.tokens("logp") if "logp" in case.inputs else None
    counted_T = torch.ones_like(prox_T, dtype=torch.bool)
    found = Drift(batch.seq_T, batch.samples, counted_T, advantages_T, prox_T - behaviour_T, step_T)
    return layout, algorithm(case, layout), found


def is_weight(case: Case, expected: Any) -> Tensor:
    layout, _, found = drift(case)
    return layout.padded(Weighted()(found).weight_T)


def weight_used(case: Case, expected: Any) -> Tensor:
    layout, parts, batch = weighted(case)
    late = [part for part in parts.correct if part.reads_current]
    if late:
        return layout.padded(late[0](drift(case)[2]).weight_T)
    return layout.padded(torch.ones(len(batch.seq_T)) if batch.correction_T is None else batch.correction_T)


def kept(case: Case, expected: Any) -> Tensor:
    layout, parts, found = drift(case)
    kept_T = found.counted_T
    for part in parts.correct:
        kept_T = kept_T & part(found).kept_T
    return layout.padded(kept_T)


def geo_mean_ratio(case: Case, expected: Any) -> Tensor:
    layout, _, found = drift(case)
    return layout.first(found.ratio("geometric"), empty=1.0)


def product_ratio(case: Case, expected: Any) -> Tensor:
    layout, _, found = drift(case)
    return layout.first(found.ratio("sequence"), empty=1.0)


def seq_kl(case: Case, expected: Any) -> Tensor:
    layout, _, found = drift(case)
    return layout.first(found.mean(_present(found.log_step_T)))


def second_moment(case: Case, expected: Any) -> Tensor:
    layout, _, found = drift(case)
    return layout.padded(SecondMoment(case.config["threshold"]).moment(found))


def alpha(case: Case, expected: Any) -> Tensor:
    layout = layout_of(case)
    batch = batch_of(case, layout)
    assert batch.train_version is not None
    return layout.padded(LogLinear().alpha(_present(batch.version_T), batch.train_version))


def prox_logp(case: Case, expected: Any) -> Tensor:
    layout = layout_of(case)
    return layout.padded(algorithm(case, layout).center(batch_of(case, layout), layout.tokens("logp")))


def _stays(case: Case, limit: int) -> Tensor:
    return Stale(limit)(batch_of(case, layout_of(case))).in_loss_S


def keep(case: Case, expected: Any) -> Tensor:
    return _stays(case, case.config["eta"])


def lag(case: Case, expected: Any) -> Tensor:
    """A row's lag is the number of limits, from 0 on, that it does not keep."""
    lag_B = torch.zeros(len(case.inputs["versions"]))
    for limit in range(int(case.inputs["current_version"]) + 2):
        lag_B = lag_B + (~_stays(case, limit)).to(lag_B)
    return lag_B


def _balanced(case: Case) -> tuple[Tensor, Tensor]:
    """Balanced advantages [B], and what becomes of +1 and -1 that have no weight themselves: the two factors."""
    row_B = torch.tensor([*case.inputs["advantages"], 1.0, -1.0], dtype=torch.float64)
    weight_B = torch.ones_like(row_B)
    weight_B[-2:] = 0
    scaled_B = Reweight(case.config["target_pos_fraction"]).scale(row_B, weight_B)
    return scaled_B[:-2], scaled_B[-2:].abs()


def scale_pos(case: Case, expected: Any) -> Tensor:
    return _balanced(case)[1][0]


def scale_neg(case: Case, expected: Any) -> Tensor:
    return _balanced(case)[1][1]


def _kl_alone(case: Case, estimator: str) -> Case:
    """Nothing but KL(π ‖ ref) in the loss, with coefficient 1."""
    if kl_of(case) is not None:
        raise Unknown("a case with a KL coefficient has no field of the estimator alone")
    return case.but(kl_coef=1.0, kl_estimator=estimator, kl_placement="loss", baseline="none", scale="none")


def kl_value(estimator: str) -> Callable[[Case, Any], Any]:
    def of(case: Case, expected: Any) -> Any:
        alone = _kl_alone(case, estimator)
        if isinstance(expected, dict):
            return {"value": per_token_loss(alone, None), "grad": kl_gradient(estimator)(case, None)}
        return per_token_loss(alone, expected) if isinstance(expected, list) else loss(alone, expected)

    return of


def kl_gradient(estimator: str) -> Callable[[Case, Any], Any]:
    def of(case: Case, expected: Any) -> Tensor:
        return -coefficients(_kl_alone(case, estimator), expected)

    return of


FIELDS: dict[str, Callable[[Case, Any], Any]] = {
    "advantages": advantages, "advantages_raw": unnormalised, "returns": returns, "token_rewards": token_rewards,
    "sequence_level_reward": sequence_reward, "shaped_rewards": shaped_rewards,
    "loss": loss, "policy_loss": loss, "grad_logp": grad_logp, "per_token_loss": per_token_loss,
    "value_loss": value_loss, "grad_values": grad_values, "GC": coefficients, "ratio": ratio, "seq_ratio": seq_ratio,
    "is_weight": is_weight, "weight_used": weight_used, "kept": kept, "geo_mean_ratio": geo_mean_ratio,
    "product_ratio": product_ratio, "seq_kl": seq_kl, "second_moment": second_moment,
    "alpha": alpha, "prox_logp": prox_logp, "keep": keep, "lag": lag, "scale_pos": scale_pos, "scale_neg": scale_neg,
    **{name: kl_value(name) for name in ESTIMATORS}, **{f"{name}_grad": kl_gradient(name) for name in ESTIMATORS},
}  # fmt: skip
SCALAR = ("loss", "policy_loss")


def answer(case: Case, name: str, expected: Any) -> Any:
    """What the product has for an expected field; a name that is no field is a variant of the case."""
    if name in FIELDS:
        return FIELDS[name](case, expected)
    if name == "mean_token" and isinstance(expected, dict):  # estimators, each as the loss of the whole step
        return {part: answer(case, part, value) for part, value in expected.items()}
    config, field = variant_of(name)
    case = case.but(**config)
    if isinstance(expected, dict):
        return {part: answer(case, part, value) for part, value in expected.items()}
    return answer(case, field or ("advantages" if isinstance(expected, list) else "loss"), expected)
