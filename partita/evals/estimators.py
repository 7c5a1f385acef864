"""What an evaluation says and how surely: means over prompts with intervals, paired differences, pass@k, maj@k.

Shapes: P prompts, K samples of a prompt (it may differ between prompts).
A prompt is the unit: samples of one prompt are not independent, so standard errors are those of the prompt means.
Left out: sampling and grading. A sample whose reward failed has no score and must be left out before it comes here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist, stdev
from typing import Literal

Method = Literal["wilson", "clustered"]


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts and its confidence interval; `low` and `high` are None where the spread is unknown.

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
            return f"{self.mean:.3f} (no interval: one prompt)"
        return f"{self.mean:.3f} ({100 * self.confidence:g} % interval {self.low:.3f} to {self.high:.3f})"


def avg_at_k(scores: Sequence[Sequence[float]], *, confidence: float = 0.95) -> Estimate:
    """Mean score over prompts (avg@K), each prompt counting the same whatever its number of samples.

    The interval is Student's t over the P prompt means, that is with standard errors clustered by prompt (Miller 2024,
    "Adding Error Bars to Evals", arXiv 2411.00640, section 2). For 0/1 scores it is Wilson's over prompts where that
    one knows more: with one sample a prompt, and when all prompt means are equal (all right, all wrong), where they do
    not spread but doubt remains. Raises ValueError for no prompts, a prompt without scores, a score that is not finite.
    """
    means = _prompt_means(scores)
    samples = sum(len(row) for row in scores)
    mean, error = sum(means) / len(means), _standard_error(means)
    binary = all(score in (0.0, 1.0) for row in scores for score in row)
    if binary and (samples == len(means) or error == 0.0 or mean in (0.0, 1.0)):
        low, high = wilson(mean * len(means), len(means), confidence=confidence)
        return Estimate(mean, low, high, error, len(means), samples, "wilson", confidence)
    estimate = _clustered(means, samples, confidence)
    return _within(estimate, 0.0, 1.0) if binary else estimate


def paired_difference(
    before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]], *, confidence: float = 0.95
) -> Estimate:
    """Mean of (after - before) over the same prompts, by prompt id, with Student's t interval of the differences.

    Pairing takes out how hard each prompt is, so the interval is narrower than that of two separate means (Miller 2024,
    arXiv 2411.00640, section on paired analysis). `samples` counts those of `after`. Raises ValueError when the ids
    differ.
    """
    if before.keys() != after.keys():
        lone = sorted(before.keys() ^ after.keys())
        raise ValueError(
            f"only evaluations of the same prompts can be paired; {len(lone)} prompts are in one of the two only: "
            + ", ".join(lone[:3])
        )
    ids = list(before)
    old, new = _prompt_means([before[i] for i in ids]), _prompt_means([after[i] for i in ids])
    return _clustered([b - a for a, b in zip(old, new, strict=True)], sum(len(after[i]) for i in ids), confidence)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that k samples, drawn without replacement from n of which `correct` are right, hold a right one.

    1 - C(n - c, k) / C(n, k), the unbiased estimate of the chance with k fresh samples (Chen et al. 2021, "Evaluating
    Large Language Models Trained on Code", arXiv 2107.03374, equation 1). Raises ValueError for k above n, where it is
    undefined.
    """
    if not 0 <= correct <= n:
        raise ValueError(f"pass@k: {correct} correct of {n} samples")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} is undefined for {n} samples: k must lie between 1 and the number of samples")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_at_k_over_prompts(correct: Sequence[Sequence[bool]], k: int, *, confidence: float = 0.95) -> Estimate:
    """Mean of `pass_at_k` over prompts and its interval. Raises ValueError when a prompt has fewer than k samples."""
    passed = [[pass_at_k(len(row), sum(row), k)] for row in correct]
    # one sample is pass@1, whose prompt means are those of the samples themselves
    estimate = avg_at_k(correct if k == 1 else passed, confidence=confidence)
    return replace(_within(estimate, 0.0, 1.0), samples=sum(len(row) for row in correct))


def maj_at_k(answers: Sequence[str | None], gold: str, k: int) -> float:
    """Chance that the majority answer of k samples, drawn without replacement from these, is `gold`.

    Exact over all C(n, k) subsets (self-consistency, Wang et al. 2022, arXiv 2203.11171, as an expectation). A tie is
    won by each of its answers with equal chance. None, an answer that could not be parsed, does not vote but is drawn;
    k of them give 0. Answers are compared as they are: normalise them before. Raises ValueError for k above n, where it
    is undefined.
    """
    n = len(answers)
    if not 1 <= k <= n:
        raise ValueError(f"maj@{k} is undefined for {n} samples: k must lie between 1 and the number of samples")
    votes = Counter(answer for answer in answers if answer is not None)
    unparsed, right = n - votes.total(), votes.pop(gold, 0)
    won = Fraction(0)
    for most in range(1, min(right, k) + 1):
        drawn = math.comb(right, most)
        for (others, ties), ways in _drawn_under(votes.values(), most, k - most).items():
            rest = k - most - others
            won += Fraction(drawn * ways * math.comb(unparsed, rest), ties + 1)
    return float(won / math.comb(n, k))


def _drawn_under(counts: Iterable[int], most: int, room: int) -> dict[tuple[int, int], int]:
    """In how many ways at most `room` samples can be drawn from answers that often given, none more than `most` times.

    By how many are drawn and how many answers are drawn exactly `most` times.
    """
    ways = {(0, 0): 1}
    for count in counts:
        further: Counter[tuple[int, int]] = Counter()
        for (drawn, ties), way in ways.items():
            for votes in range(min(count, most, room - drawn) + 1):
                further[drawn + votes, ties + (votes == most)] += way * math.comb(count, votes)
        ways = dict(further)
    return ways


def wilson(successes: float, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion of independent trials (Wilson 1927, "Probable Inference", JASA 22, 209-212).

    (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n): within 0 to 1, and of positive width for 0 or n successes.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"wilson: {successes} successes of {trials} trials")
    z = NormalDist().inv_cdf(0.5 + _checked(confidence) / 2)
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    reach = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    # the formula is exact at both ends, its rounding is not
    return (0.0 if successes == 0 else centre - reach, 1.0 if successes == trials else centre + reach)


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


def _clustered(means: Sequence[float], samples: int, confidence: float) -> Estimate:
    mean, error = sum(means) / len(means), _standard_error(means)
    reach = None if error is None else error * student_t(confidence, len(means) - 1)
    low, high = (None, None) if reach is None else (mean - reach, mean + reach)
    return Estimate(mean, low, high, error, len(means), samples, "clustered", confidence)


def _within(estimate: Estimate, low: float, high: float) -> Estimate:
    if estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(estimate.low, low), high=min(estimate.high, high))


def _prompt_means(scores: Sequence[Sequence[float]]) -> list[float]:
    if not scores:
        raise ValueError("no prompts to average over")
    for index, row in enumerate(scores):
        if not row:
            raise ValueError(f"prompt {index} has no scores; leave it out and report how many were left out")
        if not all(math.isfinite(score) for score in row):
            raise ValueError(f"prompt {index} has a score that is not finite: {list(row)}")
    return [sum(row) / len(row) for row in scores]


def _standard_error(means: Sequence[float]) -> float | None:
    return stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")
    return confidence
