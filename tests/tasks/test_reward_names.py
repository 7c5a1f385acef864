import pytest

from partita.tasks.reward import RewardConfig, RewardRuntime, RewardSetupError


def mean(response: str) -> float:
    return float(len(response))


def test_a_reward_cannot_take_the_name_of_a_metric() -> None:
    with pytest.raises(RewardSetupError, match="'mean': reward/mean is a metric of its own; rename"):
        RewardRuntime(RewardConfig(), [mean])
