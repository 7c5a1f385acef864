"""What samples say of a model: mean scores, pass@k and maj@k, each a mean over prompts with its interval.

Shapes: P prompts, n samples of a prompt (it may differ between prompts), k of which are drawn.
Left out: sampling and grading. A sample whose reward failed has no score and must be left out before it comes here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import fmean

from partita.evals.intervals import Estimate, of_differences, of_scores, of_shares


def avg_at_k(scores: Sequence[Sequence[float]], *, confidence: float = 0.95) -> Estimate:
    """Mean score over prompts, each prompt counting the same whatever its number of samples (Miller 2024, "Adding Error Bars
    to Evals", arXiv 2411.00640, section 2). For 0/1 scores that is avg@n, the mean accuracy.

    Of scores that take two whole values, 0/1 or others (-1/+1), the interval is that of a share, which is right near its ends
    (`intervals.of_shares`); of other scores Student's t, corrected for skewness (`intervals.of_scores`). Raises ValueError for
    no prompts, a prompt without scores, a score that is not finite.
    """
    means, samples = _prompt_means(scores), sum(len(row) for row in scores)
    values = sorted({float(score) for row in scores for score in row})
    if set(values) <= {0.0, 1.0}:
        return of_shares(means, samples, confidence=confidence)
    if len(values) != 2 or not all(value.is_integer() for value in values):
        return of_scores(means, samples, confidence=confidence)
    bottom, width = values[0], values[1] - values[0]
    shares = [fmean([score == values[1] for score in row]) for row in scores]
    return _rescaled(of_shares(shares, samples, confidence=confidence), fmean(means), bottom, width)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that k samples, drawn without replacement from n of which `correct` are right, hold a right one.

    1 - C(n - c, k) / C(n, k), the unbiased estimate of the chance with k fresh samples (Chen et al. 2021, "Evaluating
    Large Language Models Trained on Code", arXiv 2107.03374, equation 1), in whole numbers and rounded once. Raises
    ValueError for k above n, where it is undefined.
    """
    if not 0 <= correct <= n:
        raise ValueError(f"pass@k: {correct} correct of {n} samples")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} is undefined for {n} samples: k must lie between 1 and the number of samples")
    ways = math.comb(n, k)
    return (ways - math.comb(n - correct, k)) / ways


def pass_at_k_over_prompts(correct: Sequence[Sequence[bool]], k: int, *, confidence: float = 0.95) -> Estimate:
    """Mean of `pass_at_k` over prompts and its interval. Raises ValueError when a prompt has fewer than k samples."""
    passed = [pass_at_k(len(row), sum(row), k) for row in correct]
    return of_shares(passed, sum(len(row) for row in correct), confidence=confidence)


def maj_at_k(answers: Sequence[str | None], gold: str, k: int) -> float:
    """Chance that the majority answer of k samples, drawn without replacement from these, is `gold`.

    Exact over all C(n, k) subsets (self-consistency, Wang et al. 2022, arXiv 2203.11171, as an expectation). With k = n it is
    what the samples at hand agree on, also called cons@n. A tie is won by each of its answers with equal chance. None, an
    answer that could not be read, does not vote but is drawn; k of them give 0. Answers are compared as they are: normalise
    them before. Raises ValueError for k above n, where it is undefined.
    """
    n = len(answers)
    if not 1 <= k <= n:
        raise ValueError(f"maj@{k} is undefined for {n} samples: k must lie between 1 and the number of samples")
    votes = Counter(answer for answer in answers if answer is not None)
    right = votes.pop(gold, 0)
    won = Fraction(0)
    for most in range(1, min(right, k) + 1):
        drawn = math.comb(right, most)
        rivals = [count for count in votes.values() if count >= most]
        others = n - right - sum(rivals)  # whose answer cannot reach `most` votes, or who have none
        for (taken, ties), ways in _drawn_under(rivals, most, k - most).items():
            won += Fraction(drawn * ways * math.comb(others, k - most - taken), ties + 1)
    return float(won / math.comb(n, k))


def maj_at_k_over_prompts(
    answers: Sequence[Sequence[str | None]], golds: Sequence[str], k: int, *, confidence: float = 0.95
) -> Estimate:
    """Mean of `maj_at_k` over prompts and its interval. Raises ValueError when a prompt has fewer than k samples."""
    found = [maj_at_k(row, gold, k) for row, gold in zip(answers, golds, strict=True)]
    return of_shares(found, sum(len(row) for row in answers), confidence=confidence)


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


def paired_difference(
    before: Mapping[str, Sequence[float]],
    after: Mapping[str, Sequence[float]],
    *,
    confidence: float = 0.95,
    shares: bool = False,
) -> Estimate:
    """Mean of (after - before) over the same prompts, by prompt id, with its interval (`intervals.of_differences`).

    Pairing takes out how hard each prompt is, so the interval is narrower than that of two separate means (Miller 2024,
    arXiv 2411.00640, section on paired analysis). `samples` counts those of `after`. shares: the scores are made of
    right-or-wrong samples, as 0/1 scores are known to be. Raises ValueError when the ids differ, and for what `avg_at_k` refuses.
    """
    differences = prompt_differences(before, after)
    shares = shares or all(score in (0.0, 1.0) for side in (before, after) for row in side.values() for score in row)
    samples = sum(map(len, after.values()))
    return of_differences(differences, samples, confidence=confidence, largest=1.0 if shares else None)


def prompt_differences(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> list[float]:
    """Each prompt's mean in `after` minus that in `before`, in the order of `before`. Raises ValueError when the ids differ."""
    if before.keys() != after.keys():
        lone = sorted(before.keys() ^ after.keys())
        raise ValueError(
            f"only evaluations of the same prompts can be paired; {len(lone)} prompts are in one of the two only: "
            + ", ".join(lone[:3])
        )
    old, new = (_prompt_means([side[uid] for uid in before]) for side in (before, after))
    return [b - a for a, b in zip(old, new, strict=True)]


def _rescaled(estimate: Estimate, mean: float, bottom: float, width: float) -> Estimate:
    """An estimate of the share of a score's upper value as one of the score."""
    low, high, error = (
        None if value is None else value * width for value in (estimate.low, estimate.high, estimate.standard_error)
    )
    ends = [None if value is None else bottom + value for value in (low, high)]
    return replace(estimate, mean=mean, low=ends[0], high=ends[1], standard_error=error)


def _prompt_means(scores: Sequence[Sequence[float]]) -> list[float]:
    if not scores:
        raise ValueError("no prompts to average over")
    for index, row in enumerate(scores):
        if not row:
            raise ValueError(f"prompt {index} has no scores; leave it out and report how many were left out")
        if not all(math.isfinite(score) for score in row):
            raise ValueError(f"prompt {index} has a score that is not finite: {list(row)}")
    return [sum(row) / len(row) for row in scores]
