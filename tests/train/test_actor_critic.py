"""Learner and critic take the golden cases' numbers from models, step by step as a run does, and give losses and gradients."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conforming.case import Fields
from conforming.layout import Layout
from scripted import Scripted, scripted_rows

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.algo.presets import keys_of
from partita.records import Group, Prompt, Sample
from partita.report.metrics import Timer
from partita.train.batch import RolloutBatch, collate
from partita.train.config import ActorConfig, CriticConfig, MicroBatchConfig, OptimizerConfig
from partita.train.critic import Critic
from partita.train.learner import Learner

GOLDEN = Path(__file__).parents[1] / "golden"
STILL = OptimizerConfig(lr=0.0, weight_decay=0.0, gradient_clipping=None)


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def close(actual: torch.Tensor, expected: Any, atol: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), atol=atol, rtol=1e-6)


def layout_of(case) -> Layout:
    return Layout.of(Fields("inputs", case["inputs"]))


def rollout_of(layout: Layout, truncated=()) -> RolloutBatch:
    """The case's rows as a run has them, each with its reward."""
    rewards = layout.per_row("rewards", 0.0).tolist()
    groups: dict[int, Group] = {}
    for b, (row, serial) in enumerate(
        zip(scripted_rows(layout.mask_BW), layout.per_row("group_ids", 0).tolist(), strict=True)
    ):
        group = groups.setdefault(serial, Group(serial, Prompt("p", (0,), "", {}), []))
        group.samples.append(Sample([row], "length" if b in truncated else "stop", "", float(rewards[b]), status="ok"))
    return collate(list(groups.values()), seed=1, version=0)


def critic_of(model: Scripted, budget: int, **keys) -> Critic:
    config = CriticConfig(optimizer=STILL, mb_spec=MicroBatchConfig(max_tokens_per_mb=budget), **keys)
    return Critic(model, config, torch.float32, 10, seed=1, max_nonfinite_steps=3)  # type: ignore[arg-type]


def gae(**keys) -> Algorithm:
    plain = {"kl_ctl": 0.0, "adv_norm": None, "kl_loss_coef": 0.0, "gae_lambda": 1.0}
    return compose(replace(keys_of("ppo"), **(plain | keys)), n_samples=4, max_new_tokens=4)


@pytest.mark.parametrize("budget", [1, 4096])
def test_a_step_of_ppo_is_the_whole_algorithm(budget):
    case = golden("e2e_ppo_actor_critic")
    layout, want = layout_of(case), case["expected"]
    algorithm = compose(keys_of("ppo"), n_samples=3, max_new_tokens=4)
    old_T = layout.tokens("old_logp")
    # scored, then a first step that moves nothing, then the policy of the case
    policy = Scripted([old_T, old_T, layout.tokens("logp")])
    config = ActorConfig(optimizer=STILL, mb_spec=MicroBatchConfig(max_tokens_per_mb=budget), ppo_epochs=2)
    reference = Scripted([layout.tokens("ref_logp")])
    learner = Learner(policy, config, torch.float32, 1.0, 10, seed=1, reference=reference)  # type: ignore[arg-type]
    judge = Scripted([layout.tokens("old_values"), layout.tokens("values")], torch.zeros(layout.mask_BW.sum()))
    critic = critic_of(judge, budget, ppo_epochs=1)

    rollout = critic.score(learner.score(rollout_of(layout), algorithm))
    rollout = rollout.with_batch(algorithm.credit(rollout.batch))
    close(layout.padded(rollout.batch.returns_T), want["returns"])
    close(layout.padded(rollout.batch.advantages_T), want["advantages"], atol=1e-5)

    told = critic.learn(rollout, algorithm, 0, epochs=2, count=1).as_dict()
    assert told["critic/loss"] == pytest.approx(want["value_loss"], abs=1e-6)
    close(layout.padded(judge.gradients[1]), want["grad_values"])
    _, record = learner.learn(rollout, algorithm, 0)
    assert [step.unmoved for step in record.steps] == [True, False]
    assert record.steps[1].loss == pytest.approx(want["policy_loss"], abs=1e-6)
    close(layout.padded(policy.gradients[2]), want["grad_logp"])


@pytest.mark.parametrize(
    "name",
    [
        "gae_gamma099_lambda095",
        "gae_gamma1_lambda0",
        "gae_gamma1_lambda1",
        "gae_left_pad_and_tool_tokens",
        "gae_truncation_bootstrap",
    ],
)
@pytest.mark.parametrize("budget", [1, 4096])
def test_values_that_a_critic_scored_give_the_advantages_of_gae(name, budget):
    case = golden(name)
    layout, after = layout_of(case), case["inputs"].get("bootstrap_values", [0.0] * len(case["inputs"]["mask"]))
    truncated = [b for b, value in enumerate(after) if value]
    ends_T = torch.tensor(after, dtype=torch.float64)[layout.seq_T]
    algorithm = gae(
        discount=case["config"]["gamma"], gae_lambda=case["config"]["lam"], bootstrap_truncated=bool(truncated)
    )
    rollout = critic_of(Scripted([layout.tokens("values")], ends_T), budget).score(rollout_of(layout, truncated))
    batch = algorithm.credit(rollout.batch.with_(token_rewards_T=layout.tokens("token_rewards")))
    close(layout.padded(batch.advantages_T), case["expected"]["advantages"])
    close(layout.padded(batch.returns_T), case["expected"]["returns"])


