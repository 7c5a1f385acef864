"""Intervals against values worked out by hand and printed tables, and how often they hold in simulation."""

import math

import coverage
import numpy as np
import pytest

from partita.evals.intervals import effective_prompts, of_differences, of_scores, of_shares, student_t, wilson


@pytest.mark.parametrize(
    ("confidence", "freedom", "table"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 10, 2.228), (0.99, 4, 4.604), (0.95, 120, 1.980)],
)
def test_student_t_against_the_printed_table(confidence: float, freedom: int, table: float) -> None:
    assert student_t(confidence, freedom) == pytest.approx(table, abs=6e-4)


def test_student_t_is_continuous_where_the_method_changes() -> None:
    step = student_t(0.95, 199) - student_t(0.95, 200)
    assert student_t(0.95, 200) - student_t(0.95, 201) == pytest.approx(step, rel=0.05)
    assert student_t(0.95, 10**6) == pytest.approx(1.959964, abs=1e-5)


def test_wilson_by_hand() -> None:
    # n = 10, 8 right, z = 1.96: centre (0.8 + 0.19208) / 1.38416, reach 1.96 sqrt(0.016 + 0.009604) / 1.38416
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert wilson(10, 10) == (pytest.approx(0.7225, abs=1e-4), 1.0)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        wilson(1, 2, confidence=confidence)


def test_one_right_or_wrong_sample_a_prompt_is_wilsons_own() -> None:
    estimate = of_shares([1.0] * 8 + [0.0] * 2, 10)
    assert (estimate.low, estimate.high) == pytest.approx(wilson(8, 10))
    assert (estimate.mean, estimate.method) == (0.8, "wilson")


def test_how_many_trials_prompts_are_worth_by_hand() -> None:
    # mean 0.625, variance 11/64 of at most 15/64: D = 11/15. Wrong shares 1, 0.5, 0, 0: k = 1.5²/1.25 = 1.8
    assert effective_prompts(np.array([0.0, 0.5, 1.0, 1.0]), 8) == pytest.approx(4 / (11 / 15 + 4 / 15 * 1.3 / 1.94))
    # variance 0: as independent samples, D = 1/4, k = 4
    assert effective_prompts(np.full(4, 0.5), 16) == pytest.approx(4 / (0.25 + 0.75 * 1.3 / 10.3))
    # all samples of a prompt alike: D = 1
    assert effective_prompts(np.array([1.0, 0.0, 0.0, 0.0]), 64) == 4
    # one prompt alone has something right, and says nothing of how alike samples are
    assert effective_prompts(np.array([0.25, 0.0, 0.0, 0.0]), 16) == 4
    assert effective_prompts(np.array([0.7]), 10) == pytest.approx(1)


def test_right_and_wrong_are_treated_alike() -> None:
    shares = [0.0, 0.0, 0.25, 0.0, 0.5, 1.0, 0.0]
    one, other = of_shares(shares, 28), of_shares([1 - share for share in shares], 28)
    assert one.low is not None and one.high is not None
    assert (other.low, other.high) == (pytest.approx(1 - one.high), pytest.approx(1 - one.low))


def test_more_alike_samples_widen_the_interval() -> None:
    independent, alike = of_shares([0.25, 0.5, 0.5, 0.75] * 10, 160), of_shares([0.0, 0.0, 1.0, 1.0] * 10, 160)
    assert independent.low is not None and alike.low is not None
    assert independent.mean == alike.mean == 0.5
    assert 0.5 - alike.low > 1.5 * (0.5 - independent.low)


@pytest.mark.parametrize(("share", "bounds"), [(1.0, (0.7225, 1.0)), (0.0, (0.0, 0.2775))])
def test_all_right_or_all_wrong_is_not_certainty(share: float, bounds: tuple[float, float]) -> None:
    estimate = of_shares([share] * 10, 40)
    assert (estimate.low, estimate.high) == (pytest.approx(bounds[0], abs=1e-4), pytest.approx(bounds[1], abs=1e-4))


def test_shares_outside_0_to_1_are_refused() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, not -0\.5 to 1"):
        of_shares([1.0, -0.5], 2)
    with pytest.raises(ValueError, match="no prompts"):
        of_shares([], 0)


def test_symmetric_scores_have_students_interval() -> None:
    estimate = of_scores([-1.0, 2.0, 0.5], 3)
    reach = 4.302653 * 1.5 / math.sqrt(3)
    assert (estimate.low, estimate.high) == (pytest.approx(0.5 - reach), pytest.approx(0.5 + reach))
    assert estimate.standard_error == pytest.approx(1.5 / math.sqrt(3))


def test_halls_transformation_of_both_ends_is_the_quantile() -> None:
    values = [0.0] * 20 + [1.0, 4.0]
    estimate = of_scores(values, 22)
    assert estimate.low is not None and estimate.high is not None
    mean, deviation = np.mean(values), np.std(values, ddof=1)
    skewness = float(np.mean((values - mean) ** 3) / np.std(values) ** 3)
    reach = student_t(0.95, 21) / math.sqrt(22)
    for end, wanted in ((estimate.low, reach), (estimate.high, -reach)):
        t = (mean - end) / deviation
        transformed = t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / (6 * 22)
        assert transformed == pytest.approx(wanted)
    assert estimate.high - mean > mean - estimate.low  # it reaches farther where the rare values lie


