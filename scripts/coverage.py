"""How often the 95 % intervals of `partita eval` hold what they should, by simulation: the tables of docs/evaluation.md.

usage: python scripts/coverage.py [--runs 10000]    (about five minutes on one core)

Prompts are drawn with a pass rate each, samples of a prompt with that rate. `alike` is how alike the samples of a prompt are
(their intra-class correlation): 0 gives every prompt the mean rate, towards 1 prompts are solved always or never. Rates of
prompts follow a beta distribution. Every random number is of a fixed seed: the same tables each time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from partita.evals.estimators import pass_at_k
from partita.evals.intervals import Estimate, of_differences, of_scores, of_shares, student_t

Floats = NDArray[np.float64]
Interval = tuple[Floats, Floats]
PROMPTS, SAMPLES = (100, 300, 1000), (1, 4, 16)
RATES = (0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98)
ALIKE = (0.0, 0.1, 0.3, 0.6, 0.9)
MANY = 2_000_000  # prompts whose mean stands for the truth where no formula does


@dataclass(frozen=True)
class Case:
    """A simulated evaluation: so many prompts and samples of each, the mean pass rate, how alike samples of a prompt are."""

    prompts: int
    samples: int
    rate: float
    alike: float

    def rates(self, rng: np.random.Generator, *shape: int) -> Floats:
        """Pass rates of prompts."""
        if self.alike == 0:
            return np.full(shape, self.rate)
        weight = 1 / self.alike - 1
        return rng.beta(self.rate * weight, (1 - self.rate) * weight, shape)

    def shares(self, rng: np.random.Generator, runs: int) -> Floats:
        """The share of right samples [runs, prompts]."""
        return rng.binomial(self.samples, self.rates(rng, runs, self.prompts)) / self.samples


def cases(prompts: Sequence[int] = PROMPTS, samples: Sequence[int] = SAMPLES) -> list[Case]:
    """All cases of some sizes. One sample of a prompt is never alike to another."""
    found = product(prompts, samples, RATES, ALIKE)
    return [Case(*one) for one in found if one[1] > 1 or one[3] == 0]


def rng_of(seed: int) -> np.random.Generator:
    """A counter-based generator."""
    return np.random.Generator(np.random.Philox(key=seed))


def ours(values: Floats, estimate: Callable[[Sequence[float]], Estimate]) -> Interval:
    """Ends of the interval of each row."""
    found = [estimate(row) for row in values]
    return np.array([one.low for one in found], np.float64), np.array([one.high for one in found], np.float64)


def plain_t(values: Floats) -> Interval:
    """Student's t of the prompt means."""
    prompts, mean = values.shape[1], values.mean(1)
    reach = student_t(0.95, prompts - 1) * values.std(1, ddof=1) / np.sqrt(prompts)
    return mean - reach, mean + reach


def bootstrap(values: Floats, draws: int = 1000) -> Interval:
    """The percentile interval of prompts drawn with replacement."""
    prompts = values.shape[1]
    weights = rng_of(1).multinomial(prompts, np.full(prompts, 1 / prompts), draws) / prompts
    low, high = np.quantile(values @ weights.T, (0.025, 0.975), axis=1)
    return low, high


def held(interval: Interval, truth: float) -> float:
    """Per cent of intervals that hold the truth; one that could not be given holds nothing."""
    low, high = interval
    rounding = 1e-12
    return 100 * float(((low <= truth + rounding) & (truth - rounding <= high)).mean())


def of_rates(case: Case, runs: int, seed: int = 0) -> float:
    """Per cent of the intervals of avg@n that hold the mean pass rate."""
    shares = case.shares(rng_of(seed), runs)
    return held(ours(shares, partial(of_shares, samples=case.prompts * case.samples)), case.rate)


def of_passes(case: Case, k: int, runs: int, seed: int = 0) -> tuple[float, float]:
    """The true pass@k, and per cent of its intervals that hold it."""
    rng, n = rng_of(seed), case.samples
    truth = float(1 - ((1 - case.rates(rng, MANY)) ** k).mean())
    table = np.array([pass_at_k(n, right, k) for right in range(n + 1)])
    passes = table[np.rint(case.shares(rng, runs) * n).astype(int)]
    return truth, held(ours(passes, partial(of_shares, samples=case.prompts * n)), truth)


