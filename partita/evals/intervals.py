"""Confidence intervals of means over prompts, right also near 0 and 1; `scripts/coverage.py` measures how often they hold.

Shapes: P prompts. A prompt is the unit: samples of one prompt are not independent, so what spreads is the prompts' means.
Left out: what is averaged (`estimators`) and tests of a difference (`paired`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Method = Literal["wilson", "clustered_wilson", "skewed_t", "paired"]
FEW = 1.3  # how many prompts it takes to believe their spread; chosen by simulation, see `effective_prompts`


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts and its confidence interval; `low` and `high` are None where nothing tells of the spread.

    `standard_error` is that of the prompt means, None for a single prompt. `method` says where the interval comes from.
    """

    mean: float
    low: float | None
    high: float | None
    standard_error: float | None
    prompts: int
    samples: int
    method: Method
    confidence: float

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            why = "one prompt" if self.prompts == 1 else "all prompts are alike"
            return f"{self.mean:.3f} (no interval: {why})"
        return f"{self.mean:.3f} ({100 * self.confidence:g} % interval {self.low:.3f} to {self.high:.3f})"


def of_shares(shares: Sequence[float], samples: int, *, confidence: float = 0.95) -> Estimate:
    """Mean of P values between 0 and 1 that were computed from `samples` samples in all, one value for each prompt.

    Wilson's score interval over as many independent trials as the prompts are worth; see `effective_prompts`. With one
    right or wrong sample of each prompt it is Wilson's own. Raises ValueError for no prompts and for values outside 0 to 1.
    """
    share_P = _values(shares)
    if share_P.min() < 0 or share_P.max() > 1:
        raise ValueError(f"shares lie between 0 and 1, not {share_P.min():g} to {share_P.max():g}")
    prompts, mean = len(share_P), float(share_P.mean())
    worth = effective_prompts(share_P, samples)
    low, high = wilson(mean * worth, worth, confidence=confidence)
    method: Method = "wilson" if samples == prompts else "clustered_wilson"
    return Estimate(mean, low, high, _standard_error(share_P), prompts, samples, method, confidence)


def effective_prompts(share_P: NDArray[np.float64], samples: int) -> float:
    """How many independent right-or-wrong trials would leave the mean of these shares as uncertain as it is.

    P by the design effect D, the variance of the shares by that of P right-or-wrong ones (Kish 1965, "Survey Sampling", with
    the prompt as unit; Korn and Graubard 1998, "Confidence Intervals for Proportions with Small Expected Number of Positive
    Counts", put the number into a binomial interval). D lies between P / samples (samples of a prompt are independent) and 1
    (they are all alike). Where few prompts tell D it is found too small: near 0 only those count that have anything right.
    With k of them (of weights x: (Σx)² / Σx²) D goes up to D + (1 - D) w with w = 1.3 / ((k-1)² + 1.3), so one prompt alone
    says nothing and D is 1. The 1.3 is ours, by simulation. All right or all wrong: P.
    """
    prompts, mean = len(share_P), float(share_P.mean())
    if mean in (0.0, 1.0):
        return float(prompts)
    design = min(max(float(share_P.var()) / (mean * (1 - mean)), prompts / samples), 1.0)
    rare_P = share_P if mean <= 0.5 else 1 - share_P
    telling = float(rare_P.sum() ** 2 / (rare_P @ rare_P))
    return prompts / (design + (1 - design) * FEW / ((telling - 1) ** 2 + FEW))


def of_scores(means: Sequence[float], samples: int, *, confidence: float = 0.95) -> Estimate:
    """Mean of P numbers on any scale, one mean for each prompt: Student's t, corrected for skewness.

    Hall 1992, "On the Removal of Skewness by Transformation", JRSS B 54, 221-228: the cubic transformation of t, which can
    be inverted. A rare large reward makes the plain interval miss on that side. No interval where all means are equal.
    """
    mean_P, low, high = _values(means), None, None
    prompts = len(mean_P)
    if mean_P.min() < mean_P.max():
        low, high = _skewed(mean_P, student_t(confidence, prompts - 1))
    return Estimate(float(mean_P.mean()), low, high, _standard_error(mean_P), prompts, samples, "skewed_t", confidence)


