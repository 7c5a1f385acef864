"""From groups to packed streams: nothing is dropped silently, and what is excluded moves nobody's advantage."""

from dataclasses import replace

import pytest
from toy import EOS

from partita.algo.compose import compose
from partita.algo.explain import keys_of
from partita.algo.presets import PRESETS
from partita.records import Group, Prompt, Row, Sample
from partita.train.batch import collate


def group(*rewards: float | None) -> Group:
    """One group whose sample k has k + 1 tokens; None is a reward that failed."""
    samples = []
    for k, reward in enumerate(rewards):
        row = Row([2] + [3] * k + [EOS], [False] + [True] * (k + 1), [0.0] + [-2.0] * (k + 1), [-1] + [0] * (k + 1))
        status = "ok" if reward is not None else "reward_error"
        samples.append(Sample([row], "stop", "", reward, status=status))
    return Group(0, Prompt("p", (2,), "", {}), samples)


def advantages(name: str, *rewards: float | None) -> list[float]:
    """Of the first token of each sample."""
    keys = replace(keys_of(name), kl_loss_coef=0.0, kl_ctl=0.0)
    rollout = collate([group(*rewards)])
    batch = compose(keys, n_samples=4, max_new_tokens=64).credit(rollout.batch)
    first_S = batch.length_S.cumsum(0) - batch.length_S
    return batch.advantages_T[first_S].tolist()


@pytest.mark.parametrize("name", PRESETS)
def test_a_sample_whose_reward_failed_is_in_no_statistic(name: str) -> None:
    assert advantages(name, None, 0.0, 0.0, 0.0) == [0.0, 0.0, 0.0, 0.0]
    assert advantages(name, 1.0, 0.0, 0.0, 0.0)[0] > 0  # had it been scored it would have counted


def test_a_failed_reward_leaves_the_statistics_of_the_others_as_if_it_were_not_there() -> None:
    found = advantages("drgrpo", None, 1.0, 0.0, 0.0)
    assert found == pytest.approx([0.0, 2 / 3, -1 / 3, -1 / 3])


def test_a_failed_sample_stays_in_the_batch_marked_invalid() -> None:
    rollout = collate([group(None, 0.0, 0.0, 0.0)])
    assert rollout.batch.valid_S.tolist() == [False, True, True, True]
    assert rollout.batch.length_S.tolist() == [1, 2, 3, 4]
    assert len(rollout.rows) == 4
