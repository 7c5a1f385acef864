"""Whole groups are sampled anew until they hold right and wrong samples."""

import asyncio
from typing import Any

import pytest
from toy import EOS, CountedPrompts, FirstToken, TableEngine

from partita.algo.compose import compose
from partita.algo.presets import keys_of
from partita.engine.api import Sampling
from partita.records import Group, Prompt
from partita.rollout.rollouts import Refill, Retry, RolloutError, Rollouts
from partita.rollout.summary import summarise_taken
from partita.rollout.workflow import SingleTurn
from partita.tasks.reward import RewardErrors, Scored
from partita.train.batch import collate

SAMPLING = Sampling(max_new_tokens=4, stop_ids=(EOS,))


def rollouts(**changes: Any) -> Rollouts:
    values = {"scorer": FirstToken(), "n_samples": 4, "retry": Retry(3)} | changes
    return Rollouts(TableEngine(), SingleTurn(), CountedPrompts(), sampling=SAMPLING, seed=5, **values)


def is_mixed(group: Group) -> bool:
    return 0 < sum(group.rewards) < len(group.rewards)


def test_a_group_that_is_not_mixed_is_sampled_anew_as_a_whole_for_the_same_prompt() -> None:
    taken = asyncio.run(rollouts(retry=Retry(50)).take(6))
    assert all(is_mixed(group) for group in taken.groups)
    assert taken.discarded and not any(is_mixed(group) for group in taken.discarded)
    assert sorted(g.prompt.uid for g in taken.groups) == [f"p{i}" for i in range(1, 7)]  # no prompt was replaced
    assert [len(g.samples) for g in taken.started] == [4] * len(taken.started)
    assert [g.serial for g in taken.started] == list(range(6 + len(taken.discarded)))
    assert [g.serial for g in taken.groups] == sorted(g.serial for g in taken.groups)


def test_an_attempt_draws_other_numbers_than_the_one_before() -> None:
    runner = rollouts(retry=Retry(50))
    taken = asyncio.run(runner.take(6))
    first = taken.discarded[0]
    again = next(g for g in taken.started if g.prompt.uid == first.prompt.uid and g.serial > first.serial)
    assert [s.rows[0].ids for s in first.samples] != [s.rows[0].ids for s in again.samples]
    sent = [request.draw for sent in runner.engine.rounds for request in sent]
    assert len(set(sent)) == len(sent) == 4 * len(taken.started)


def test_mixed_groups_are_left_alone() -> None:
    straight, retried = rollouts(retry=None), rollouts()
    first, second = asyncio.run(straight.take(6)), asyncio.run(retried.take(6))
    kept = {g.serial: [s.rows[0].ids for s in g.samples] for g in first.groups if is_mixed(g)}
    assert kept
    assert kept.items() <= {g.serial: [s.rows[0].ids for s in g.samples] for g in second.groups}.items()


def never_right() -> TableEngine:
    engine = TableEngine()
    engine.table[:, 3] = -100.0
    return engine


@pytest.mark.parametrize("times", [0, 1, 3])
def test_the_last_attempt_is_kept_when_none_is_mixed_and_gets_no_advantage(times: int) -> None:
    runner = rollouts(retry=Retry(times))
    runner.engine = never_right()
    taken = asyncio.run(runner.take(2))
    assert [g.serial for g in taken.groups] == [2 * times, 2 * times + 1]
    assert len(taken.discarded) == 2 * times
    assert len(runner.engine.rounds) == 1 + times
    algorithm = compose(keys_of("grpo"), n_samples=4, max_new_tokens=4)
    batch = algorithm.credit(collate(taken.groups, seed=5, version=0).batch)
    assert batch.advantages_T.eq(0).all()


