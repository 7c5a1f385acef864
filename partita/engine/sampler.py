"""Next tokens and their log-probs from logits: one uniform per row, cumulative sum, search.

Rows of one batch may be sampled in different ways (training at temperature 1 beside greedy evaluation). Log-probs are
always of the full softmax at the sampling temperature (at 1 for greedy), because that is what the trainer computes:
with a filter they are not those of the distribution that was sampled from.

Shapes: B rows, R the rows with filters, F forbidden ids, V vocabulary, C blocks of it, I tokens of a block.
Left out: random numbers (`engine.random`), penalties and bias terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from partita.engine.api import Sampling

# 0.5 + 0.3 must reach top_p 0.8 although float32 sums may fall a rounding short of it.
ROUNDING = 1e-6
BLOCK = 256


@dataclass(frozen=True)
class Knobs:
    """The sampling settings of a batch as tensors; each is None when no row needs it.

    temperature_B1 is 1 for greedy rows. rows_R are the rows with filters. forbidden_F are the stop ids of rows that are
    still below `min_new_tokens`, and forbids_BF says which row forbids which.
    """

    temperature_B1: Tensor | None
    greedy_B: Tensor | None
    rows_R: Tensor | None
    top_k_R: Tensor | None
    top_k_max: int
    top_p_R: Tensor | None
    min_p_R: Tensor | None
    forbidden_F: Tensor | None
    forbids_BF: Tensor | None

    @staticmethod
    def of(samplings: Sequence[Sampling], generated: Sequence[int], vocabulary: int, device: torch.device) -> Knobs:
        """Settings of B rows, of which row b has `generated[b]` tokens so far."""
        early = [n < s.min_new_tokens and bool(s.stop_ids) for s, n in zip(samplings, generated, strict=True)]
        rows = [b for b, s in enumerate(samplings) if s.top_k > 0 or s.top_p < 1 or s.min_p > 0]
        chosen = [samplings[b] for b in rows]

        def column(values: Sequence[float], neutral: float, dtype: torch.dtype) -> Tensor | None:
            if all(value == neutral for value in values):
                return None
            return torch.tensor(values, dtype=dtype, device=device)

        top_k = [s.top_k if s.top_k < vocabulary else 0 for s in chosen]
        banned = [set(s.stop_ids) if is_early else set[int]() for s, is_early in zip(samplings, early, strict=True)]
        forbidden = sorted(stop for stop in set[int]().union(*banned) if stop < vocabulary)
        forbids = [[stop in mine for stop in forbidden] for mine in banned] if forbidden else None
        temperature = column([s.temperature or 1.0 for s in samplings], 1.0, torch.float64)
        return Knobs(
            temperature_B1=None if temperature is None else temperature[:, None],
            greedy_B=column([s.temperature == 0 for s in samplings], False, torch.bool),
            rows_R=torch.tensor(rows, device=device) if rows else None,
            top_k_R=column(top_k, 0, torch.long),
            top_k_max=max(top_k, default=0),
            top_p_R=column([s.top_p if s.top_p < 1 else 2.0 for s in chosen], 2.0, torch.float64),  # 2: out of reach
            min_p_R=column([s.min_p for s in chosen], 0.0, torch.float64),
            forbidden_F=torch.tensor(forbidden, device=device) if forbidden else None,
            forbids_BF=torch.tensor(forbids, device=device) if forbids else None,
        )


def sample(logits_BV: Tensor, uniform_B: Tensor, knobs: Knobs) -> tuple[Tensor, Tensor]:
    """Token ids [B] and their full-softmax log-probs [B] (nats, dtype of the logits, which is at least float32).

    `uniform_B` is float64 in (0, 1). A token that is filtered out, or whose probability rounds to zero, is never drawn.
    """
    if knobs.temperature_B1 is not None:
        logits_BV = logits_BV / knobs.temperature_B1.to(logits_BV.dtype)
    allowed_BV, banned_BF = _without_forbidden(logits_BV, knobs)
    weights_BV = allowed_BV.softmax(-1)
    if knobs.rows_R is not None:
        weights_BV[knobs.rows_R] = _filtered(allowed_BV[knobs.rows_R], knobs)
    ids_B = draw(weights_BV, uniform_B)
    if knobs.greedy_B is not None:
        # of the logits, not of the weights: exponentials of nearly equal logits may round to the same number
        left_BV = allowed_BV if knobs.rows_R is None else allowed_BV.masked_fill(weights_BV == 0, -torch.inf)
        ids_B = torch.where(knobs.greedy_B, left_BV.argmax(-1), ids_B)
    if knobs.rows_R is None and banned_BF is None:
        return ids_B, weights_BV.gather(1, ids_B[:, None])[:, 0].log()
    normaliser_B1 = allowed_BV.logsumexp(-1, keepdim=True)
    if banned_BF is not None:  # the log-prob is of the full softmax, with what could not be drawn
        normaliser_B1 = torch.cat([normaliser_B1, banned_BF], 1).logsumexp(1, keepdim=True)
    return ids_B, (logits_BV.gather(1, ids_B[:, None]) - normaliser_B1)[:, 0]


def draw(weights_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Ids [B] drawn in proportion to non-negative weights, which need not sum to 1.

    The inverse of the cumulative distribution in two steps, first over the sums of blocks, then inside one block: a
    cumulative sum over the whole vocabulary is serial and takes longer than the softmax.
    """
    vocabulary = weights_BV.shape[1]
    whole = vocabulary - vocabulary % BLOCK
    sums = [weights_BV[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1)] if whole else []
    if whole < vocabulary:
        sums.append(weights_BV[:, whole:].sum(-1, keepdim=True))
    cumulative_BC = torch.cat(sums, 1).cumsum(1)
    target_B1 = uniform_B[:, None] * cumulative_BC[:, -1:].double()
    block_B1 = invert(cumulative_BC, target_B1)
    before_B1 = F.pad(cumulative_BC, (1, 0)).gather(1, block_B1)
    at_BI = block_B1 * BLOCK + torch.arange(BLOCK, device=weights_BV.device)
    inside_BI = weights_BV.gather(1, at_BI.clamp(max=vocabulary - 1)).masked_fill(at_BI >= vocabulary, 0)
    offset_B1 = invert(inside_BI.cumsum(1), target_B1 - before_B1)
    ids_B1 = (block_B1 * BLOCK + offset_B1).clamp_(max=vocabulary - 1)  # only weights that are not finite get there
    return ids_B1[:, 0]


