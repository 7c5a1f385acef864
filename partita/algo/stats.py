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

LOSS_METRICS = (
    "clip_fraction", "correction/", "entropy", "kl_ref/", "kl_step/", "mismatch/", "nonfinite_logprobs", "ratio",
    "value/",
)  # fmt: skip
"""How the names of all that a loss reports begin: they are over the samples that it was computed for."""


def iqr(value_N: Tensor) -> Tensor:
    """Interquartile range, 0-d float64, with linear interpolation between order statistics; 0 for no values."""
    if value_N.shape[0] == 0:
        return torch.zeros((), dtype=torch.float64)
    quarters = torch.tensor([0.25, 0.75], dtype=torch.float64)
    low, high = torch.quantile(value_N.detach().to(torch.float64).cpu(), quarters)
    return high - low


def mean_over(value_N: Tensor, counted_N: Tensor) -> Stat:
    """The mean of the counted values (tokens or samples), as float64 sum and count."""
    value_N = value_N.detach().to(torch.float64)
    return Stat(torch.where(counted_N, value_N, 0.0).sum(), counted_N.sum().to(torch.float64))


def per_sequence(value_T: Tensor, tokens: Tokens) -> Stat:
    """The mean over live samples of the sum over their tokens, as float64 sum and count."""
    total = torch.where(tokens.live_T, value_T.detach(), 0.0).to(torch.float64).sum()
    return Stat(total, (torch.bincount(tokens.seq_T[tokens.live_T]) > 0).sum().to(torch.float64))


@torch.no_grad()
def loss_stats(tokens: Tokens, clipped: Mapping[str, Tensor]) -> Stats:
    """Divergences, ratio and clip fractions of one micro-batch, per live token.

    `kl_step/k3` is KL(old ‖ new), what the optimizer steps moved; `mismatch/k3` is KL(sampler ‖ trainer) for the same
    weights, what the engine's arithmetic costs; `kl_ref/k3` is KL(new ‖ reference) per token, `kl_ref/sequence` its k1
    estimate summed over a sample. `clipped` names tokens whose
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
        found["entropy"] = torch.where(torch.isfinite(tokens.entropy_T), tokens.entropy_T, 0.0)
    if clipped:
        found |= {f"clip_fraction/{side}": clipped_T for side, clipped_T in clipped.items()}
        # not the dual clip: no clip range changes what it cuts
        sides = [clipped_T for side, clipped_T in clipped.items() if side != "dual"]
        found["clip_fraction"] = torch.stack(sides).any(0)
    stats = {name: mean_over(value_T, tokens.live_T) for name, value_T in found.items()}
    if tokens.ref_T is not None:
        stats["kl_ref/sequence"] = per_sequence(tokens.logprobs_T - tokens.ref_T, tokens)
    # of the tokens that carry weight, how many belong to a sample that had to be left out
    stats["nonfinite_logprobs"] = mean_over(~tokens.live_T, tokens.weighted_T)
    return stats


@torch.no_grad()
def correction_stats(tokens: Tokens, correction_T: Tensor) -> Stats:
    """Behaviour weights of one micro-batch: their mean and mean square, and the share of tokens that is masked.

    The effective sample size is mean² / mean square of the tokens.
    """
    return {
        "correction/weight": mean_over(correction_T, tokens.live_T),
        "correction/weight_squared": mean_over(correction_T.square(), tokens.live_T),
        "correction/masked": mean_over(correction_T == 0, tokens.live_T),
    }
