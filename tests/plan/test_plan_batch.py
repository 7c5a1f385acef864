"""Batch arithmetic by hand: groups whose tokens, minibatches and micro-batches are counted on paper."""

import pytest

from partita.plan import batch
from partita.plan.batch import Asked, Groups, Lengths, batch_of, passes
from partita.run import load_run_config
from partita.trainer import QUICKSTART


def config(*words: str):
    return load_run_config([QUICKSTART], list(words)).value


def test_a_step_by_hand():
    # 8 prompts of 55 tokens, 8 responses each of 28: 64 x 28 generated; read: 8 x 55 + 64 x 27, for no last token is an input
    found = batch_of(config(), Lengths(55.0, 60, 28.0, 32))
    assert (found.prompts, found.samples_per_prompt, found.samples) == (8, 8, 64)
    assert (found.expected.prompts, found.expected.generated, found.expected.trained) == (440, 1792, 1792)
    assert found.expected.read == 440 + 64 * 27
    assert (found.most.generated, found.most.read) == (64 * 32, 8 * 60 + 64 * 31)
    assert (found.actor.optimizer_steps, found.actor.micro_batches, found.actor.largest) == (1, 1, 2168)
    assert found.critic is None


def test_a_budget_cuts_whole_groups():
    # a group is 55 + 8 x 27 = 271 tokens; 600 hold two of them
    found = passes(Groups(8, 8, 55, 28), Asked(1, 1, "groups", 600))
    assert (found.micro_batches, found.largest, found.trained) == (4, 542, 16 * 28)
    assert found.fullest == 600  # shorter responses may fill it, which the memory must hold


def test_a_step_smaller_than_the_budget_is_its_fullest_micro_batch():
    assert passes(Groups(8, 8, 55, 28), Asked(1, 1, "groups", 4096)).fullest == 8 * 271
    assert passes(Groups(8, 8, 55, 28), Asked(1, 2, "groups", 4096)).fullest == 4 * 271
    assert passes(Groups(8, 8, 55, 28), Asked(1, 1, "groups", 4096), 2).fullest == 4 * 271


def test_a_group_larger_than_the_budget_is_cut_with_its_prompt():
    # 4 responses of 99 after 100 tokens: 496; of 300 each part has the prompt again, and two responses
    found = passes(Groups(1, 4, 100, 100), Asked(1, 1, "groups", 300))
    assert (found.micro_batches, found.largest, found.trained) == (2, 100 + 2 * 99, 200)


def test_minibatches_and_epochs_make_optimizer_steps():
    # 6 groups dealt to 4 minibatches: 2, 1, 2, 1 groups; the budget holds one group
    found = passes(Groups(6, 2, 10, 11), Asked(3, 4, "groups", 30))
    assert (found.minibatches, found.optimizer_steps, found.micro_batches, found.per_rank) == (4, 12, 6, 2)


@pytest.mark.parametrize("ranks, per_rank", [(2, 4), (3, 3), (8, 1)])
def test_every_rank_goes_through_as_many_micro_batches(ranks: int, per_rank: int):
    # 8 groups of 271 tokens, one in a micro-batch
    found = passes(Groups(8, 8, 55, 28), Asked(1, 1, "groups", 271), ranks)
    assert (found.micro_batches, found.per_rank) == (8, per_rank)


def test_one_group_is_spread_over_ranks():
    found = passes(Groups(1, 8, 55, 28), Asked(1, 1, "groups", 4096), 4)
    assert (found.micro_batches, found.per_rank, found.largest) == (4, 1, 55 + 2 * 27)


def test_a_critic_has_its_own_numbers():
    found = batch_of(
        config("critic.ppo_epochs=3", "critic.mb_spec.max_tokens_per_mb=300", "actor.ppo_n_minibatches=2"),
        Lengths(55.0, 55, 28.0, 28),
        critic=True,
    )
    assert found.critic is not None
    assert (found.critic.optimizer_steps, found.critic.micro_batches) == (6, 8)
    assert found.actor.optimizer_steps == 2


def test_very_many_tokens_are_counted_in_coarser_ones(monkeypatch):
    asked, groups = Asked(1, 1, "groups", 8192), Groups(16, 4, 256, 1024)
    exact = passes(groups, asked)
    monkeypatch.setattr(batch, "MOST_TOKENS", 4096)
    assert passes(groups, asked) == exact
