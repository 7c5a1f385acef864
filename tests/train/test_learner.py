import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy import TableModel

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.algo.norm import EmaCenter, EmaScale
from partita.algo.presets import PRESETS, keys_of
from partita.models.attention import ATTENTION, register
from partita.models.families import tiny
from partita.models.packed import PackedModel, Streams
from partita.ops.packing import Packed
from partita.records import Group, Prompt, Row, Sample
from partita.train.batch import RolloutBatch, collate
from partita.train.checkpoint import load_checkpoint, save_checkpoint
from partita.train.config import ActorConfig, MicroBatchConfig, OptimizerConfig
from partita.train.learner import Learner
from partita.train.stepper import LearnerError


def sample(ids: list[int], reward: float | None, stop: str = "stop") -> Sample:
    row = Row([2, *ids], [False] + [True] * len(ids), [0.0] + [-2.0] * len(ids), [-1] + [0] * len(ids))
    status = "ok" if reward is not None else "reward_error"
    return Sample([row], stop, "", reward, status=status)  # type: ignore[arg-type]


def groups() -> list[Group]:
    prompt = Prompt("p", (2,), "", {})
    return [
        Group(0, prompt, [sample([3, 1, 7], 1.0), sample([4, 7], 0.0), sample([5, 5, 5, 5], 0.0, "length")]),
        Group(1, prompt, [sample([1, 7], 1.0), sample([6, 0, 7], 1.0), sample([2, 7], 0.0)]),
    ]


def learner(model: TableModel | None = None, *, lr: float = 0.1, budget: int = 4096, **keys) -> Learner:
    optimizer = OptimizerConfig(lr=lr, gradient_clipping=keys.pop("gradient_clipping", None))
    config = ActorConfig(optimizer=optimizer, mb_spec=MicroBatchConfig(max_tokens_per_mb=budget), **keys)
    return Learner(model or TableModel(), config, torch.float32, 1.0, total_steps=10, seed=1)  # type: ignore[arg-type]


def algorithm(name: str = "grpo", **changes) -> Algorithm:
    keys = replace(keys_of(name), **({"kl_loss_coef": 0.0, "kl_ctl": 0.0} | changes))
    algo = compose(keys, n_samples=3, max_new_tokens=4)
    if algo.norm is not None and algo.norm.running:  # what its controller would put in place
        algo = replace(algo, norm=replace(algo.norm, center=EmaCenter(0.4), scale=EmaScale(0.2)))
    return algo


CRITIC = [name for name in PRESETS if keys_of(name).credit == "gae"]


def credited(algo: Algorithm, made: list[Group] | None = None) -> RolloutBatch:
    rollout = collate(made or groups(), seed=1, version=0)
    return rollout.with_batch(algo.credit(rollout.batch))


def test_first_step_descends_the_advantage_weighted_gradient() -> None:
    algo = algorithm()
    who = learner(lr=0.0)
    rollout = credited(algo)
    seen: list[torch.Tensor] = []
    who.model.table.register_hook(lambda grad: seen.append(grad.clone()))  # type: ignore[attr-defined]
    who.learn(rollout, algo, 0)
    weighted = algo.weights(rollout.batch)
    want = torch.zeros(
        8, 8, dtype=torch.float64
    )  # at ratio 1 the gradient is -w A dlogp; dlogp = onehot - 1/8 on a flat table
    position = 0
    for rows in rollout.rows:
        for row in rows:
            for before, token in zip(row.ids, row.ids[1:], strict=False):
                pull = -float(weighted.weight_T[position] * weighted.advantages_T[position])  # type: ignore[index]
                want[before] -= pull / 8
                want[before, token] += pull
                position += 1
    assert torch.allclose(sum(seen), want, atol=1e-9)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRESETS if name not in CRITIC])
@pytest.mark.parametrize("split", ["groups", "spread"])
def test_weights_after_a_step_do_not_depend_on_the_token_budget(name: str, split: str) -> None:
    algo = algorithm(name)
    tables = []
    for budget in (1, 7, 4096):
        who = learner(budget=budget, ppo_epochs=2, ppo_n_minibatches=2, minibatch_split=split)
        rollout = who.score(collate(groups(), seed=1, version=0), algo)
        who.learn(rollout.with_batch(algo.credit(rollout.batch)), algo, 0)
        tables.append(who.model.table.detach().clone())  # type: ignore[attr-defined]
    assert not torch.equal(tables[0], torch.zeros(8, 8, dtype=torch.float64))
    assert torch.allclose(tables[0], tables[1], atol=1e-9) and torch.allclose(tables[0], tables[2], atol=1e-9)


