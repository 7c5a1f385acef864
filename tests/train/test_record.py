"""The record of a step is enough to compute its losses again, and says what became of every minibatch."""

import math
from dataclasses import replace

import pytest
import torch
from toy import TableModel

from partita.algo.compose import compose
from partita.algo.norm import EmaCenter, EmaScale
from partita.algo.presets import PRESETS, keys_of
from partita.algo.tokens import Current
from partita.records import Group, Prompt, Row, Sample
from partita.train.batch import collate
from partita.train.config import ActorConfig, MicroBatchConfig, OptimizerConfig
from partita.train.learner import Learner
from partita.train.minibatches import minibatches
from partita.train.record import in_batch_order, replay

MIXED, ALIKE = (1.0, 0.0, 0.5), (1.0, 1.0, 1.0)
ANSWERS = (([3, 1, 7], [4, 7], [5, 5, 5, 5]), ([1, 7], [6, 0, 7], [2, 7]))


def sample(ids, reward):
    row = Row([2, *ids], [False] + [True] * len(ids), [0.0] + [-2.2] * len(ids), [-1] + [0] * len(ids))
    return Sample([row], "stop", "", reward)


def rollout_of(*rewards):
    prompt = Prompt("p", (2,), "", {})
    groups = [
        Group(g, prompt, [sample(ids, r) for ids, r in zip(answers, told, strict=True)])
        for g, (answers, told) in enumerate(zip(ANSWERS, rewards, strict=True))
    ]
    return collate(groups, seed=1, version=0)


class Poisoned(TableModel):
    """Gives an infinite entropy in the forward passes with gradient whose numbers are listed."""

    def __init__(self, *bad):
        super().__init__()
        self.bad, self.calls = bad, 0

    def forward(self, packed, *, temperature, entropy=False, against=None):
        streams = super().forward(packed, temperature=temperature, entropy=entropy, against=against)
        self.calls += torch.is_grad_enabled()
        bad = torch.is_grad_enabled() and self.calls in self.bad
        if bad:
            streams.logprobs_T.register_hook(lambda grad_T: grad_T * float("inf"))
        return streams


def learner(model=None, *, budget=4096, reference=None, **keys):
    optimizer = OptimizerConfig(lr=0.3, gradient_clipping=None)
    config = ActorConfig(optimizer=optimizer, mb_spec=MicroBatchConfig(max_tokens_per_mb=budget), **keys)
    return Learner(model or TableModel(), config, torch.float32, 1.0, total_steps=9, seed=1, reference=reference)


def algorithm(**changes):
    keys = replace(keys_of("drgrpo"), **({"loss_agg_mode": "token_mean", "kl_loss_coef": 0.0} | changes))
    return compose(keys, n_samples=3, max_new_tokens=4)


def learned(who, algo, rollout, step=0, **streams):
    scored = who.score(rollout, algo)
    rollout = scored.with_batch(algo.credit(scored.batch.with_(**streams)))
    return rollout, *who.learn(rollout, algo, step)


EVERYTHING = {
    "use_decoupled_loss": True, "entropy_coef": 0.01, "kl_loss_coef": 0.1, "kl_loss_estimator": "full",
    "kl_penalty_coef": 0.2, "kl_penalty_estimator": "full",
}  # fmt: skip


@pytest.mark.parametrize("split", ["groups", "spread"])
@pytest.mark.parametrize("budget", [4096, 5, 1])
@pytest.mark.parametrize("changes", [{}, EVERYTHING], ids=["plain", "everything"])
def test_every_loss_can_be_computed_again_without_the_model(budget, split, changes):
    reference = TableModel()
    with torch.no_grad():
        reference.table.copy_(torch.arange(64).reshape(8, 8) / 40)
    algo = algorithm(**changes)
    who = learner(budget=budget, reference=reference, ppo_epochs=2, ppo_n_minibatches=2, minibatch_split=split)
    rollout, _, record = learned(who, algo, rollout_of(MIXED, MIXED[::-1]))
    assert [step.outcome for step in record.steps] == ["stepped"] * 4
    for step in record.steps:
        again = replay(rollout.batch, algo, step).value.item()
        assert again == step.loss if budget == 4096 else again == pytest.approx(step.loss, abs=1e-12)
        streams = (step.current.logprobs_T, step.current.entropy_T)
        assert all(not stream_T.requires_grad and stream_T.dtype == torch.float64 for stream_T in streams)
    assert sorted(s for step in record.steps[:2] for s in step.samples) == list(range(6))


def test_streams_are_in_the_minibatch_s_order_whatever_the_micro_batches():
    """Micro-batches of the longest pieces first: the order of the forward passes is not that of the samples."""
    found = []
    for budget in (4096, 5, 1):
        who = learner(budget=budget, skip_dead_samples=False)
        with torch.no_grad():
            who.model.table.copy_(torch.arange(64).reshape(8, 8) / 10)
        rollout, _, record = learned(who, algorithm(), rollout_of(MIXED, MIXED))
        found.append(record.steps[0].current)
    log = torch.arange(64, dtype=torch.float64).reshape(8, 8).div(10).log_softmax(-1)
    want = [log[a, b] for (row,) in rollout.rows for a, b in zip(row.ids, row.ids[1:], strict=False)]
    for current in found:
        assert torch.allclose(current.logprobs_T, torch.stack(want), atol=1e-12)
        assert torch.allclose(current.entropy_T, found[0].entropy_T, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRESETS if keys_of(name).credit != "gae"])
