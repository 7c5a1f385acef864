"""Which groups are worth training on."""

import pytest
import torch

from partita.algo.keep import KeepAll, MixedOutcomes, MixedRewards


def test_mixed_outcomes_on_binary_and_half_right_groups(golden):
    case = golden("sampling_dynamic_filter")
    groups = [torch.tensor(group, dtype=torch.float32) for group in case["inputs"]["groups"]]
    assert [MixedOutcomes(10)(group) for group in groups] == case["expected"]["keep_by_count"]
    assert [MixedRewards(10)(group) for group in groups] == case["expected"]["keep_by_std"]


@pytest.mark.parametrize(
    ("rewards", "by_outcome", "by_reward"),
    [
        ([-1.0, 1.0], True, True),  # rewards of -1 and 1: a mean between 0 and 1 would be the wrong test
        ([-1.0, -1.0], False, False),
        ([0.2, 0.5], False, True),
        ([float("nan"), 1.0, 0.0], True, True),  # a failed sample has no say
        ([float("nan"), 1.0], False, False),
        ([float("nan")], False, False),
        ([], False, False),
    ],
)
def test_outcomes_and_graded_rewards(rewards, by_outcome, by_reward):
    group = torch.tensor(rewards)
    assert MixedOutcomes(10)(group) is by_outcome
    assert MixedRewards(10)(group) is by_reward
    assert KeepAll()(group)


def test_the_threshold_says_what_is_correct():
    assert MixedOutcomes(3, correct_threshold=0.5)(torch.tensor([0.2, 0.5]))
    assert MixedOutcomes(3).max_batches == 3


def test_equal_rewards_are_equal_whatever_a_standard_deviation_would_say():
    group = torch.full((8,), 0.7, dtype=torch.float32)
    assert float(group.std()) > 0 or float(group.mean()) != float(group[0])  # the residue that must not count
    assert not MixedRewards(10)(group)
    assert MixedRewards(10)(torch.tensor([0.7] * 7 + [0.7000001], dtype=torch.float64))  # and a real difference does


def test_what_a_length_penalty_does_to_an_all_wrong_group_is_not_judged():
    raw, shaped = torch.zeros(3), torch.tensor([0.0, -0.5, -1.0])
    assert not MixedOutcomes(10)(raw)
    assert MixedRewards(10)(shaped)  # which is why filters are given raw rewards
