"""One function for each property of the table: it raises AssertionError where the keys and the batch break it.

Shapes: T packed trained tokens, S samples.
Each draws what it needs (orders, splits, places) from the batch's own lots, so that a batch is a whole example.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from properties.batches import current_at, first_tokens, moved, ready, step, tokens_of, unmoved, weighed
from torch import Tensor

from partita.algo.algorithm import Algorithm
from partita.algo.keys import AlgorithmKeys, CorrectionConfig, NormConfig
from partita.algo.tokens import Current
from partita.ops.divergence import k2
from partita.records import Batch

Check = Callable[[AlgorithmKeys, Batch], None]


def same(left: Tensor, right: Tensor, tolerance: float = 1e-9) -> None:
    """Equal up to rounding in float64."""
    torch.testing.assert_close(left.double(), right.double(), atol=tolerance, rtol=tolerance)


def by_lot(batch: Batch) -> list[int]:
    """A random order of the samples."""
    return batch.lot_S.argsort().tolist()


def sample_order(keys: AlgorithmKeys, batch: Batch) -> None:
    order = by_lot(batch)
    algorithm, current, token_T = ready(keys, batch), moved(batch), tokens_of(batch, order)
    one = weighed(algorithm, batch)
    other = batch.select(order)
    other = weighed(ready(keys, other), other.with_(prompt_S=1000 - 3 * other.prompt_S))
    same(other.score_S, one.score_S[order])
    same(other.advantages_T, one.advantages_T[token_T])
    same(other.weight_T, one.weight_T[token_T])
    expected_T = step(algorithm, one, current).gradient_T[token_T]
    same(step(algorithm, other, current_at(current, token_T)).gradient_T, expected_T)


Summed = tuple[Tensor, Tensor, dict[str, Tensor]]


def summed(algorithm: Algorithm, batch: Batch, current: Current, shares: list[list[int]]) -> Summed:
    """Loss, gradient and metrics added up over shares of the samples."""
    total, gradient_T = torch.zeros((), dtype=torch.float64), torch.zeros(batch.seq_T.shape, dtype=torch.float64)
    stats: dict[str, Tensor] = {}
    for share in shares:
        token_T = tokens_of(batch, share)
        part = step(algorithm, batch.select(share), current_at(current, token_T))
        total = total + part.loss.value.detach()
        gradient_T[token_T] += part.gradient_T.double()
        for name, stat in part.loss.stats.items():
            stats[name] = stats.get(name, 0) + torch.stack([stat.sum, stat.count])
    return total, gradient_T, stats


def micro_batches(keys: AlgorithmKeys, batch: Batch) -> None:
    algorithm, current, order = ready(keys, batch), moved(batch), by_lot(batch)
    batch = weighed(algorithm, batch)
    whole = step(algorithm, batch, current)
    size = 1 + int(10 * batch.lot_S[0]) % 3
    shares = [order[i : i + size] for i in range(0, len(order), size)]
    total, gradient_T, stats = summed(algorithm, batch, current, shares)
    same(total, whole.loss.value.detach())
    same(gradient_T, whole.gradient_T)
    for name, stat in whole.loss.stats.items():
        same(stats[name], torch.stack([stat.sum, stat.count]))


def ranks(keys: AlgorithmKeys, batch: Batch) -> None:
    algorithm, current, order = ready(keys, batch), moved(batch), by_lot(batch)
    batch = weighed(
        algorithm, batch
    )  # over the whole step: with denominators of its own a rank of few samples counts more
    gradient_T = torch.zeros_like(batch.seq_T, dtype=torch.float64)
    for rank in range(3):
        mine = order[rank::3]  # may be empty: its backward must run all the same
        gradient_T += summed(algorithm, batch, current, [mine[:2], mine[2:]])[1]
    same(gradient_T, step(algorithm, batch, current).gradient_T)


BROKEN = (math.nan, math.inf, -math.inf)
HUGE = (3e38, -3e38)
"""The edge of single precision: finite, and its square is not."""
STREAMS = ("reward_S", "prox_T", "behaviour_T", "ref_T", "values_T", "bootstrap_value_S", "logprobs_T")


def finite(keys: AlgorithmKeys, batch: Batch) -> None:
    if batch.seq_T.shape[0] == 0:
        return
    chosen = int(batch.seq_T[int(batch.lot_S.max() * batch.seq_T.shape[0])])
    token = int(tokens_of(batch, [chosen])[-1])
    without = _finite_step(keys, batch.with_(valid_S=torch.arange(batch.samples) != chosen), moved(batch))
    first = int(7 * batch.lot_S[0])
    for index in (first, first + 2, first + 4):
        stream = STREAMS[index % 7]
        for value in (BROKEN[index % 3], HUGE[index % 2]):
            dirty, current = _spoiled(batch, stream, chosen if stream.endswith("_S") else token, value)
            gradient_T = _finite_step(keys, dirty, current)
            read = stream != "bootstrap_value_S" or bool(batch.truncated_S[chosen])
            if read and not math.isfinite(value):
                assert not bool(gradient_T[batch.seq_T == chosen].any())
                # found out in the loss it is too late for the statistics, so there only the sample itself is gone
                assert stream == "logprobs_T" or torch.equal(gradient_T, without)


def _spoiled(batch: Batch, stream: str, at: int, value: float) -> tuple[Batch, Current]:
    current = moved(batch)
    spoiled = (current.logprobs_T if stream == "logprobs_T" else getattr(batch, stream)).clone()
    spoiled[at] = value
    if stream == "logprobs_T":
        return batch, replace(current, logprobs_T=spoiled)
    return batch.with_(**{stream: spoiled}), current


def _finite_step(keys: AlgorithmKeys, batch: Batch, current: Current) -> Tensor:
    """The gradient; every number on the way is finite."""
    algorithm = ready(keys, batch)
    credited = weighed(algorithm, batch)
    loss, gradient_T = step(algorithm, credited, current)
    for number in (credited.advantages_T, credited.weight_T, credited.score_S, gradient_T):
        assert bool(torch.isfinite(number).all())
    assert not bool(torch.isnan(loss.value))
    return gradient_T


def credit_twice(keys: AlgorithmKeys, batch: Batch) -> None:
    algorithm = ready(keys, batch)
    once = algorithm.credit(batch)
    again = algorithm.credit(once)
    assert torch.equal(once.advantages_T, again.advantages_T)
    assert torch.equal(once.score_S, again.score_S)
    assert once.advantages_T.dtype == once.score_S.dtype == torch.float64


def finite_differences(keys: AlgorithmKeys, batch: Batch) -> None:
    """Along one random direction."""
    algorithm, current = ready(keys, batch), moved(batch)
    batch = weighed(algorithm, batch)
    direction_T = torch.randn(batch.seq_T.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    slope = step(algorithm, batch, current).gradient_T @ direction_T
    # a straight-through estimator has the gradient of k2 by construction: k2 is the value to differentiate
    parts = [replace(p, estimator=k2) if _straight_through(p) else p for p in algorithm.penalties]
    algorithm = replace(algorithm, penalties=tuple(parts))
    values = [
        algorithm.loss(batch, replace(current, logprobs_T=current.logprobs_T + sign * 1e-6 * direction_T)).value
        for sign in (1, -1)
    ]
    same((values[0] - values[1]) / 2e-6, slope, 1e-6)


def _straight_through(penalty: Any) -> bool:
    return "k3_value_k2_grad" in str(penalty)


def ratio_one(keys: AlgorithmKeys, batch: Batch) -> None:
    batch = batch.with_(behaviour_T=batch.prox_T)
    algorithm = ready(keys, batch)
    batch = weighed(algorithm, batch)
    for at_start in (batch, batch.with_(prox_T=None)):
        same(step(algorithm, at_start, unmoved(batch)).gradient_T, -batch.weight_T * batch.advantages_T, 1e-12)


def without_eps(norm: NormConfig | None) -> NormConfig | None:
    """A number that is added to a deviation is in units of the reward, however small."""
    return None if norm is None else replace(norm, eps=0.0)


def _affine(keys: AlgorithmKeys, batch: Batch, slope: float, offset: float) -> None:
    keys = replace(keys, adv_norm=without_eps(keys.adv_norm), reward_norm=without_eps(keys.reward_norm))
    algorithm = ready(keys, batch)
    other = algorithm.credit(batch.with_(reward_S=slope * batch.reward_S.double() + offset))
    same(other.advantages_T, algorithm.credit(batch).advantages_T)


def reward_offset(keys: AlgorithmKeys, batch: Batch) -> None:
    _affine(keys, batch, 1.0, 0.3 + 4 * float(batch.lot_S[0]))


def reward_scale(keys: AlgorithmKeys, batch: Batch) -> None:
    _affine(keys, batch, 1.5 + 4 * float(batch.lot_S[0]), 0.0)


def constant_group(keys: AlgorithmKeys, batch: Batch) -> None:
    """Of the group of the first sample; the others keep their rewards."""
    in_group_S = batch.prompt_S == batch.prompt_S[0]
    for reward in (0.7, 1.0):
        alike = batch.with_(reward_S=torch.where(in_group_S, torch.tensor(reward, dtype=torch.float32), batch.reward_S))
        advantages_T = ready(keys, alike).credit(alike).advantages_T
        assert not bool(advantages_T[in_group_S[batch.seq_T]].any())


def group_sum(keys: AlgorithmKeys, batch: Batch) -> None:
    """Of samples that have tokens: an empty one has an advantage too, and no token to show it on."""
    total_S = torch.zeros(batch.samples, dtype=torch.float64)
    total_S.index_add_(0, batch.seq_T, ready(keys, batch).credit(batch).advantages_T)
    for prompt in batch.prompt_S.unique():
        in_group_S = batch.prompt_S == prompt
        if bool((batch.length_S[in_group_S] > 0).all()):
            same((total_S / batch.length_S.clamp(min=1))[in_group_S].sum(), torch.zeros(()))


def leave_one_out(keys: AlgorithmKeys, batch: Batch) -> None:
    centred = replace(keys, adv_norm=replace(keys.adv_norm, mean_leave1out=False))
    size_S = (batch.prompt_S[:, None] == batch.prompt_S).sum(1)
    scale_S = size_S.double() / (size_S - 1).clamp(min=1)
    expected_T = ready(centred, batch).credit(batch).advantages_T * scale_S[batch.seq_T]
    same(ready(keys, batch).credit(batch).advantages_T, expected_T)


def _gradients(keys: AlgorithmKeys, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, gradient and advantages on a policy that has moved far."""
    algorithm, current = ready(keys, batch), moved(batch, spread=1.0)
    batch = weighed(algorithm, batch)
    loss, gradient_T = step(algorithm, batch, current)
    return loss.value.detach(), gradient_T, batch.advantages_T


