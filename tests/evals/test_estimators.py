"""Estimates against values worked out by hand, tables and enumeration."""

import itertools
import json
import math
from pathlib import Path

import pytest

from partita.evals.estimators import (
    avg_at_k,
    maj_at_k,
    paired_difference,
    pass_at_k,
    pass_at_k_over_prompts,
    student_t,
    wilson,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "metric_pass_at_k.json"


def test_pass_at_k_golden() -> None:
    golden = json.loads(GOLDEN.read_text())
    for n, c, row in zip(golden["inputs"]["n"], golden["inputs"]["c"], golden["expected"]["pass_at_k"], strict=True):
        for k, expected in zip(golden["config"]["k"], row, strict=True):
            if expected == "undefined":
                with pytest.raises(ValueError, match=f"pass@{k} is undefined for {n} samples"):
                    pass_at_k(n, c, k)
            else:
                assert pass_at_k(n, c, k) == pytest.approx(expected, abs=golden["tolerance"])


@pytest.mark.parametrize(("n", "c"), [(5, 0), (5, 2), (5, 5), (6, 1)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n: int, c: int) -> None:
    right = [index < c for index in range(n)]
    for k in range(1, n + 1):
        subsets = list(itertools.combinations(right, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_impossible_numbers(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, c, k)


def majority_of(subset: tuple[str | None, ...], gold: str) -> float:
    votes = {answer: subset.count(answer) for answer in subset if answer is not None}
    leaders = [answer for answer, count in votes.items() if count == max(votes.values())]
    return 1 / len(leaders) if gold in leaders else 0.0


def test_maj_at_k_golden() -> None:
    golden = json.loads((GOLDEN.parent / "metric_maj_at_k.json").read_text())
    answers, k = golden["inputs"]["answers"], golden["config"]["k"]
    for gold, expected in ((golden["inputs"]["gold"], "maj_at_k"), ("7", "maj_gold7")):
        found = [maj_at_k(answers, gold, one) for one in k]
        assert found == pytest.approx(golden["expected"][expected], abs=golden["tolerance"])


@pytest.mark.parametrize(
    "answers",
    [
        ["a", "a", "b", "c", "b", "a", "d"],
        ["a", None, "b", None, "a", "b"],
        [None, None, "a"],
        ["b", "b", "b"],
        ["a", "b", "c", "d", "e"],
        [None, None],
    ],
)
def test_maj_at_k_is_the_mean_over_all_subsets(answers: list[str | None]) -> None:
    for k in range(1, len(answers) + 1):
        subsets = list(itertools.combinations(answers, k))
        for gold in ("a", "b", "z"):
            mean = sum(majority_of(subset, gold) for subset in subsets) / len(subsets)
            assert maj_at_k(answers, gold, k) == pytest.approx(mean, abs=1e-12)


def test_maj_at_k_by_hand() -> None:
    assert maj_at_k(["a", "b"], "a", 2) == 0.5  # a tie is shared
    assert maj_at_k(["a", None], "a", 2) == 1.0  # what cannot be parsed does not vote
    assert maj_at_k(["a", None, None], "a", 2) == pytest.approx(2 / 3)  # but it is drawn
    assert maj_at_k([None, None], "a", 2) == 0.0
    assert maj_at_k(["a"] * 40 + ["b"] * 60, "a", 100) == 0.0
    assert sum(maj_at_k([str(i % 7) for i in range(64)], str(gold), 32) for gold in range(7)) == pytest.approx(1.0)


@pytest.mark.parametrize("k", [0, 3, -1])
def test_maj_at_k_refuses_more_votes_than_samples(k: int) -> None:
    with pytest.raises(ValueError, match=f"maj@{k} is undefined for 2 samples"):
        maj_at_k(["a", "b"], "a", k)


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


def test_one_binary_sample_a_prompt_uses_wilson() -> None:
    estimate = avg_at_k([[1.0]] * 8 + [[0.0]] * 2)
    assert (estimate.mean, estimate.low, estimate.high) == (0.8, *wilson(8, 10))
    assert (estimate.method, estimate.prompts, estimate.samples) == ("wilson", 10, 10)


def test_several_samples_a_prompt_are_clustered() -> None:
    # prompt means 0, 0.5, 1, 1: mean 0.625, standard deviation sqrt(0.6875 / 3), t(3) = 3.18245
    estimate = avg_at_k([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0]])
    assert estimate.mean == 0.625
    assert estimate.standard_error == pytest.approx(math.sqrt(0.6875 / 3) / 2)
    assert (estimate.low, estimate.high) == (0.0, 1.0)  # 0.625 ± 0.762, cut to what an accuracy can be
    assert (estimate.method, estimate.samples) == ("clustered", 7)


def test_graded_scores_are_not_cut() -> None:
    estimate = avg_at_k([[-1.0], [2.0], [0.5]])
    assert estimate.mean == 0.5
    reach = 4.302653 * 1.5 / math.sqrt(3)
    assert (estimate.low, estimate.high) == (pytest.approx(0.5 - reach), pytest.approx(0.5 + reach))


def test_repeating_a_sample_does_not_narrow_the_interval() -> None:
    once = avg_at_k([[0.2], [0.9], [0.4]])
    often = avg_at_k([[0.2] * 8, [0.9] * 8, [0.4] * 8])
    assert (often.low, often.high) == (pytest.approx(once.low), pytest.approx(once.high))


@pytest.mark.parametrize(("score", "bounds"), [(1.0, (0.7225, 1.0)), (0.0, (0.0, 0.2775))])
def test_all_right_or_all_wrong_is_not_certainty(score: float, bounds: tuple[float, float]) -> None:
    estimate = avg_at_k([[score] * 4] * 10)
    assert (estimate.low, estimate.high) == (pytest.approx(bounds[0], abs=1e-4), pytest.approx(bounds[1], abs=1e-4))


def test_one_graded_prompt_has_no_interval() -> None:
    estimate = avg_at_k([[0.2, 0.4]])
    assert (estimate.mean, estimate.low, estimate.high, estimate.standard_error) == (
        pytest.approx(0.3),
        None,
        None,
        None,
    )
    assert str(estimate) == "0.300 (no interval: one prompt)"


def test_shown_as_text() -> None:
    assert str(avg_at_k([[1.0]] * 8 + [[0.0]] * 2)) == "0.800 (95 % interval 0.490 to 0.943)"


def test_paired_difference_by_hand() -> None:
    before = {"a": [0.0, 0.0], "b": [1.0, 0.0], "c": [1.0, 1.0]}
    after = {"c": [1.0], "a": [1.0], "b": [1.0]}
    # differences 1, 0.5, 0: mean 0.5, standard deviation 0.5
    estimate = paired_difference(before, after)
    reach = 4.302653 * 0.5 / math.sqrt(3)
    assert estimate.mean == 0.5
    assert (estimate.low, estimate.high) == (pytest.approx(0.5 - reach), pytest.approx(0.5 + reach))
    assert (estimate.prompts, estimate.samples) == (3, 3)


def test_pairing_narrows_the_interval_when_prompts_differ_in_difficulty() -> None:
    before = {str(i): [i / 10] for i in range(10)}
    after = {str(i): [i / 10 + 0.1 + 0.01 * (i % 2)] for i in range(10)}
    paired = paired_difference(before, after)
    alone = avg_at_k(list(after.values()))
    assert paired.low is not None and alone.low is not None
    assert paired.mean - paired.low < 0.05 * (alone.mean - alone.low)


def test_different_prompts_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="2 prompts are in one of the two only: b, c"):
        paired_difference({"a": [1.0], "b": [1.0]}, {"a": [1.0], "c": [0.0]})


def test_pass_at_k_over_prompts() -> None:
    correct = [[True, False, False, False], [True, True, False, False], [False] * 4]
    estimate = pass_at_k_over_prompts(correct, 2)
    # 1 - C(3,2)/C(4,2) = 0.5; 1 - C(2,2)/C(4,2) = 5/6; 0
    assert estimate.mean == pytest.approx((0.5 + 5 / 6) / 3)
    assert (estimate.low, estimate.samples) == (0.0, 12)
    assert pass_at_k_over_prompts(correct, 1).mean == pytest.approx(3 / 12)
    with pytest.raises(ValueError, match="pass@5 is undefined for 4 samples"):
        pass_at_k_over_prompts(correct, 5)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([], "no prompts"),
        ([[1.0], []], "prompt 1 has no scores"),
        ([[math.nan]], "prompt 0 has a score that is not finite"),
    ],
)
def test_scores_that_say_nothing_are_refused(scores: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        avg_at_k(scores)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        wilson(1, 2, confidence=confidence)
