"""A critic on real (tiny) models: on the policy's own weights, in one backward pass with it, or on weights of its own."""

from dataclasses import replace

import pytest
import torch

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.algo.presets import keys_of
from partita.algo.tokens import Current
from partita.models.attention import ATTENTION, register
from partita.models.families import tiny
from partita.models.packed import PackedModel
from partita.ops.packing import pack
from partita.records import Group, Prompt, Row, Sample
from partita.train.batch import RolloutBatch, collate
from partita.train.config import ActorConfig, CriticConfig, MicroBatchConfig, OptimizerConfig
from partita.train.critic import Critic
from partita.train.learner import Learner


def model_of(seed: int = 0) -> PackedModel:
    register()
    torch.manual_seed(seed)
    lm = tiny("Llama", torch.float32)
    lm.set_attn_implementation(ATTENTION)
    model = PackedModel(lm)
    model.add_value_head()
    assert model.value_head is not None
    torch.nn.init.normal_(model.value_head.weight, std=0.1)
    return model


def rollout_of() -> RolloutBatch:
    def sample(ids: list[int], reward: float) -> Sample:
        row = Row([2, *ids], [False] + [True] * len(ids), [0.0] + [-2.0] * len(ids), [-1] + [0] * len(ids))
        return Sample([row], "stop", "", reward, status="ok")

    prompt = Prompt("p", (2,), "", {})
    groups = [
        Group(0, prompt, [sample([3, 1, 7], 1.0), sample([4, 7], 0.0)]),
        Group(1, prompt, [sample([5, 5, 5, 5], 0.5)]),
    ]
    return collate(groups, seed=1, version=0)


def ppo() -> Algorithm:
    keys = replace(keys_of("ppo"), kl_loss_coef=0.0, kl_ctl=0.0)
    return compose(keys, n_samples=2, max_new_tokens=4)


def critic_of(model: PackedModel, **keys) -> Critic:
    return Critic(model, CriticConfig(**keys), torch.float32, 10, seed=1, max_nonfinite_steps=3)


def gradients(model: PackedModel) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("budget", [1, 4096])
def test_the_gradient_is_the_policy_s_plus_the_weighted_value_loss_s(budget) -> None:
    model, algorithm = model_of(), ppo()
    rollout = critic_of(model, shared=True).score(rollout_of())
    rollout = rollout.with_batch(algorithm.credit(rollout.batch))
    batch = algorithm.weights(rollout.batch)
    packed = pack(rollout.rows, rollout.group_of_sample)
    # the two losses apart, of the whole step at once
    streams = model(packed, temperature=1.0, entropy=True)
    algorithm.loss(batch, Current(streams.logprobs_T, streams.entropy_T)).value.backward()
    alone = gradients(model)
    model.zero_grad()
    algorithm.value_loss(batch, model.values(packed)[0]).value.backward()
    valued = gradients(model)
    model.zero_grad()

    seen = dict[str, torch.Tensor]()
    for name, p in model.named_parameters():
        p.register_hook(lambda grad, name=name: seen.__setitem__(name, seen.get(name, 0) + grad.clone()))
    config = ActorConfig(
        optimizer=OptimizerConfig(lr=0.0, gradient_clipping=None), mb_spec=MicroBatchConfig(max_tokens_per_mb=budget)
    )
    learner = Learner(model, config, torch.float32, 1.0, 10, seed=1, vf_coef=0.3)
    metrics, record = learner.learn(rollout, algorithm, 0)
    for name, grad in seen.items():
        want = alone.get(name, torch.zeros(())) + 0.3 * valued.get(name, torch.zeros(()))
        torch.testing.assert_close(grad, want, atol=1e-6, rtol=1e-4)
    assert "value_head.weight" in seen
    assert record.steps[0].loss == pytest.approx(
        algorithm.loss(batch, Current(streams.logprobs_T, streams.entropy_T)).value.item(), abs=1e-6
    )
    assert metrics.as_dict()["critic/loss"] > 0


def test_values_beside_log_probs_are_those_of_the_head_alone() -> None:
    model, rollout = model_of(), rollout_of()
    packed = pack(rollout.rows, rollout.group_of_sample)
    beside = model(packed, temperature=1.0, values=True)
    alone, none = model.values(packed)
    assert none is None
    torch.testing.assert_close(beside.values_T, alone, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(beside.logprobs_T, model(packed, temperature=1.0).logprobs_T)


def test_the_last_state_is_that_of_the_whole_row_whatever_the_micro_batches() -> None:
    model, rollout = model_of(), rollout_of()
    ends = []
    for budget in (1, 6, 4096):
        critic = critic_of(model, mb_spec=MicroBatchConfig(max_tokens_per_mb=budget))
        ends.append(critic.score(rollout).batch.bootstrap_value_S)
    assert torch.allclose(ends[0], ends[1], atol=1e-6) and torch.allclose(ends[0], ends[2], atol=1e-6)
    family, head = tiny("Llama", torch.float32).base_model, model.value_head
    family.load_state_dict(model.backbone.state_dict())
    assert head is not None
    for sample, (row,) in enumerate(rollout.rows):
        plain = family(torch.tensor([row.ids]), use_cache=False).last_hidden_state[0, -1]
        assert ends[0][sample].item() == pytest.approx(head(plain).item(), abs=1e-5)


def test_values_of_a_model_without_a_head_are_an_error() -> None:
    model, rollout = model_of(), rollout_of()
    model.value_head = None
    with pytest.raises(ValueError, match="add_value_head comes first"):
        model.values(pack(rollout.rows, rollout.group_of_sample))


@pytest.mark.parametrize(
    "keys, told",
    [
        ({"shared": True, "path": "some/model"}, "shared=true has no model of its own, but path=some/model"),
        ({"shared": True, "warmup_steps": 2}, "warmup_steps=2: steps of the value loss alone would move the policy"),
    ],
)
def test_a_shared_critic_with_what_only_one_of_its_own_has_is_an_error(keys, told) -> None:
    with pytest.raises(ValueError, match=told):
        CriticConfig(**keys)


def test_a_critic_learns_to_foretell_returns() -> None:
    critic, algorithm, explained = critic_of(model_of(), optimizer=OptimizerConfig(lr=3e-3)), ppo(), list[float]()
    for step in range(40):
        rollout = critic.score(rollout_of())
        rollout = rollout.with_batch(algorithm.credit(rollout.batch))
        found = algorithm.credit_stats(rollout.batch)["critic/explained_variance"]
        explained.append(float(found[0] / found[1]))
        critic.learn(rollout, algorithm, step, epochs=1, count=2)
    # all samples begin with one prompt and end differently, so their first states foretell nothing
    assert explained[0] < 0.1 < 0.5 < explained[-1]