def test_metrics_do_not_depend_on_the_token_budget() -> None:
    algo = algorithm()
    found = []
    for budget in (1, 4096):
        who = learner(budget=budget)
        found.append(who.learn(credited(algo), algo, 0)[0].as_dict())
    assert found[0].keys() == found[1].keys()
    assert all(found[0][name] == pytest.approx(found[1][name], abs=1e-9) for name in found[0])
    assert found[0]["effective_tokens"] == 16 and found[0]["entropy"] == pytest.approx(math.log(8))


def test_score_gives_logprobs_in_the_batch_s_own_order() -> None:
    model = TableModel()
    with torch.no_grad():
        model.table.copy_(torch.arange(64).reshape(8, 8) / 10)
    scored = learner(model, budget=3, ppo_epochs=2).score(collate(groups(), seed=1, version=0), algorithm()).batch
    log = model.table.detach().log_softmax(-1)
    want = [
        log[a, b] for g in groups() for s in g.samples for a, b in zip(s.rows[0].ids, s.rows[0].ids[1:], strict=False)
    ]
    assert torch.allclose(scored.prox_T.double(), torch.stack(want), atol=1e-6)  # type: ignore[union-attr]


class Reading(TableModel):
    """Remembers its model inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Packed] = []

    def forward(self, packed, *, temperature: float, entropy: bool = False, against=None) -> Streams:
        self.seen.append(packed)
        return super().forward(packed, temperature=temperature, entropy=entropy, against=against)


def test_policy_and_reference_read_the_same_packed_micro_batches_once_each() -> None:
    model, reference = Reading(), Reading()
    who = learner(model, budget=7, ppo_epochs=2, skip_dead_samples=False)
    who.reference = reference  # type: ignore[assignment]
    algo = algorithm(kl_loss_coef=0.1)
    scored = who.score(collate(groups(), seed=1, version=0), algo)
    assert len(model.seen) > 1 and all(a is b for a, b in zip(model.seen, reference.seen, strict=True))
    alone = learner(TableModel(), budget=4096, ppo_epochs=2).score(collate(groups(), seed=1, version=0), algorithm())
    assert torch.equal(scored.batch.prox_T, alone.batch.prox_T)  # type: ignore[arg-type]
    passes = len(model.seen)
    who.learn(scored.with_batch(algo.credit(scored.batch)), algo, 0)
    assert len(model.seen) == 3 * passes and len(reference.seen) == passes


def test_seconds_of_models_and_optimizer_are_counted_apart() -> None:
    who, algo = learner(ppo_epochs=2), algorithm()
    scored = who.score(collate(groups(), seed=1, version=0), algo)
    assert who.timer.take().keys() == {"time/forward_backward"}
    who.learn(scored.with_batch(algo.credit(scored.batch)), algo, 0)
    spent = who.timer.take()
    assert spent.keys() == {"time/forward_backward", "time/optimizer"} and min(spent.values()) > 0


def test_one_optimizer_step_needs_no_scoring_pass() -> None:
    assert learner().score(collate(groups(), seed=1, version=0), algorithm()).batch.prox_T is None


@pytest.mark.parametrize("skip", [True, False])
def test_a_step_without_signal_is_dead_and_leaves_everything_as_it_was(skip: bool) -> None:
    who, algo = learner(Reading(), skip_dead_samples=skip), algorithm()
    alike = [Group(0, Prompt("p", (2,), "", {}), [sample([3, 7], 0.7) for _ in range(8)])]
    metrics, record = who.learn(credited(algo, alike), algo, 0)
    values = metrics.as_dict()
    assert values["dead_steps"] == 1 and "optimizer_steps" not in values and record.steps[0].outcome == "dead"
    assert not who.model.table.any() and who.model.table.grad is None and not who.stepper.optimizer.state  # type: ignore[attr-defined]
    passed = record.steps[0].current
    assert (passed is None) is skip is not bool(who.model.seen)  # type: ignore[attr-defined]
    assert ("entropy" in values) is not skip and values["skipped_samples"] == skip


def test_samples_without_a_reward_are_not_trained_on() -> None:
    algo = algorithm("drgrpo")
    broken = groups()
    broken[0].samples[1] = sample([4, 7], None)
    whole = learner()
    whole.learn(credited(algo, broken), algo, 0)
    assert not whole.model.table[4].any()  # type: ignore[attr-defined]
    assert whole.model.table[3].any()  # type: ignore[attr-defined]
    nothing = [Group(0, Prompt("p", (2,), "", {}), [sample([3, 7], None)] * 3)]
    assert learner().learn(credited(algo, nothing), algo, 0)[0].as_dict()["dead_steps"] == 1


class Poisoned(TableModel):
    """Gives a loss that is not finite in the forward passes whose numbers are listed."""

    def __init__(self, bad: set[int]) -> None:
        super().__init__()
        self.bad, self.calls = bad, 0

    def forward(self, packed, *, temperature: float, entropy: bool = False, against=None) -> Streams:
        self.calls += 1
        streams = super().forward(packed, temperature=temperature, entropy=entropy, against=against)
        if self.calls in self.bad:
            return Streams(streams.logprobs_T, streams.entropy_T * float("inf"))  # type: ignore[operator]
        return streams


def test_a_nonfinite_step_is_skipped_bit_for_bit_counted_and_training_goes_on() -> None:
    model = Poisoned({3})
    who, algo = learner(model), algorithm(entropy_coef=0.01)
    counts = []
    for step in range(6):
        before = (
            model.table.detach().clone(),
            [t.clone() for s in who.stepper.optimizer.state.values() for t in s.values()],
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            values = who.learn(credited(algo), algo, step)[0].as_dict()
        counts.append(values.get("nonfinite_steps", 0))
        if counts[-1]:
            assert torch.equal(model.table.detach(), before[0])
            after = [t for s in who.stepper.optimizer.state.values() for t in s.values()]
            assert all(torch.equal(a, b) for a, b in zip(after, before[1], strict=True))
            assert "step 3" in str(caught[0].message)
        else:
            assert not torch.equal(model.table.detach(), before[0])
    assert counts == [0, 0, 1, 0, 0, 0]


@pytest.mark.filterwarnings("ignore:step")
def test_too_many_nonfinite_steps_in_a_row_end_the_run() -> None:
    who, algo = learner(Poisoned({1, 2, 3}), max_nonfinite_steps=3), algorithm(entropy_coef=0.01)
    who.learn(credited(algo), algo, 0)
    who.learn(credited(algo), algo, 1)
    with pytest.raises(LearnerError, match=r"3 optimizer steps in a row.*step 3"):
        who.learn(credited(algo), algo, 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("gradient_clipping", [None, 1.0])
def test_one_nonfinite_gradient_element_skips_the_step_and_leaves_no_trace(value, gradient_clipping) -> None:
    algo, who, twin = algorithm(), *(learner(gradient_clipping=gradient_clipping) for _ in range(2))
    poisoned = [False]

    def poison(grad: torch.Tensor) -> torch.Tensor:
        changed = grad.clone()
        changed[3, 1] = value
        return changed if poisoned[0] else grad

    who.model.table.register_hook(poison)  # type: ignore[attr-defined]
    who.learn(credited(algo), algo, 0)
    before = [t.clone() for t in held(who)]
    poisoned[0] = True
    with pytest.warns(UserWarning, match="step 2: optimizer step of actor skipped"):
        values = who.learn(credited(algo), algo, 1)[0].as_dict()
    assert values["nonfinite_steps"] == 1 and "optimizer_steps" not in values and math.isfinite(values["loss"])
    assert all(torch.equal(a, b) for a, b in zip(before, held(who), strict=True))
    poisoned[0] = False
    for step in (0, 2):  # the one that never saw the bad gradient
        twin.learn(credited(algo), algo, step)
    who.learn(credited(algo), algo, 2)
    assert who.stepper.skipped_in_a_row == 0
    assert all(torch.equal(a, b) for a, b in zip(held(who), held(twin), strict=True))


def held(who: Learner) -> list[torch.Tensor]:
    """Weights, moments and step counts."""
    return [
        *who.model.parameters(),
        *(state[k] for state in who.stepper.optimizer.state.values() for k in sorted(state)),
    ]


def scheduled(seed: int) -> Learner:
    """Warm-up of 10 steps and a cosine over 100, two optimizer steps per batch; random weights."""
    spec = OptimizerConfig(lr=0.05, warmup_steps=10, lr_scheduler_type="cosine", weight_decay=0.01)
    config = ActorConfig(optimizer=spec, ppo_n_minibatches=2)
    model = TableModel()
    with torch.no_grad():
        model.table.copy_(torch.randn(8, 8, generator=torch.Generator().manual_seed(seed)))
    return Learner(model, config, torch.float32, 1.0, total_steps=100, seed=1)  # type: ignore[arg-type]


def taught(who: Learner, steps: range) -> list[list[torch.Tensor]]:
    """After each step: learning rate, weights, moments and step counts."""
    algo, seen = algorithm(), []
    for step in steps:
        made = groups()
        made[step % 2].samples[step % 3].reward = 0.5 + step / 100  # every step learns from other rewards
        scored = who.score(collate(made, seed=1, version=step), algo)
        values = who.learn(scored.with_batch(algo.credit(scored.batch)), algo, step)[0].as_dict()
        seen.append([torch.tensor(values["lr"], dtype=torch.float64), *(t.detach().clone() for t in held(who))])
    return seen


def test_a_new_learner_from_a_checkpoint_goes_on_step_by_step(tmp_path: Path) -> None:
    straight = taught(scheduled(seed=0), range(40))
    first = scheduled(seed=0)
    taught(first, range(20))
    folder = save_checkpoint(tmp_path, 20, first.model, first.stepper.optimizer, first.state_dict(), keep_last=1)
    second = scheduled(seed=9)
    second.load_state_dict(load_checkpoint(folder, second.model, second.stepper.optimizer))
    resumed = taught(second, range(20, 40))
    assert [float(step[0]) for step in straight[8:12]] == [0.05 * 9 / 10, 0.05, 0.05, pytest.approx(0.04998477)]
    for step, (want, got) in enumerate(zip(straight[20:], resumed, strict=True), start=20):
        assert len(want) == len(got) == 5  # rate, table, step count, two moments
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True)), f"step {step}"
    assert not torch.equal(straight[19][1], straight[20][1])


def language_model(recompute: bool) -> tuple[PackedModel, list[int]]:
    """A tiny Llama, and how often the inside of its first layer ran."""
    register()
    lm = tiny("Llama", torch.float32)
    lm.set_attn_implementation(ATTENTION)
    model, calls = PackedModel(lm), [0]
    if recompute:
        model.lm.activation_checkpointing_enable()
        model.train()
    lm.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    return model, calls


def test_recomputation_stays_on_from_step_to_step_and_changes_no_weight() -> None:
    algo, ended = algorithm(), []
    for recompute in (False, True):
        model, calls = language_model(recompute)
        config = ActorConfig(optimizer=OptimizerConfig(lr=1e-3), ppo_epochs=2, gradient_checkpointing=recompute)
        who = Learner(model, config, torch.float32, 1.0, total_steps=10, seed=1)
        for step in range(3):
            calls[0] = 0
            scored = who.score(collate(groups(), seed=1, version=0), algo)
            assert calls[0] == 1
            who.learn(scored.with_batch(algo.credit(scored.batch)), algo, step)
            assert calls[0] == 1 + 2 * (2 if recompute else 1)  # two epochs, each forward once more in the backward
            assert all(module.training == recompute for module in model.lm.modules())
        ended.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ended, strict=True))


def test_learning_rate_follows_the_schedule() -> None:
    spec = OptimizerConfig(lr=1.0, warmup_steps=10, lr_scheduler_type="cosine")
    assert [spec.rate(step, 100) for step in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert spec.rate(10, 100) == 1.0
    assert spec.rate(55, 100) == pytest.approx(0.5)
    assert 0 < spec.rate(99, 100) < 0.001
    linear = OptimizerConfig(lr=2.0, lr_scheduler_type="linear", min_lr_ratio=0.5)
    assert linear.rate(0, 4) == 2.0 and linear.rate(2, 4) == 1.5
    assert OptimizerConfig(lr=3.0).rate(7, 10) == 3.0


def test_gradient_clipping_bounds_the_norm() -> None:
    algo = algorithm("rloo")
    who = learner(gradient_clipping=1e-3)
    sizes: list[float] = []
    who.stepper.optimizer.register_step_pre_hook(lambda *_: sizes.append(float(who.model.table.grad.norm())))  # type: ignore[attr-defined]
    values = who.learn(credited(algo), algo, 0)[0].as_dict()
    assert values["grad_norm"] > 0.1 and sizes == [pytest.approx(1e-3, rel=1e-3)]