@pytest.mark.parametrize("name", ["value_loss_clipped", "value_loss_unclipped"])
@pytest.mark.parametrize("budget", [1, 4096])
def test_a_critic_s_step_has_the_loss_and_the_gradient_of_the_case(name, budget):
    case = golden(name)
    layout, config = layout_of(case), case["config"]
    algorithm = gae(value_eps_clip=config["value_clip"], value_loss_half=config["half"])
    judge = Scripted([layout.tokens("old_values"), layout.tokens("values")], torch.zeros(layout.mask_BW.sum()))
    critic = critic_of(judge, budget)
    rollout = critic.score(rollout_of(layout))
    rollout = rollout.with_batch(algorithm.credit(rollout.batch).with_(returns_T=layout.tokens("returns")))
    told = critic.learn(rollout, algorithm, 0, epochs=1, count=1).as_dict()
    assert told["critic/loss"] == pytest.approx(case["expected"]["loss"], abs=1e-6)
    close(layout.padded(judge.gradients[1]), case["expected"]["grad_values"])


def test_a_critic_s_own_minibatches_and_epochs_count():
    layout = Layout.of(Fields("inputs", {"mask": [[1, 1], [1, 0], [1, 1], [1, 1]], "group_ids": [0, 0, 1, 1]}))
    algorithm, tokens = gae(), int(layout.mask_BW.sum())
    for keys, steps in (
        ({}, 6),
        ({"ppo_epochs": 1}, 2),
        ({"ppo_n_minibatches": 1}, 3),
        ({"ppo_n_minibatches": 4, "minibatch_split": "spread"}, 12),
    ):
        critic = critic_of(Scripted([torch.zeros(tokens)], torch.zeros(tokens)), 4096, **keys)
        rollout = critic.score(rollout_of(layout))
        rollout = rollout.with_batch(algorithm.credit(rollout.batch))
        assert critic.learn(rollout, algorithm, 0, epochs=3, count=2).as_dict()["critic/optimizer_steps"] == steps


def test_a_sample_without_a_reward_teaches_the_critic_nothing():
    layout = Layout.of(Fields("inputs", {"mask": [[1, 1], [1, 1]]}))
    rollout = rollout_of(layout)
    rollout = rollout.with_batch(rollout.batch.with_(valid_S=torch.tensor([True, False])))
    judge = Scripted([torch.ones(4)], torch.zeros(4))
    critic, algorithm = critic_of(judge, 4096), gae()
    rollout = critic.score(rollout)
    told = critic.learn(rollout.with_batch(algorithm.credit(rollout.batch)), algorithm, 0, 1, 1).as_dict()
    assert judge.gradients[0].tolist() == [0.5, 0.5, 0.0, 0.0] and told["critic/optimizer_steps"] == 1
    nothing = rollout.with_batch(rollout.batch.with_(valid_S=torch.tensor([False, False])))
    told = critic.learn(nothing.with_batch(algorithm.credit(nothing.batch)), algorithm, 0, 1, 1).as_dict()
    assert told["critic/dead_steps"] == 1 and "critic/optimizer_steps" not in told


def test_how_well_values_foretell_returns_is_logged():
    layout = Layout.of(Fields("inputs", {"mask": [[1, 1], [1, 1]], "rewards": [1.0, 0.0]}))
    algorithm, explained = gae(), {}
    for name, said in (("perfect", [1.0, 1.0, 0.0, 0.0]), ("a constant", [0.3] * 4), ("worse", [0.0, 0.0, 1.0, 1.0])):
        rollout = critic_of(Scripted([torch.tensor(said)], torch.zeros(4)), 4096).score(rollout_of(layout))
        batch = algorithm.credit(rollout.batch)
        found = {name: float(value[0] / value[1]) for name, value in algorithm.credit_stats(batch).items()}
        explained[name] = found["critic/explained_variance"]
    assert explained == pytest.approx({"perfect": 1.0, "a constant": 0.0, "worse": -3.0})


def test_seconds_of_a_critic_are_counted_with_the_models():
    layout = Layout.of(Fields("inputs", {"mask": [[1, 1], [1, 1]]}))
    critic, algorithm = critic_of(Scripted([torch.ones(4)], torch.zeros(4)), 4096), gae()
    critic.timer = critic.stepper.timer = Timer()
    rollout = critic.score(rollout_of(layout))
    critic.learn(rollout.with_batch(algorithm.credit(rollout.batch)), algorithm, 0, 1, 1)
    assert critic.timer.take().keys() == {"time/forward_backward", "time/optimizer"}