def dual_clip(keys: AlgorithmKeys, batch: Batch) -> None:
    _, plain_T, advantages_T = _gradients(replace(keys, c_clip=None), batch)
    _, dual_T, _ = _gradients(replace(keys, c_clip=1.3), batch)
    assert torch.equal(plain_T[advantages_T >= 0], dual_T[advantages_T >= 0])


def wide_band(keys: AlgorithmKeys, batch: Batch) -> None:
    wide = replace(keys, eps_clip=1e9, eps_clip_higher=1e9, eps_clip_rule=None)
    same(_gradients(wide, batch)[1], _gradients(replace(wide, gate="open"), batch)[1])


def soft_limit(keys: AlgorithmKeys, batch: Batch) -> None:
    cold = replace(keys, sapo_tau_pos=1e-6, sapo_tau_neg=1e-6)
    free = replace(keys, use_sapo_loss=False, gate="open")
    same(_gradients(cold, batch)[1], _gradients(free, batch)[1], 1e-6)


def one_token(keys: AlgorithmKeys, batch: Batch) -> None:
    batch = first_tokens(batch)
    expected = _gradients(replace(keys, importance_sampling_level="token"), batch)
    for level in ("sequence", "sequence_token", "sequence_product"):
        found = _gradients(replace(keys, importance_sampling_level=level), batch)
        same(found[0], expected[0])
        same(found[1], expected[1])