def of_gains(case: Case, shift: float, runs: int, seed: int = 0) -> tuple[float, float, float]:
    """A second model whose log-odds are larger by `shift`: the true gain; per cent of our intervals, and of t's, that hold it."""
    rng, n = rng_of(seed), case.samples
    many = case.rates(rng, MANY)
    truth = float((shifted(many, shift) - many).mean())
    rates = case.rates(rng, runs, case.prompts)
    gains = (rng.binomial(n, shifted(rates, shift)) - rng.binomial(n, rates)) / n
    found = ours(gains, partial(of_differences, samples=case.prompts * n, largest=1.0))
    return truth, held(found, truth), held(plain_t(gains), truth)


def shifted(rates: Floats, shift: float) -> Floats:
    """Rates with larger log-odds."""
    inside = np.clip(rates, 1e-12, 1 - 1e-12)
    return 1 / (1 + (1 - inside) / inside * np.exp(-shift))


def graded(kind: str, case: Case, rng: np.random.Generator, runs: int) -> tuple[Floats, float]:
    """Mean rewards [runs, prompts] and their true mean: right 1 beside format 0.2; a rare penalty of 5; log-normal."""
    shape = (runs, case.prompts, case.samples)
    if kind == "log-normal":
        means = np.exp(rng.normal(size=(*shape[:2], 1)) * 0.5 + rng.normal(size=shape) * 0.8).mean(2)
        return means, float(np.exp((0.25 + 0.64) / 2))
    hit = rng.random(shape) < case.rates(rng, runs, case.prompts)[:, :, None]
    if kind == "right and format":
        return (hit + 0.2 * (rng.random(shape) < 0.8)).mean(2), case.rate + 0.16
    return np.where(hit, -5.0, rng.random(shape)).mean(2), -5 * case.rate + 0.5 * (1 - case.rate)


def rate_table(runs: int) -> Iterator[str]:
    """avg@n: the lowest and the highest coverage over rates and likeness, beside t and the bootstrap (on fewer runs)."""
    yield from header("prompts", "samples", "lowest", "highest", "mean", "lowest of t", "lowest of bootstrap")
    for prompts, samples in product((30, *PROMPTS), SAMPLES):
        some = cases([prompts], [samples])
        found = [of_rates(case, runs) for case in some]
        few = [(case.shares(rng_of(0), min(runs, 1000)), case.rate) for case in some]
        others = [min(held(method(shares), rate) for shares, rate in few) for method in (plain_t, bootstrap)]
        yield line(prompts, samples, min(found), max(found), float(np.mean(found)), *others)


def pass_table(runs: int) -> Iterator[str]:
    """pass@4 of 16 samples, where it lies between 0.02 and 0.98."""
    yield from header("prompts", "pass@4 of 16 samples", "lowest", "highest")
    for prompts in PROMPTS:
        found = [of_passes(Case(prompts, 16, *one), 4, runs) for one in product((0.01, 0.05, 0.2, 0.5), ALIKE)]
        truths, covered = zip(*((truth, share) for truth, share in found if 0.02 <= truth <= 0.98), strict=True)
        yield line(prompts, f"{min(truths):.2f} to {max(truths):.2f}", min(covered), max(covered))


def gain_table(runs: int) -> Iterator[str]:
    """Differences of two models on the same prompts, one of them no better or with 1 more in log-odds."""
    yield from header("prompts", "samples", "gain", "lowest", "highest", "lowest of t")
    for prompts, samples in product(PROMPTS, SAMPLES):
        some = [Case(prompts, samples, rate, alike) for rate, alike in product((0.1, 0.3, 0.5, 0.9), ALIKE[1:])]
        found = [of_gains(case, shift, runs) for case in some for shift in (0, 1)]
        truths, covered, plain = zip(*found, strict=True)
        yield line(prompts, samples, f"0 to {max(truths):.2f}", min(covered), max(covered), min(plain))


def score_table(runs: int) -> Iterator[str]:
    """Mean rewards that are no shares."""
    yield from header("reward", "prompts", "samples", "skewed t", "plain t")
    for kind, prompts, samples in product(("right and format", "rare penalty", "log-normal"), PROMPTS, (1, 4)):
        means, truth = graded(kind, Case(prompts, samples, 0.05, 0.25), rng_of(0), runs)
        found = ours(means, partial(of_scores, samples=prompts * samples))
        yield line(kind, prompts, samples, held(found, truth), held(plain_t(means), truth))


def header(*names: str) -> list[str]:
    """The head of a Markdown table."""
    return ["| " + " | ".join(names) + " |", "|" + "---:|" * len(names)]


def line(*cells: object) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="simulated evaluations of each case")
    runs = parser.parse_args().runs
    for table in (rate_table(runs), pass_table(runs), gain_table(runs // 2), score_table(runs // 2)):
        for one in table:
            print(one, flush=True)
        print()


if __name__ == "__main__":
    main()
