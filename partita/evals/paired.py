"""Two evaluations of the same prompts: how much one gained, how surely, and what that means in words.

Shapes: P prompts, one difference for each.
Left out: tests of several measures at once. Each p-value is that of its own measure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from partita.evals.estimators import paired_difference, prompt_differences
from partita.evals.intervals import Estimate

DRAWS = 20_000  # random sign flips, where all of them cannot be counted
MOST_STEPS = 200_000  # sums that are counted one by one
ALPHA = 0.05


@dataclass(frozen=True)
class Comparison:
    """The mean of (after - before) with its interval, and the chance of one as large in either direction if neither model
    were better. `exact`: that chance was counted, not drawn. `left_out`: prompts that have a score in one of the two only.
    """

    difference: Estimate
    p_value: float
    exact: bool
    left_out: int

    @property
    def shown(self) -> bool:
        """Whether chance alone would rarely give such a difference."""
        return self.p_value < ALPHA

    @property
    def p_text(self) -> str:
        """The p-value as it is printed: `= 0.0120`, `< 0.0001`."""
        return "< 0.0001" if self.p_value < 0.0001 else f"= {self.p_value:.4f}"


Scores = Mapping[str, Sequence[float]]
"""Scores of the samples by prompt id."""


def compare(
    before: Scores, after: Scores, *, shares: bool = False, confidence: float = 0.95, seed: int = 0
) -> Comparison:
    """Compare two evaluations on the prompts that both have; shares: see `paired_difference`. Raises ValueError where they
    share none.
    """
    both = [uid for uid in before if uid in after]
    if not both:
        raise ValueError("the two evaluations share no prompt that has a score in both")
    old, new = ({uid: side[uid] for uid in both} for side in (before, after))
    value, exact = sign_flip(prompt_differences(old, new), steps_of(old, new), seed=seed)
    left_out = len(before.keys() ^ after.keys())
    return Comparison(paired_difference(old, new, confidence=confidence, shares=shares), value, exact, left_out)


def sign_flip(differences: Sequence[float], steps: int | None = None, *, seed: int = 0) -> tuple[float, bool]:
    """Two-sided p-value of the hypothesis that each prompt's difference could as well have had the other sign, and whether it
    is exact (the randomisation test for pairs of Fisher 1935, "The Design of Experiments", chapter III).

    steps: a whole number that makes every difference whole when multiplied by it; then all 2^P sums are counted. With one
    right or wrong sample of each prompt this is McNemar's exact test. Otherwise `DRAWS` random flips of a fixed `seed`, with
    (1 + as large) / (1 + drawn), which is never 0 (Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero").
    """
    moved = np.array([one for one in differences if one != 0], np.float64)
    if len(moved) == 0:
        return 1.0, True
    if steps is not None and abs(moved).sum() * steps <= MOST_STEPS:
        return _counted(np.rint(abs(moved) * steps).astype(int), round(abs(moved.sum()) * steps)), True
    generator = np.random.Generator(np.random.Philox(key=seed))
    reached = abs(moved.sum()) * (1 - 1e-9)
    as_large = 0
    for _ in range(DRAWS // 1000):
        signs = generator.integers(0, 2, (1000, len(moved)), dtype=np.int8) * 2.0 - 1
        as_large += int((abs(signs @ moved) >= reached).sum())
    return (1 + as_large) / (1 + DRAWS), False


def _counted(sizes: NDArray[np.int64], reached: int) -> float:
    """The share of all signs of these whole numbers whose sum is at least `reached` in size."""
    total = int(sizes.sum())
    chance = np.zeros(2 * total + 1)  # of each sum, from -total on
    chance[total] = 1.0
    for size in sizes:
        moved = np.zeros_like(chance)
        moved[size:] += chance[: len(chance) - size] / 2
        moved[: len(chance) - size] += chance[size:] / 2
        chance = moved
    upper = float(chance[total + reached :].sum())
    return min(1.0, 2 * upper) if reached else 1.0


def steps_of(*sides: Scores) -> int | None:
    """The number that makes every prompt mean whole when multiplied by it; None where scores are not whole numbers."""
    rows = [row for side in sides for row in side.values()]
    if not all(float(score).is_integer() for row in rows for score in row):
        return None
    return math.lcm(*(Fraction(round(sum(row)), len(row)).denominator for row in rows))


def verdict(compared: Comparison, first: str, second: str) -> str:
    """One line: the difference `first` minus `second`, its interval, the p-value, and what it means."""
    found = compared.difference
    if found.mean == 0 and compared.p_value == 1:
        meaning = "both are alike"
    elif compared.shown:
        meaning = f"{first if found.mean > 0 else second} is better"
    else:
        meaning = f"no difference is shown: chance alone gives one as large in {100 * compared.p_value:.0f} of 100 evaluations"
    return f"difference on the same prompts: {found}, p {compared.p_text}: {meaning}"
