"""How many samples each prompt of a round gets: more where the policy is still undecided, within fixed bounds.

Shapes: P prompts.
Left out: the scores. Where they come from and how long they are remembered is the rollouts' business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def allocate(score_P: Sequence[float], budget: int, low: int, high: int) -> list[int]:
    """Samples per prompt [P], `low` to `high` each, `budget` in sum.

    Each prompt gets `low`; the rest is split in proportion to the scores (evenly where all are 0) by floor and largest
    remainder, ties by index; what exceeds `high` goes to the others in the same way. Scores are at least 0, in any unit.
    Raises ValueError when no such sizes exist, and for a score that is negative or not finite.
    """
    _check(score_P, budget, low, high)
    size_P = [low] * len(score_P)
    while rest := budget - sum(size_P):
        room = [p for p, size in enumerate(size_P) if size < high]
        for p, more in zip(room, _apportion([score_P[p] for p in room], rest), strict=True):
            size_P[p] = min(high, size_P[p] + more)
    return size_P


def _apportion(score_P: Sequence[float], total: int) -> list[int]:
    """`total` seats by largest remainder (Hamilton's method), exactly: in floats a remainder may win by rounding alone."""
    share_P = [Fraction(score) for score in score_P] if any(score_P) else [Fraction(1)] * len(score_P)
    quota_P = [total * share / sum(share_P) for share in share_P]
    seats_P = [math.floor(quota) for quota in quota_P]
    by_remainder = sorted(range(len(quota_P)), key=lambda p: (seats_P[p] - quota_P[p], p))
    for p in by_remainder[: total - sum(seats_P)]:
        seats_P[p] += 1
    return seats_P


def _check(score_P: Sequence[float], budget: int, low: int, high: int) -> None:
    prompts = len(score_P)
    if not low * prompts <= budget <= high * prompts:
        raise ValueError(
            f"{budget} samples cannot be split over {prompts} prompts of {low} to {high} samples each: "
            f"that takes {low * prompts} to {high * prompts}"
        )
    for p, score in enumerate(score_P):
        if not 0 <= score < math.inf:
            raise ValueError(f"the score of prompt {p} is {score}; scores are finite and at least 0")