def test_scores_that_do_not_differ_have_no_interval() -> None:
    for values, why in ([0.2], "one prompt"), ([0.2, 0.2, 0.2], "all prompts are alike"):
        estimate = of_scores(values, len(values))
        assert (estimate.low, estimate.high) == (None, None)
        assert str(estimate) == f"0.200 (no interval: {why})"


def test_differences_by_hand() -> None:
    # 1, -1 and eight zeros, one more that gained 1 and one that lost 1: variance 4/11, t(9) = 2.262157
    estimate = of_differences([1.0, -1.0] + [0.0] * 8, 10, largest=1.0)
    reach = math.sqrt(4 / 11) * 2.262157 / math.sqrt(12)
    assert (estimate.mean, estimate.low, estimate.high) == (0.0, pytest.approx(-reach), pytest.approx(reach))
    # a hundred prompts that did not change: up to 2.8 of a hundred may have, either way
    still = of_differences([0.0] * 100, 100, largest=1.0)
    assert (still.low, still.high) == (pytest.approx(-0.02765, abs=1e-5), pytest.approx(0.02765, abs=1e-5))


def test_differences_stay_within_their_limit_and_without_one_know_nothing_of_no_change() -> None:
    assert of_differences([1.0, 1.0, 1.0], 3, largest=1.0).high == 1.0
    assert of_differences([0.0, 0.0], 2).low is None
    assert of_differences([0.3], 1, largest=1.0).low is None
    scaled, plain = of_differences([10.0, -5.0, 0.0, 5.0], 4), of_differences([1.0, -0.5, 0.0, 0.5], 4)
    assert scaled.low is not None and plain.low is not None
    assert scaled.low == pytest.approx(10 * plain.low)


CORNERS = [
    coverage.Case(100, 1, 0.02, 0.0), coverage.Case(100, 16, 0.02, 0.3), coverage.Case(100, 16, 0.98, 0.6),
    coverage.Case(100, 16, 0.5, 0.1), coverage.Case(100, 4, 0.98, 0.1), coverage.Case(100, 16, 0.03, 0.3),
    coverage.Case(300, 4, 0.05, 0.9), coverage.Case(1000, 4, 0.02, 0.0),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CORNERS, ids=str)
def test_intervals_hold_the_rate_as_often_as_they_say(case: coverage.Case) -> None:
    runs = 1500
    held = coverage.of_rates(case, runs, seed=7)
    noise = 2.5 * math.sqrt(95 * 5 / runs)
    assert 93 - noise < held < 97 + noise
    assert 93 - noise < coverage.of_gains(coverage.Case(100, 4, 0.3, 0.3), 1.0, runs, seed=7)[1] < 97 + noise


@pytest.mark.slow
def test_plain_intervals_do_not_hold_near_0() -> None:
    case = coverage.Case(100, 1, 0.02, 0.0)
    shares = case.shares(coverage.rng_of(7), 1000)
    assert coverage.held(coverage.plain_t(shares), 0.02) < 90
    assert coverage.held(coverage.bootstrap(shares), 0.02) < 90


def binomial(prompts: int, rate: float) -> np.ndarray:
    """Chances of 0 to `prompts` right ones, one sample each."""
    return np.array([math.comb(prompts, k) * rate**k * (1 - rate) ** (prompts - k) for k in range(prompts + 1)])


@pytest.mark.parametrize(
    ("prompts", "lowest", "highest"), [(100, 0.926, 0.979), (300, 0.936, 0.970), (1000, 0.939, 0.961)]
)
def test_one_sample_a_prompt_is_held_as_often_at_every_rate_by_enumeration(
    prompts: int, lowest: float, highest: float
) -> None:
    ends = np.array([wilson(right, prompts) for right in range(prompts + 1)])
    rates = np.linspace(0.02, 0.5, 481)
    held = [float(binomial(prompts, rate) @ ((ends[:, 0] <= rate) & (rate <= ends[:, 1]))) for rate in rates]
    assert lowest < min(held) and max(held) < highest
    assert np.mean([not 0.93 <= one <= 0.97 for one in held]) < (0.02 if prompts == 100 else 1e-9)


def test_no_interval_holds_93_to_97_of_100_right_or_wrong_samples_at_every_rate() -> None:
    # limits that rise with the count hold a rate for a run of counts, first to last: no run has such a chance
    for rate in (0.0221, 0.0226, 0.0231, 0.9774):
        upto = np.concatenate([[0.0], np.cumsum(binomial(100, rate))])
        chances = upto[None, :] - upto[:, None]
        assert not ((chances >= 0.93) & (chances <= 0.97)).any()
    upto = np.concatenate([[0.0], np.cumsum(binomial(100, 0.0205))])
    assert ((upto[None, :] - upto[:, None] >= 0.93) & (upto[None, :] - upto[:, None] <= 0.97)).any()