@pytest.mark.parametrize(
    "changes", [{}, {"kl_loss_coef": 0.0, "kl_ctl": 0.0, "adaptive_entropy": None}], ids=["whole", "bare"]
)
@pytest.mark.parametrize("split", ["groups", "spread"])
def test_samples_that_cannot_move_anything_are_left_out_exactly(name, changes, split):
    """The same losses and weights after every step, with them and without; and the record says which they were."""
    reference = TableModel()
    with torch.no_grad():
        reference.table.copy_(torch.arange(64).reshape(8, 8) / 40)
    algo, tables, records = prepared(name, **changes), [], []
    for skip in (True, False):
        who = learner(
            reference=reference, ppo_epochs=2, ppo_n_minibatches=2, minibatch_split=split, skip_dead_samples=skip
        )
        rollout, metrics, record = learned(who, algo, rollout_of(MIXED, ALIKE))
        tables.append(who.model.table.detach().clone())
        records.append(record)
        for step in record.steps:
            again = replay(rollout.batch, algo, step)
            assert (again is None and step.loss == 0) or again.value.item() == pytest.approx(step.loss, abs=1e-12)
            assert step.current is None or len(step.current.logprobs_T) == int(
                rollout.batch.length_S[list(step.computed)].sum()
            )
        values = metrics.as_dict()
        gone = sum(len(step.left_out) for step in record.steps)
        assert values["skipped_samples"] == pytest.approx(gone / sum(len(step.samples) for step in record.steps))
    assert torch.allclose(*tables, rtol=0, atol=1e-9)
    one, two = ([(step.samples, step.outcome, step.unmoved) for step in record.steps] for record in records)
    assert one == two
    assert [step.loss for step in records[0].steps] == pytest.approx(
        [step.loss for step in records[1].steps], abs=1e-12
    )


def test_what_is_left_out_is_seen_by_no_model_and_is_in_the_metrics():
    class Counted(TableModel):
        tokens = 0

        def forward(self, packed, *, temperature, entropy=False, against=None):
            self.tokens += len(packed.target_T)
            return super().forward(packed, temperature=temperature, entropy=entropy, against=against)

    seen = {}
    for skip, whole in ((True, False), (True, True), (False, False)):
        who = learner(Counted(), skip_dead_samples=skip)
        algo = algorithm()
        rollout = rollout_of(MIXED, ALIKE)
        rollout = rollout.with_batch(algo.credit(rollout.batch))
        metrics, record = who.learn(rollout, algo, 0, whole=whole)
        values = metrics.as_dict()
        seen[skip, whole] = who.model.tokens
        assert values["skipped_tokens"] * 16 == 16 - who.model.tokens and values["effective_tokens"] == 16
        assert (record.steps[0].left_out == (2, 3, 4, 5)) is (skip and not whole)  # 0.5 is the mean of its group
    assert seen == {(True, False): 5, (True, True): 16, (False, False): 16}


def prepared(name, **changes):
    keys = replace(keys_of(name), **changes)
    algo = compose(keys, n_samples=3, max_new_tokens=4)
    if algo.norm is not None and algo.norm.running:  # what its controller would put in place
        algo = replace(algo, norm=replace(algo.norm, center=EmaCenter(0.4), scale=EmaScale(0.2)))
    return algo


def test_micro_batches_are_put_back_by_sample():
    parts = [([2, 0], Current(torch.tensor([20.0, 21.0, 0.0]))), ([3, 1], Current(torch.tensor([10.0, 11.0])))]
    back = in_batch_order(parts, torch.tensor([1, 2, 2, 0]))
    assert back.logprobs_T.tolist() == [0.0, 10.0, 11.0, 20.0, 21.0]
    assert back.entropy_T is None


def test_a_dead_first_minibatch_has_moved_nothing_so_the_next_is_still_on_policy():
    algo = algorithm()
    step = next(
        step for step in range(9) if minibatches([0, 0, 0, 1, 1, 1], 2, "groups", (1, step, 0))[0] == [3, 4, 5]
    )  # the group without spread comes first
    rollout = rollout_of(MIXED, ALIKE)
    far_T = torch.full((16,), -9.0, dtype=torch.float64)  # no ratio to it is near 1
    who, alone = learner(ppo_n_minibatches=2), learner()
    rollout, metrics, record = learned(who, algo, rollout, step, prox_T=far_T)
    assert [taken.outcome for taken in record.steps] == ["dead", "stepped"]
    assert [taken.unmoved for taken in record.steps] == [True, True]
    assert record.steps[0].current is None and record.steps[0].loss == 0.0
    assert replay(rollout.batch, algo, record.steps[0]) is None
    values = metrics.as_dict()
    assert values["ratio"] == 1.0 and values["dead_steps"] == 1 and values["optimizer_steps"] == 1
    alone.learn(rollout.select([0, 1, 2]), algo, step)
    assert torch.equal(who.model.table, alone.model.table)


@pytest.mark.filterwarnings("ignore:step")
def test_a_skipped_step_has_moved_nothing_and_a_taken_one_has():
    algo = algorithm(entropy_coef=0.01)
    who = learner(Poisoned(1, 3), ppo_epochs=4)
    _, metrics, record = learned(who, algo, rollout_of(MIXED, MIXED))
    assert [taken.outcome for taken in record.steps] == ["skipped", "stepped", "skipped", "stepped"]
    assert [taken.unmoved for taken in record.steps] == [True, True, False, False]
    assert metrics.as_dict()["nonfinite_steps"] == 2
    assert math.isfinite(record.steps[2].loss) and record.steps[2].current is not None
