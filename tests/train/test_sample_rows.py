"""A sample of several rows is one sample: its reward counts once, and its tokens count together, as if they stood in one row."""

from dataclasses import replace

import pytest
import torch
from toy import TableModel

from partita.algo.compose import compose
from partita.algo.presets import keys_of
from partita.ops.returns import reward_to_go
from partita.records import Group, Prompt, Row, Sample
from partita.train.batch import collate
from partita.train.config import ActorConfig, OptimizerConfig
from partita.train.learner import Learner

TOLD = 6  # what somebody else says: a token that nobody trains
PRESETS = ["grpo", "drgrpo", "dapo", "gspo", "rloo", "liteppo", "sapo", "cispo"]


def row(*parts: list[int]) -> Row:
    """A prompt, what the policy wrote, what it was told, what it wrote, ..."""
    ids = [one for part in parts for one in part]
    trained = [own for at, part in enumerate(parts) for own in [at % 2 == 1] * len(part)]
    return Row(ids, trained, [-2.0 * own for own in trained], [own - 1 for own in trained])


def sample(turns: list[list[int]], reward: float, rows: int) -> Sample:
    """Turns of the policy in one row, or in a row each that shows the turns before it anew."""
    if rows == 1:
        parts = [[2]]
        for turn in turns:
            parts += [turn, [TOLD]]
        return Sample([row(*parts[:-1])], "stop", "", reward)
    made = [row([2] if k == 0 else [2, 5, *turns[k - 1][:1], TOLD], turn) for k, turn in enumerate(turns)]
    return Sample(made, "stop", "", reward)


TURNS = [
    ([[3, 1, 7], [4, 7], [1, 1, 7]], 1.0), ([[4, 7]], 0.0), ([[5, 5, 5, 5], [3, 7]], 0.5), ([[1, 7]], 0.0),
]  # fmt: skip


def groups(rows: int) -> list[Group]:
    samples = [sample(turns, reward, rows) for turns, reward in TURNS]
    return [Group(0, Prompt("p", (2,), "", {}), samples), Group(1, Prompt("q", (2,), "", {}), samples[::-1])]


@pytest.mark.parametrize("name", PRESETS)
def test_rows_change_neither_advantages_nor_weights_nor_the_step(name: str) -> None:
    keys = replace(keys_of(name), kl_loss_coef=0.0, kl_ctl=0.0)
    algorithm = compose(keys, n_samples=4, max_new_tokens=8)
    found = []
    for rows in (1, 3):
        config = ActorConfig(optimizer=OptimizerConfig(lr=0.1))
        who = Learner(TableModel(), config, torch.float32, 1.0, total_steps=10, seed=1)  # type: ignore[arg-type]
        rollout = who.score(collate(groups(rows), seed=1, version=0), algorithm)
        batch = algorithm.credit(rollout.batch)
        who.learn(rollout.with_batch(batch), algorithm, 0)
        found.append((batch, algorithm.weights(batch), who.model.table.detach().clone()))  # type: ignore[attr-defined]
    (one, weighed, table), (several, weighed_too, table_too) = found
    assert [len(made.rows) for made in groups(3)[0].samples] == [3, 1, 2, 1]
    assert several.length_S.tolist() == one.length_S.tolist() == [8, 2, 6, 2, 2, 6, 2, 8]
    assert torch.equal(one.advantages_T, several.advantages_T)  # type: ignore[arg-type]
    assert torch.equal(weighed.weight_T, weighed_too.weight_T)  # type: ignore[arg-type]
    # the policy is a table of the token before, and those are the same in both
    assert torch.allclose(table, table_too, atol=1e-12) and not torch.equal(
        table, torch.zeros(8, 8, dtype=torch.float64)
    )


def test_a_trajectory_of_two_rows_has_one_advantage_at_every_token_that_it_wrote() -> None:
    first = Row([2, 3, 4, 6], [False, True, True, False], [0.0] * 4, [0] * 4)
    second = Row([2, 3, 4, 7], [False, False, False, True], [0.0] * 4, [0] * 4)
    two = Sample([first, second], "stop", "", 2.0)
    other = Sample([Row([2, 7], [False, True], [0.0] * 2, [0] * 2)], "stop", "", 0.0)
    keys = replace(keys_of("drgrpo"), kl_loss_coef=0.0)
    batch = collate([Group(0, Prompt("p", (2,), "", {}), [two, other])], seed=1, version=0).batch
    credited = compose(keys, n_samples=2, max_new_tokens=8).credit(batch)
    assert batch.samples == 2 and credited.advantages_T is not None
    assert credited.advantages_T.tolist() == [
        1.0,
        1.0,
        1.0,
        -1.0,
    ]  # the mean of 2 and 0 is that of two samples, not of three rows


def test_returns_cross_what_a_tool_said() -> None:
    talked = Sample(
        [Row([2, 3, 6, 6, 4, 7], [False, True, False, False, True, True], [0.0] * 6, [0] * 6)], "stop", "", 2.0
    )
    batch = collate([Group(0, Prompt("p", (2,), "", {}), [talked])], seed=1, version=0).batch
    rewards_T = torch.tensor([0.0, 0.0, 2.0], dtype=torch.float64)
    assert reward_to_go(rewards_T, batch.seq_T, 0.5).tolist() == [0.5, 1.0, 2.0]


def test_rewards_of_turns_credit_the_turns_up_to_their_own() -> None:
    made = groups(3)[0]
    made.samples[0].step_rewards = [(2, 0.0), (4, 0.0), (7, 1.0)]
    for other, value in zip(made.samples[1:], (0.0, 0.0, 0.0), strict=True):
        other.step_rewards = [(other.length - 1, value)]
    keys = replace(keys_of("drgrpo"), kl_loss_coef=0.0, credit="process", adv_norm=None)
    batch = compose(keys, n_samples=4, max_new_tokens=8).credit(collate([made], seed=1, version=0).batch)
    assert batch.advantages_T is not None
    first = batch.advantages_T[:8].tolist()
    assert first == [first[0]] * 8 and first[0] > 0  # the last turn's reward is every earlier token's, too