def invert(cumulative_BN: Tensor, target_B1: Tensor) -> Tensor:
    """The first position [B, 1] whose cumulative weight exceeds the target, a float64 in [0, total) up to rounding.

    A target that rounding took to the total or beyond is put just below it: no position would exceed it. A position of
    zero weight adds nothing to the sum and so is never the first to exceed a target.
    """
    total_B1 = cumulative_BN[:, -1:]
    below_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))
    found_B1 = torch.searchsorted(cumulative_BN, torch.minimum(target_B1.to(total_B1.dtype), below_B1), right=True)
    return found_B1.clamp_(max=cumulative_BN.shape[1] - 1)  # only sums that are not finite get there


def _without_forbidden(logits_BV: Tensor, knobs: Knobs) -> tuple[Tensor, Tensor | None]:
    """The logits with forbidden ones at minus infinity, and those [B, F], the others at minus infinity."""
    if knobs.forbidden_F is None or knobs.forbids_BF is None:
        return logits_BV, None
    chosen_BF = logits_BV[:, knobs.forbidden_F]
    allowed_BV = logits_BV.clone()
    allowed_BV[:, knobs.forbidden_F] = chosen_BF.masked_fill(knobs.forbids_BF, -torch.inf)
    return allowed_BV, chosen_BF.masked_fill(~knobs.forbids_BF, -torch.inf)


def _filtered(logits_RV: Tensor, knobs: Knobs) -> Tensor:
    """Unnormalised probabilities after the filters, in vLLM's order: min-p, top-k, then top-p on what these leave."""
    weights_RV = (logits_RV - logits_RV.max(-1, keepdim=True).values).exp_()
    if knobs.min_p_R is not None:  # relative to the likeliest token, whose weight is 1
        weights_RV = weights_RV.masked_fill(weights_RV < knobs.min_p_R[:, None], 0)
    if knobs.top_k_R is not None:  # ties with the k-th are kept
        least_R1 = weights_RV.topk(knobs.top_k_max, -1).values.gather(1, (knobs.top_k_R[:, None] - 1).clamp(min=0))
        weights_RV = weights_RV.masked_fill((weights_RV < least_R1) & (knobs.top_k_R[:, None] > 0), 0)
    if knobs.top_p_R is not None:  # the smallest set of likeliest tokens that reaches top_p; ties go to lower ids
        sorted_RV, order_RV = weights_RV.sort(dim=-1, descending=True, stable=True)
        before_RV = sorted_RV.double().cumsum(-1) - sorted_RV
        reached_RV = before_RV >= (knobs.top_p_R[:, None] - ROUNDING) * sorted_RV.double().sum(-1, keepdim=True)
        reached_RV[:, 0] = False  # the likeliest token always stays
        weights_RV = weights_RV.masked_fill(reached_RV.gather(1, order_RV.argsort(-1)), 0)
    return weights_RV