def same_sampler(keys: AlgorithmKeys, batch: Batch) -> None:
    batch = batch.with_(behaviour_T=batch.prox_T)
    plain = _gradients(replace(keys, use_decoupled_loss=False), batch)
    for found, expected in zip(_gradients(replace(keys, use_decoupled_loss=True), batch), plain, strict=True):
        assert torch.equal(found, expected)


def no_cap(keys: AlgorithmKeys, batch: Batch) -> None:
    batch = batch.with_(behaviour_T=batch.prox_T + 5 * (batch.behaviour_T - batch.prox_T))  # weights from 0.1 to 10
    alone = replace(keys, use_decoupled_loss=False)
    expected = _gradients(replace(alone, correction=CorrectionConfig("decoupled")), batch)
    for wide in (CorrectionConfig("tis", high=1e12), CorrectionConfig("icepop", low=1e-12, high=1e12)):
        for found, free in zip(_gradients(replace(alone, correction=wide), batch), expected, strict=True):
            assert torch.equal(found, free)


def discounted_return(keys: AlgorithmKeys, batch: Batch) -> None:
    batch = batch.with_(values_T=torch.zeros_like(batch.values_T))
    gae = replace(keys, gae_lambda=1.0, discount=0.9, adv_norm=None)
    expected_T = ready(replace(gae, credit="reward_to_go"), batch).credit(batch).advantages_T
    same(ready(gae, batch).credit(batch).advantages_T, expected_T)


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        sample_order, micro_batches, ranks, finite, credit_twice, finite_differences, ratio_one, reward_offset, reward_scale,
        constant_group, group_sum, leave_one_out, dual_clip, wide_band, soft_limit, one_token, same_sampler, no_cap,
        discounted_return,
    )
}  # fmt: skip
"""By the name of the property."""
