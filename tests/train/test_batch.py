"""From groups to packed streams: nothing is dropped silently, and what is excluded moves nobody's advantage."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from toy import EOS

from partita.algo.compose import compose
from partita.algo.presets import PRESETS, keys_of
from partita.records import Batch, Group, Prompt, Row, Sample
from partita.train.batch import RolloutBatch, collate


def group(*rewards: float | None, serial: int = 0) -> Group:
    """One group whose sample k has k + 1 tokens; None is a reward that failed."""
    samples = []
    for k, reward in enumerate(rewards):
        row = Row([2] + [3] * k + [EOS], [False] + [True] * (k + 1), [0.0] + [-2.0] * (k + 1), [-1] + [0] * (k + 1))
        status = "ok" if reward is not None else "reward_error"
        samples.append(Sample([row], "stop", "", reward, status=status))
    return Group(serial, Prompt("p", (2,), "", {}), samples)


def advantages(name: str, *rewards: float | None) -> list[float]:
    """Of the first token of each sample."""
    keys = replace(keys_of(name), kl_loss_coef=0.0, kl_ctl=0.0)
    rollout = collate([group(*rewards)], seed=1, version=0)
    scored = rollout.batch.with_(values_T=torch.zeros_like(rollout.batch.behaviour_T))  # a critic that knows nothing
    batch = compose(keys, n_samples=4, max_new_tokens=64).credit(scored)
    first_S = batch.length_S.cumsum(0) - batch.length_S
    return batch.advantages_T[first_S].tolist()


# running statistics come with a controller, and remember other steps than this one
OF_ONE_STEP = [name for name, keys in PRESETS.items() if "ema" not in (keys.get("adv_norm") or {})]


@pytest.mark.parametrize("name", OF_ONE_STEP)
def test_a_sample_whose_reward_failed_is_in_no_statistic(name: str) -> None:
    assert advantages(name, None, 0.0, 0.0, 0.0) == [0.0, 0.0, 0.0, 0.0]
    assert advantages(name, 1.0, 0.0, 0.0, 0.0)[0] > 0  # had it been scored it would have counted


def test_a_failed_reward_leaves_the_statistics_of_the_others_as_if_it_were_not_there() -> None:
    found = advantages("drgrpo", None, 1.0, 0.0, 0.0)
    assert found == pytest.approx([0.0, 2 / 3, -1 / 3, -1 / 3])


def test_a_failed_sample_stays_in_the_batch_marked_invalid() -> None:
    rollout = collate([group(None, 0.0, 0.0, 0.0)], seed=1, version=0)
    assert rollout.batch.valid_S.tolist() == [False, True, True, True]
    assert rollout.batch.length_S.tolist() == [1, 2, 3, 4]
    assert len(rollout.rows) == 4


def packed(*groups: Group, seed: int = 1) -> RolloutBatch:
    return collate(groups, seed=seed, version=3)


def test_the_version_that_is_trained_is_the_one_after_the_newest() -> None:
    assert packed(group(1.0)).batch.train_version == 4


def same(stream: torch.Tensor | None, expected: list[float]) -> bool:
    """Equal, NaN where NaN is expected."""
    assert stream is not None
    return bool(torch.equal(stream.nan_to_num(-9.0), torch.tensor(expected, dtype=torch.float64).nan_to_num(-9.0)))


NAN = float("nan")


def test_step_rewards_stand_at_their_tokens_and_add_up() -> None:
    made = group(0.0, 0.0, 0.0)  # 1, 2 and 3 tokens
    made.samples[0].step_rewards = [(0, 0.25)]
    made.samples[2].step_rewards = [(2, 1.0), (0, -0.5), (2, 0.5), (1, 0.0)]
    stream = packed(made).batch.step_rewards_T
    assert same(stream, [0.25, NAN, NAN, -0.5, 0.0, 1.5])  # a reward of 0 is a step's end, NaN is none
    assert packed(group(0.0, 0.0)).batch.step_rewards_T is None


def test_step_rewards_count_trained_tokens_over_rows_and_past_what_a_tool_said() -> None:
    told = Row([2, 3, 5, 5, 4], [False, True, False, False, True], [0.0] * 5, [-1] * 5)
    more = Row([2, 6, EOS], [False, True, True], [0.0] * 3, [-1] * 3)
    sample = Sample([told, more], "stop", "", 1.0, step_rewards=[(1, 0.5), (3, 2.0)])
    assert same(packed(Group(0, Prompt("p", (2,), "", {}), [sample])).batch.step_rewards_T, [NAN, 0.5, NAN, 2.0])


@pytest.mark.parametrize(("at", "value"), [(2, 1.0), (-1, 1.0), (1, NAN), (0, float("inf"))])
def test_a_step_reward_without_a_place_or_a_value_is_named(at: int, value: float) -> None:
    made = group(0.0, 0.0, serial=7)
    made.samples[1].step_rewards = [(0, 1.0), (at, value)]
    said = rf"sample 1 of group 7 \(prompt p\): step reward {value} at trained token {at}; .* token of 0 to 1"
    with pytest.raises(ValueError, match=said):
        packed(made)


def test_parts_are_columns_in_the_order_of_their_names() -> None:
    made = group(1.0, 0.5, None)
    made.samples[0].parts = {"style": 0.25, "right": 0.75}
    made.samples[1].parts = {"right": 0.0, "style": 0.5}
    made.samples[2].parts = {"style": 2.0}  # it failed: what it lacks takes nothing from the others
    rollout = packed(made)
    assert rollout.part_names == ("right", "style")
    assert rollout.batch.parts_SR is not None
    assert same(rollout.batch.parts_SR.flatten(), [0.75, 0.25, 0.0, 0.5, NAN, 2.0])
    cut = rollout.select([2, 0])
    assert cut.part_names == ("right", "style")
    assert cut.batch.parts_SR is not None
    assert same(cut.batch.parts_SR.flatten(), [NAN, 2.0, 0.75, 0.25])


def test_what_a_function_told_beside_its_value_is_no_part_of_the_reward() -> None:
    made = group(1.0, 0.5)
    for sample in made.samples:
        sample.parts = {"right": 0.5, "right/digits": 3.0, "far/near": 1.0}
    assert packed(made).part_names == ("far/near", "right")


def test_a_function_that_applies_to_some_samples_only_has_a_column() -> None:
    made = group(1.0, 0.5, None)
    made.samples[0].parts, made.samples[1].parts = {"code": 1.0}, {"math": 0.5}
    made.samples[2].parts = {"failed": 1.0}
    rollout = packed(made)
    assert rollout.part_names == ("code", "math")
    assert rollout.batch.parts_SR is not None
    assert same(rollout.batch.parts_SR.flatten(), [1.0, NAN, NAN, 0.5, NAN, NAN])


def test_without_parts_there_is_no_stream() -> None:
    for made in (group(1.0, 0.0), group(None, None)):
        assert packed(made).batch.parts_SR is None
        assert packed(made).part_names == ()


def test_a_lot_depends_on_seed_group_and_sample_and_on_nothing_else() -> None:
    one, two = group(1.0, 0.0, 0.0, serial=3), group(0.0, 1.0, serial=4)
    lot_S = packed(one, two).batch.lot_S
    assert lot_S is not None and lot_S.dtype == torch.float64
    assert packed(two, one).batch.lot_S.tolist() == [*lot_S[3:], *lot_S[:3]]  # type: ignore[union-attr]
    assert packed(two).select([1, 0]).batch.lot_S.tolist() == [lot_S[4], lot_S[3]]  # type: ignore[union-attr]
    assert len({*lot_S.tolist(), *packed(one, two, seed=2).batch.lot_S.tolist()}) == 10  # type: ignore[union-attr]


def test_a_lot_is_the_first_word_of_philox_at_its_place() -> None:
    """The next counter is used first (numpy increments before it draws): a change of this changes runs."""
    rng = np.random.Generator(np.random.Philox(key=np.array([5, 2**64 - 1], np.uint64), counter=[0, 0, 1, 9]))
    assert packed(group(0.0, 0.0, serial=9), seed=5).batch.lot_S[1] == rng.random()  # type: ignore[index]


def test_lots_are_uniform() -> None:
    lots = torch.cat([packed(group(*[0.0] * 4, serial=serial)).batch.lot_S for serial in range(250)])  # type: ignore[misc]
    assert float(lots.min()) >= 0 and float(lots.max()) < 1
    counts = torch.histc(lots, bins=10, min=0, max=1)
    assert float(((counts - 100) ** 2 / 100).sum()) < 27.9  # chi-squared with 9 degrees of freedom, 0.1 %


def test_an_empty_step_is_an_empty_batch() -> None:
    rollout = packed()
    assert (rollout.rows, rollout.part_names, rollout.batch.samples) == ((), (), 0)
    assert rollout.batch.lot_S is not None and rollout.batch.lot_S.shape == (0,)


def test_parts_of_a_split_are_what_select_gives() -> None:
    made = [group(1.0, None, 0.5, serial=0), group(0.0, 1.0, serial=3)]
    made[0].samples[1].rows[0].trained[1:] = [False, False]  # a sample without any trained token
    rollout = collate(made, seed=1, version=0)
    parts = [[3, 1], [], [0, 4], [2]]
    for part, found in zip(parts, rollout.split(parts), strict=True):
        wanted = rollout.select(part)
        assert (found.rows, found.group_of_sample) == (wanted.rows, wanted.group_of_sample)
        for item in fields(Batch):
            one, other = getattr(found.batch, item.name), getattr(wanted.batch, item.name)
            if isinstance(one, torch.Tensor):
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
            else:
                assert one is other, item.name
    with pytest.raises(ValueError, match="one mark, one log-prob and one version"):
        made[0].samples[0].rows[0].versions.append(0)
        collate(made, seed=1, version=0)
