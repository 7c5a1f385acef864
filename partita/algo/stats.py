"""What a loss reports: sums with counts, so that adding over micro-batches, minibatches and ranks gives the true mean.

Shapes: T packed trained tokens.
Left out: means. A mean of micro-batch means weighs a short micro-batch like a long one; whoever reports divides once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from partita.algo.tokens import Tokens
from partita.ops.divergence import LOG_RATIO_LIMIT, clamp_log_ratio, k3


class Stat(NamedTuple):
    """One metric as 0-d tensors: mean = sum / count, over any number of added parts."""

    sum: Tensor
    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]


Stats = dict[str, Stat]


def mean_over(value_N: Tensor, counted_N: Tensor) -> Stat:
    """The mean of the counted values (tokens or samples), as float64 sum and count."""
    value_N = value_N.detach().to(torch.float64)
    return Stat(torch.where(counted_N, value_N, 0.0).sum(), counted_N.sum().to(torch.float64))


@torch.no_grad()
def loss_stats(tokens: Tokens, clipped: Mapping[str, Tensor]) -> Stats:
    """Divergences, ratio and clip fractions of one micro-batch, per live token.

    `kl_step/k3` is KL(old ‖ new), what the optimizer steps moved; `mismatch/k3` is KL(sampler ‖ trainer) for the same
    weights, what the engine's arithmetic costs; `kl_ref/k3` is KL(new ‖ reference). `clipped` names tokens whose
    gradient a gate has cut, which depends on the sign of the advantage.
    """
    log_ratio_T = tokens.logprobs_T - tokens.prox_T
    found = {
        "ratio": torch.exp(clamp_log_ratio(log_ratio_T)),
        "ratio_clamped": log_ratio_T.abs() > LOG_RATIO_LIMIT,
        "kl_step/k3": k3(-log_ratio_T),
    }
    if tokens.behaviour_T is not None:
        found["mismatch/k3"] = k3(tokens.behaviour_T - tokens.prox_T)
    if tokens.ref_T is not None:
        found["kl_ref/k3"] = k3(tokens.logprobs_T - tokens.ref_T)
    if tokens.entropy_T is not None:
        found["entropy"] = tokens.entropy_T
    if clipped:
        found |= {f"clip_fraction/{side}": clipped_T for side, clipped_T in clipped.items()}
        found["clip_fraction"] = torch.stack(tuple(clipped.values())).any(0)
    stats = {name: mean_over(value_T, tokens.live_T) for name, value_T in found.items()}
    # of the tokens that carry weight, how many belong to a sample that had to be left out
    stats["nonfinite_logprobs"] = mean_over(~tokens.live_T, tokens.weighted_T)
    return stats
