"""How a round's samples are split over its prompts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.algo.sampling import allocate


def test_golden_sizes_in_proportion_without_scores_and_at_the_cap(golden):
    case = golden("sampling_adaptive_group_size")
    inputs, expected = case["inputs"], case["expected"]
    bounds = inputs["budget"], inputs["g_min"], inputs["g_max"]
    assert allocate(inputs["score"], *bounds) == expected["group_sizes"]
    assert allocate([0.0] * 4, *bounds) == expected["all_zero_scores"]
    # one prompt has the whole score: 4 + 16 is held at 16, and its 4 are split evenly over three that have none
    assert allocate([1.0, 0.0, 0.0, 0.0], *bounds) == expected["capped"]


@pytest.mark.parametrize(
    ("scores", "budget", "low", "high", "sizes"),
    [
        ([1.0, 1.0, 1.0], 10, 2, 8, [4, 3, 3]),  # 4 over three: a tie, which the first prompt wins
        ([3.0, 1.0], 8, 2, 8, [5, 3]),
        ([1.0, 2.0, 4.0], 13, 2, 8, [3, 4, 6]),  # quotas 1, 2, 4 exactly: no remainder moves anything
        ([0.1, 0.2, 0.3], 12, 2, 8, [3, 4, 5]),  # 0.1 / (0.1 + 0.2 + 0.3) is no exact sixth in floats
        ([8.0, 1.0, 1.0], 18, 2, 8, [8, 5, 5]),  # 9.6 held at 6, the other 6 in halves
        ([8.0, 4.0, 1.0], 22, 2, 8, [8, 8, 6]),  # the second reaches the cap from what the first could not take
        ([5.0, 1.0], 4, 2, 8, [2, 2]),
        ([5.0, 1.0], 16, 2, 8, [8, 8]),
        ([], 0, 2, 8, []),
    ],
)
def test_sizes_by_hand(scores, budget, low, high, sizes):
    assert allocate(scores, budget, low, high) == sizes


@given(
    scores=st.lists(st.floats(0, 1e300), min_size=1, max_size=12),
    low=st.integers(0, 5),
    more=st.integers(0, 12),
    filled=st.floats(0, 1),
)
def test_every_feasible_budget_is_spent_within_the_bounds_and_more_score_is_never_fewer_samples(
    scores, low, more, filled
):
    budget = len(scores) * low + int(filled * len(scores) * more)
    sizes = allocate(scores, budget, low, low + more)
    assert sum(sizes) == budget
    assert all(low <= size <= low + more for size in sizes)
    for one, first in zip(scores, sizes, strict=True):
        for other, second in zip(scores, sizes, strict=True):
            assert one <= other or first >= second


@pytest.mark.parametrize(("budget", "takes"), [(7, "8 to 24"), (25, "8 to 24")])
def test_a_budget_that_does_not_fit_is_named(budget, takes):
    with pytest.raises(ValueError, match=f"{budget} samples .* 4 prompts of 2 to 6 samples each: that takes {takes}"):
        allocate([1.0] * 4, budget, 2, 6)


@pytest.mark.parametrize("score", [-0.5, float("nan"), float("inf")])
def test_a_score_that_is_no_share_is_named(score):
    with pytest.raises(ValueError, match=f"the score of prompt 1 is {score}"):
        allocate([1.0, score], 4, 1, 4)
