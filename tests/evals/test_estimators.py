"""Estimates against values worked out by hand, tables and enumeration."""

import itertools
import json
import math
import random
from pathlib import Path

import pytest

from partita.evals.estimators import (
    avg_at_k,
    maj_at_k,
    maj_at_k_over_prompts,
    paired_difference,
    pass_at_k,
    pass_at_k_over_prompts,
)
from partita.evals.intervals import of_shares, wilson

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


def test_a_thousand_random_tables_against_the_enumeration_of_all_subsets() -> None:
    rng = random.Random(0)
    for _ in range(1000):
        n, kinds = rng.randint(1, 7), rng.randint(1, 4)
        answers = [rng.choice([None, *"abcd"[:kinds]]) for _ in range(n)]
        k = rng.randint(1, n)
        subsets = list(itertools.combinations(answers, k))
        right = sum("a" in subset for subset in subsets) / len(subsets)
        assert pass_at_k(n, answers.count("a"), k) == pytest.approx(right, abs=1e-12)
        agreed = sum(majority_of(subset, "a") for subset in subsets) / len(subsets)
        assert maj_at_k(answers, "a", k) == pytest.approx(agreed, abs=1e-12)


def test_pass_at_k_of_many_samples_is_exact() -> None:
    # 1 - 9999/10000, and 1 - C(9999, 5000)/C(10000, 5000) = 1 - 5000/10000
    assert pass_at_k(10_000, 1, 1) == 1e-4
    assert pass_at_k(10_000, 1, 5000) == 0.5
    assert pass_at_k(10_000, 9_999, 2) == 1.0


def test_maj_of_as_many_as_there_are_is_what_they_agree_on() -> None:
    assert maj_at_k(["a", "a", "b"], "a", 3) == 1.0
    assert maj_at_k(["a", "a", "b", "b", "c"], "a", 5) == 0.5
    many = [str(number) for number in range(48)] + ["a"] * 16
    assert maj_at_k(many, "a", 64) == 1.0
    assert 0.9 < maj_at_k(many, "a", 32) <= 1.0


def test_maj_over_prompts() -> None:
    found = maj_at_k_over_prompts([["a", "a", "b"], ["b", "b", "a"]], ["a", "a"], 3)
    assert (found.mean, found.prompts, found.samples) == (0.5, 2, 6)


def test_one_binary_sample_a_prompt_uses_wilson() -> None:
    estimate = avg_at_k([[1.0]] * 8 + [[0.0]] * 2)
    assert (estimate.mean, estimate.low, estimate.high) == (0.8, *wilson(8, 10))
    assert (estimate.method, estimate.prompts, estimate.samples) == ("wilson", 10, 10)


def test_several_samples_a_prompt_are_clustered() -> None:
    # prompt means 0, 0.5, 1, 1: mean 0.625, standard deviation sqrt(0.6875 / 3)
    estimate = avg_at_k([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0]])
    assert estimate.mean == 0.625
    assert estimate.standard_error == pytest.approx(math.sqrt(0.6875 / 3) / 2)
    assert estimate == of_shares([0.0, 0.5, 1.0, 1.0], 7)
    assert (estimate.method, estimate.samples) == ("clustered_wilson", 7)


def test_two_values_are_a_share_on_their_own_scale() -> None:
    right = avg_at_k([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    signed = avg_at_k([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    assert right.low is not None and right.high is not None and right.standard_error is not None
    assert (signed.mean, signed.low, signed.high) == pytest.approx((0.0, 2 * right.low - 1, 2 * right.high - 1))
    assert signed.standard_error == pytest.approx(2 * right.standard_error)


def test_two_values_that_happen_to_be_the_only_ones_are_no_scale() -> None:
    assert avg_at_k([[0.2], [0.4], [0.4]]).method == "skewed_t"


def test_graded_scores_are_not_cut() -> None:
    estimate = avg_at_k([[-1.0], [2.0], [0.5]])
    assert estimate.mean == 0.5
    reach = 4.302653 * 1.5 / math.sqrt(3)
    assert (estimate.low, estimate.high) == (pytest.approx(0.5 - reach), pytest.approx(0.5 + reach))


def test_repeating_a_sample_does_not_narrow_the_interval() -> None:
    once = avg_at_k([[0.2], [0.9], [0.4]])
    often = avg_at_k([[0.2] * 8, [0.9] * 8, [0.4] * 8])
    assert (often.low, often.high) == (pytest.approx(once.low), pytest.approx(once.high))


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
    estimate = paired_difference(before, after)
    assert estimate.mean == 0.5  # 1, 0.5 and 0
    assert (estimate.prompts, estimate.samples, estimate.method) == (3, 3, "paired")
    assert (estimate.low, estimate.high) == (-1.0, 1.0)  # three prompts say little


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
    assert estimate == of_shares([0.5, 5 / 6, 0.0], 12)
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
