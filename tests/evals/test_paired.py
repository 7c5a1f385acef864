"""Two evaluations of the same prompts: p-values against enumeration and McNemar's table, and what is said of them."""

import itertools
import random

import pytest

from partita.evals.paired import Comparison, compare, sign_flip, steps_of, verdict


def enumerated(differences: list[float]) -> float:
    """The share of all signs whose sum is as large."""
    observed = abs(sum(differences)) - 1e-9
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in itertools.product((1, -1), repeat=8)
    ]
    return sum(abs(one) >= observed for one in sums) / len(sums)


def test_all_signs_are_counted_as_an_enumeration_does() -> None:
    rng = random.Random(0)
    for _ in range(20):
        differences = [rng.randint(-4, 4) / 4 for _ in range(8)]
        value, exact = sign_flip(differences, 4)
        assert exact
        assert value == pytest.approx(enumerated(differences))


def test_one_sample_each_is_mcnemars_exact_test() -> None:
    # 5 prompts gained, 1 lost: 2 (C(6,0) + C(6,1)) / 2^6
    assert sign_flip([1.0] * 5 + [-1.0] + [0.0] * 50, 1) == (pytest.approx(0.21875), True)
    assert sign_flip([1.0] * 10, 1)[0] == pytest.approx(2 / 1024)
    assert sign_flip([1.0] * 2000, 1)[0] < 1e-300  # no overflow, no underflow to something else


@pytest.mark.parametrize("differences", [[0.0] * 5, [1.0, -1.0], [0.25, 0.5, -0.75]])
def test_no_difference_is_certainly_due_to_chance(differences: list[float]) -> None:
    assert sign_flip(differences, 4) == (1.0, True)


def test_random_flips_come_near_and_are_the_same_every_time() -> None:
    rng = random.Random(1)
    differences = [rng.randint(-2, 4) / 4 for _ in range(60)]
    exact, drawn = sign_flip(differences, 4)[0], sign_flip(differences, None, seed=3)
    assert drawn == sign_flip(differences, None, seed=3)
    assert drawn != sign_flip(differences, None, seed=4)
    assert not drawn[1]
    assert drawn[0] == pytest.approx(exact, abs=0.01)
    assert sign_flip([0.1] * 200, None)[0] == pytest.approx(1 / 20_001)  # never 0


def test_what_can_be_counted() -> None:
    assert steps_of({"a": [1.0, 0.0], "b": [1.0, 1.0, 0.0]}, {"a": [0.0], "b": [-1.0]}) == 6
    assert steps_of({"a": [0.5]}) is None


def test_only_prompts_of_both_are_compared_and_the_others_counted() -> None:
    found = compare({"a": [0.0], "b": [0.0], "x": [1.0]}, {"a": [1.0], "b": [0.0], "y": [1.0]})
    assert (found.difference.mean, found.difference.prompts, found.left_out) == (0.5, 2, 2)
    with pytest.raises(ValueError, match="share no prompt"):
        compare({"a": [0.0]}, {"b": [1.0]})


def test_the_direction_is_after_minus_before() -> None:
    before, after = {str(i): [0.0] for i in range(20)}, {str(i): [float(i < 12)] for i in range(20)}
    gained, lost = compare(before, after), compare(after, before)
    assert (gained.difference.mean, lost.difference.mean) == (0.6, -0.6)
    assert gained.p_value == lost.p_value == pytest.approx(2 / 2**12)
    assert gained.shown and gained.exact


def compared(gains: int, losses: int, same: int) -> Comparison:
    scores = [1.0] * gains + [0.0] * losses + [1.0] * same
    other = [0.0] * gains + [1.0] * losses + [1.0] * same
    return compare(dict(enumerate_ids(other)), dict(enumerate_ids(scores)))


def enumerate_ids(scores: list[float]) -> list[tuple[str, list[float]]]:
    return [(str(index), [score]) for index, score in enumerate(scores)]


def test_the_verdict_says_what_it_means() -> None:
    assert verdict(compared(30, 0, 70), "new", "old").startswith(
        "difference on the same prompts: 0.300 (95 % interval "
    )
    assert verdict(compared(30, 0, 70), "new", "old").endswith("p < 0.0001: new is better")
    assert verdict(compared(0, 9, 91), "new", "old").endswith("p = 0.0039: old is better")
    assert verdict(compared(5, 1, 94), "new", "old").endswith(
        "p = 0.2188: no difference is shown: chance alone gives one as large in 22 of 100 evaluations"
    )
    assert verdict(compared(0, 0, 50), "new", "old").endswith("p = 1.0000: both are alike")