def of_differences(
    differences: Sequence[float], samples: int, *, confidence: float = 0.95, largest: float | None = None
) -> Estimate:
    """Mean of P differences, one for each prompt; `largest`: that between all right and all wrong, None for other scores.

    As `of_scores`. Of right-or-wrong samples with two prompts more, of which one gained and one lost as much as a typical one
    did (Σd² / Σ|d|; the largest where none did), after Bonett and Price 2012, "Adjusted Wald Confidence Interval for a
    Difference of Binomial Proportions Based on Paired Data", J. Educ. Behav. Stat. 37, 479-488: few prompts differ, and that
    none was seen to lose is no proof. The mean stays that of the differences themselves.
    """
    gain_P = _values(differences)
    if largest is None:
        return replace(of_scores(differences, samples, confidence=confidence), method="paired")
    prompts, moved, low, high = len(gain_P), float(abs(gain_P).sum()), None, None
    if prompts > 1:
        typical = float(gain_P @ gain_P) / moved if moved else largest
        low, high = _skewed(np.append(gain_P, [typical, -typical]), student_t(confidence, prompts - 1))
        low, high = max(low, -largest), min(high, largest)
    return Estimate(float(gain_P.mean()), low, high, _standard_error(gain_P), prompts, samples, "paired", confidence)


def _skewed(value_P: NDArray[np.float64], quantile: float) -> tuple[float, float]:
    """Hall's interval of the mean: the t of these values lies within ± `quantile` after the transformation."""
    count, mean = len(value_P), float(value_P.mean())
    off_P = value_P - mean
    second = float(off_P @ off_P) / count
    skewness = float((off_P**3).mean()) / second**1.5
    deviation, reach = math.sqrt(second * count / (count - 1)), quantile / math.sqrt(count)
    low, high = (mean - deviation * _untransformed(one, skewness, count) for one in (reach, -reach))
    return low, high


def _untransformed(value: float, skewness: float, count: int) -> float:
    """The t over the root of the count, whose transform t + γt²/3 + γ²t³/27 + γ/6n is `value`."""
    if abs(skewness) < 1e-6:
        return value
    return 3 / skewness * (math.cbrt(1 + skewness * (value - skewness / (6 * count))) - 1)


def wilson(successes: float, trials: float, *, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion of independent trials (Wilson 1927, "Probable Inference", JASA 22, 209-212).

    (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n): within 0 to 1, and of positive width for 0 or n successes. Trials may
    be effective ones, no whole number.
    """
    if trials <= 0 or not 0 <= successes <= trials:
        raise ValueError(f"wilson: {successes} successes of {trials} trials")
    z = NormalDist().inv_cdf(0.5 + _checked(confidence) / 2)
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    reach = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    # the formula is exact at both ends, its rounding is not
    return (0.0 if successes == 0 else centre - reach, 1.0 if successes == trials else centre + reach)


@lru_cache(maxsize=256)
def student_t(confidence: float, freedom: int) -> float:
    """The t with P(|T| <= t) = confidence for Student's distribution of `freedom` degrees of freedom.

    Bisection on the finite series of the probability (Abramowitz and Stegun 26.7.3 and 26.7.4); above 200 degrees the
    first two terms of the expansion around the normal quantile (26.7.5), good to 1e-5 there.
    """
    z = NormalDist().inv_cdf(0.5 + _checked(confidence) / 2)
    if freedom > 200:
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = 0.0, math.pi / 2  # of the angle atan(t / sqrt(freedom)), which stays bounded
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_probability(middle, freedom) < confidence else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(freedom)


def _t_probability(angle: float, freedom: int) -> float:
    """P(|T| <= tan(angle) sqrt(freedom)) (Abramowitz and Stegun 26.7.3 for odd, 26.7.4 for even degrees)."""
    odd = freedom % 2
    cosine = math.cos(angle)
    term, total = (cosine if odd else 1.0), 0.0
    for index in range(freedom // 2):
        total += term
        term *= cosine * cosine * ((2 * index + 2) / (2 * index + 3) if odd else (2 * index + 1) / (2 * index + 2))
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _values(given: Sequence[float]) -> NDArray[np.float64]:
    """Raises ValueError for none."""
    if len(given) == 0:
        raise ValueError("no prompts to average over")
    return np.asarray(given, dtype=np.float64)


def _standard_error(value_P: NDArray[np.float64]) -> float | None:
    """Of the mean; None for a single value."""
    count = len(value_P)
    return None if count < 2 else float(value_P.std(ddof=1)) / math.sqrt(count)


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")
    return confidence
