"""Reward placement, reward-to-go and generalised advantage estimation on packed tokens.

Shapes: T packed trained tokens, S samples. `seq_T` is non-decreasing: the tokens of a sample stand together, in order.
Left out: masks. Tool and prompt tokens are absent from a packed batch, so a recursion steps from one trained token to
the next, with one decay per trained token and none for what a tool wrote in between.
"""

from __future__ import annotations

import torch
from torch import Tensor


def last_token_T(seq_T: Tensor) -> Tensor:
    """True on the last trained token of each sample. A sample without tokens has none."""
    end = torch.ones(min(1, seq_T.shape[0]), dtype=torch.bool, device=seq_T.device)
    return torch.cat((seq_T[1:] != seq_T[:-1], end))


def place_at_end(reward_S: Tensor, seq_T: Tensor) -> Tensor:
    """One reward per sample, put on its last trained token; 0 elsewhere."""
    reward_T = reward_S[seq_T]
    return torch.where(last_token_T(seq_T), reward_T, torch.zeros_like(reward_T))


def reward_to_go(reward_T: Tensor, seq_T: Tensor, discount: float) -> Tensor:
    """G_t = r_t + discount · G_(t+1) within a sample, in float64.

    A doubling scan: after step j every token holds the discounted sum of its next 2^j rewards, so the whole batch takes
    log2(T) vector operations instead of a loop over tokens.
    """
    to_go_T = reward_T.to(torch.float64)
    total, step, factor = seq_T.shape[0], 1, discount
    while step < total:
        same_T = seq_T[step:] == seq_T[:-step]  # sorted, so equal ends mean that all between are equal too
        later_T = torch.where(same_T, to_go_T[step:], 0.0)
        to_go_T = torch.cat((to_go_T[:-step] + factor * later_T, to_go_T[-step:]))
        step, factor = 2 * step, factor * factor
    return to_go_T


def gae(
    reward_T: Tensor,
    values_T: Tensor,
    seq_T: Tensor,
    bootstrap_value_S: Tensor | None,
    discount: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, both [T] float64 (Schulman et al. 2015, arXiv 1506.02438, equation 16).

    δ_t = r_t + γ V(s_(t+1)) - V(s_t); A_t = δ_t + γλ A_(t+1); return_t = A_t + V(s_t). `values_T` holds the value of
    the state before each token; after the last token it is `bootstrap_value_S` (0 for a sample that ended by itself),
    or 0 for all where that is None.
    """
    values_T = values_T.to(torch.float64)
    end_T = torch.zeros_like(values_T) if bootstrap_value_S is None else bootstrap_value_S.to(torch.float64)[seq_T]
    next_T = torch.where(last_token_T(seq_T), end_T, torch.roll(values_T, -1))
    delta_T = reward_T.to(torch.float64) + discount * next_T - values_T
    advantages_T = reward_to_go(delta_T, seq_T, discount * gae_lambda)
    return advantages_T, advantages_T + values_T