def test_right_is_a_raw_reward_at_or_above_the_threshold() -> None:
    prompt = Prompt("p", (0,), "", {})

    def graded(*rewards: float) -> Group:
        [group] = asyncio.run(rollouts(retry=None, n_samples=len(rewards)).take(1)).groups
        for sample, reward in zip(group.samples, rewards, strict=True):
            sample.reward = reward
        return Group(0, prompt, group.samples)

    assert not Retry(1).mixed(graded(0.2, 0.9))
    assert Retry(1, correct_threshold=0.9).mixed(graded(0.2, 0.9))
    assert Retry(1).mixed(graded(-1.0, 1.0))
    assert not Retry(1).mixed(graded(1.0, 1.0))


def test_beside_a_filter_that_refills() -> None:
    refill = Refill(is_mixed, max_batches=10, refill=True)
    taken = asyncio.run(rollouts(retry=Retry(1), refill=refill).take(4))
    assert len(taken.groups) == 4 and all(is_mixed(g) for g in taken.groups)
    assert taken.discarded and taken.dropped  # some were given up after one more attempt
    assert len(taken.started) == 4 + len(taken.dropped) + len(taken.discarded)
    assert all(not is_mixed(g) for g in taken.dropped)


def test_beside_a_batch_that_shrinks() -> None:
    refill = Refill(is_mixed, max_batches=10, refill=False)
    taken = asyncio.run(rollouts(retry=Retry(1), refill=refill).take(8))
    assert taken.rounds == 1
    assert len(taken.groups) + len(taken.dropped) == 8
    assert taken.discarded and taken.dropped


def test_retries_are_bounded_where_nothing_is_ever_right() -> None:
    refill = Refill(is_mixed, max_batches=3, refill=True)
    runner = rollouts(retry=Retry(2), refill=refill)
    runner.engine = never_right()
    with pytest.raises(RolloutError, match=r"after 3 rounds only 0 of 4 groups"):
        asyncio.run(runner.take(4))
    assert len(runner.engine.rounds) == 3 * (1 + 2)


class Broken:
    async def score(self, prompt: Prompt, text: str, ids, stop_reason) -> Scored:
        return Scored(None, {}, "reward_error", "no")


def test_a_broken_reward_is_heard_of_before_anything_is_sampled_again() -> None:
    runner = rollouts(scorer=Broken())
    with pytest.raises(RewardErrors, match="16 of 16"):
        asyncio.run(runner.take(4))
    assert len(runner.engine.rounds) == 1


class BrokenFor:
    """Cannot score the samples of the second prompt."""

    async def score(self, prompt: Prompt, text: str, ids, stop_reason) -> Scored:
        return Scored(None, {}, "reward_error", "no") if prompt.uid == "p2" else Scored(float(ids[0] >= 4))


def test_errors_are_judged_over_the_whole_step_not_over_a_retry() -> None:
    taken = asyncio.run(rollouts(scorer=BrokenFor(), max_error_share=0.5).take(4))
    assert [g.prompt.uid for g in taken.discarded].count(
        "p2"
    ) == 3  # 4 attempts of 4 samples: 16 errors among 28 or more
    assert "p2" in [g.prompt.uid for g in taken.groups]


def test_metrics_count_every_attempt_and_say_what_became_of_it() -> None:
    refill = Refill(is_mixed, max_batches=10, refill=True)
    runner = rollouts(retry=Retry(1), refill=refill)
    asyncio.run(runner.take(2))
    used = runner.used
    taken = asyncio.run(runner.take(8))
    values = summarise_taken(taken).as_dict()
    assert values["groups/started"] == len(taken.started)
    assert values["groups/dropped"] == len(taken.dropped) > 0
    assert values["groups/retried"] == len(taken.discarded) > 0
    assert values["rollout_rounds"] == taken.rounds
    assert values["prompts_used"] == runner.used == used + 8 + len(taken.dropped)
    rewards = [reward for group in taken.started for reward in group.rewards]
    assert values["reward/mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert values["samples_per_group/mean"] == values["samples_per_group/min"] == values["samples_per_group/max"] == 4
