"""The streams that a loss may ask for, through real tiny models, against loops written out with whole logits."""

import math
from dataclasses import replace

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AdaptiveEntropyConfig, NormConfig
from partita.algo.presets import keys_of
from partita.models.attention import ATTENTION, register
from partita.models.families import tiny
from partita.models.packed import PackedModel
from partita.records import Group, Prompt, Row, Sample
from partita.train.batch import collate
from partita.train.config import ActorConfig, MicroBatchConfig, OptimizerConfig
from partita.train.learner import Learner
from partita.train.minibatches import minibatches

TEMPERATURE = 0.8
PROMPTS = ([1, 2, 3], [9, 8])
ANSWERS = (([40, 50, 60], [41, 7], [5, 5, 5, 5]), ([70, 71], [6, 0, 77, 3], [2, 90]))
REWARDS = ((1.0, 0.0, 0.25), (1.0, 1.0, 0.0))


def sample(prompt, ids, reward):
    trained = [False] * len(prompt) + [True] * len(ids)
    row = Row([*prompt, *ids], trained, [-2.0 * t for t in trained], [t - 1 for t in trained])
    return Sample([row], "stop", "", reward)


def rollout_of(rewards=REWARDS):
    groups = [
        Group(g, Prompt(f"p{g}", tuple(prompt), "", {}), [sample(prompt, *x) for x in zip(answers, told, strict=True)])
        for g, (prompt, answers, told) in enumerate(zip(PROMPTS, ANSWERS, rewards, strict=True))
    ]
    return collate(groups, seed=1, version=0)


def packed_model(title="Llama", dtype=torch.float64):
    register()
    lm = tiny(title, dtype)
    lm.set_attn_implementation(ATTENTION)
    return PackedModel(lm)


def learner(model, *, reference=None, lr=0.05, budget=9, compute=torch.float32, **keys):
    """AdamW with a large eps is near plain descent: no rounding of a gradient near zero becomes a whole step."""
    optimizer = OptimizerConfig(lr=lr, eps=1.0, gradient_clipping=None)
    config = ActorConfig(optimizer=optimizer, mb_spec=MicroBatchConfig(max_tokens_per_mb=budget), **keys)
    return Learner(model, config, compute, TEMPERATURE, total_steps=10, seed=1, reference=reference)


def algorithm(name="drgrpo", **changes):
    keys = replace(keys_of(name), **({"loss_agg_mode": "token_mean", "kl_loss_coef": 0.0} | changes))
    return compose(keys, n_samples=3, max_new_tokens=4)


def ready(who, algo, rollout=None, **streams):
    rollout = rollout or rollout_of()
    scored = who.score(rollout.with_batch(rollout.batch.with_(**streams)), algo)
    return scored.with_batch(algo.credit(scored.batch))


def log_softmax_TV(lm, rollout, chosen):
    """[T, V] by the family's own forward, one row at a time, in the order of the samples."""
    out = []
    for s in chosen:
        (row,) = rollout.rows[s]
        logits_LV = lm(input_ids=torch.tensor([row.ids]), use_cache=False).logits[0] / TEMPERATURE
        out += [logits_LV[i - 1] for i, trained in enumerate(row.trained) if trained]
    return torch.stack(out).log_softmax(-1)


def targets(rollout, chosen):
    return torch.tensor(
        [i for s in chosen for row in rollout.rows[s] for i, t in zip(row.ids, row.trained, strict=True) if t]
    )


def logprobs(lm, rollout, chosen):
    return log_softmax_TV(lm, rollout, chosen).gather(1, targets(rollout, chosen)[:, None])[:, 0]


def kl(p_TV, q_TV):
    return (p_TV.exp() * (p_TV - q_TV)).sum(-1)


def assert_same_weights(model, lm):
    """As near as families allow that normalise in float32 whatever the weights are."""
    for (name, mine), theirs in zip(model.lm.named_parameters(), lm.parameters(), strict=True):
        assert (mine - theirs).abs().max() < 1e-7 * (1 + theirs.abs().max()), name


def everyone(rollout):
    return list(range(len(rollout.rows)))


def test_two_epochs_of_two_minibatches_with_a_correction_equal_a_loop_by_hand():
    """Decoupled PPO, weights above 5 masked with the denominator kept; the first optimizer step has ratio 1."""
    algo = algorithm(use_decoupled_loss=True)
    lm = tiny("Llama")
    who = learner(packed_model(), ppo_epochs=2, ppo_n_minibatches=2, minibatch_split="spread")
    rollout = rollout_of()
    with torch.no_grad():
        prox_T = logprobs(lm, rollout, everyone(rollout))
    noise_T = torch.randn(prox_T.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rollout = ready(who, algo, rollout, behaviour_T=prox_T - noise_T.abs() * 1.5)
    assert torch.allclose(rollout.batch.prox_T, prox_T, atol=1e-9)
    _, record = who.learn(rollout, algo, 0)

    optimizer = torch.optim.AdamW(lm.parameters(), lr=0.05, betas=(0.9, 0.95), eps=1.0, weight_decay=0.0)
    losses = []
    for epoch in range(2):
        for chosen in minibatches(rollout.group_of_sample, 2, "spread", (1, 0, epoch)):
            part = rollout.select(chosen).batch
            logp_T = logprobs(lm, rollout, chosen)
            ratio_T = torch.exp(logp_T - (logp_T.detach() if not losses else part.prox_T))
            weight_T = torch.exp(part.prox_T - part.behaviour_T)
            weight_T = torch.where(weight_T > 5, 0.0, weight_T)
            gained_T = torch.minimum(ratio_T * part.advantages_T, ratio_T.clamp(0.8, 1.2) * part.advantages_T)
            loss = -(weight_T * gained_T).sum() / len(logp_T)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert [step.loss for step in record.steps] == pytest.approx(losses, abs=1e-6)
    assert [step.unmoved for step in record.steps] == [True, False, False, False]
    assert_same_weights(who.model, lm)
    weight_T = torch.exp(noise_T.abs() * 1.5)
    assert (weight_T > 5).any() and (weight_T < 5).any()


def test_the_first_step_has_ratio_exactly_one_and_its_correction_reads_the_scored_log_probs():
    """prox is another kernel's: here 0.3 nats off. The clip centre must not be it, the behaviour weight must."""
    algo = algorithm(use_decoupled_loss=True)
    who = learner(packed_model())
    rollout = ready(who, algo)
    assert rollout.batch.prox_T is not None  # one optimizer step, yet the correction needs the pass
    moved_T = rollout.batch.prox_T + 0.3
    rollout = rollout.with_batch(rollout.batch.with_(prox_T=moved_T, behaviour_T=moved_T - math.log(2.0)))
    metrics, record = who.learn(rollout, algo, 0)
    values = metrics.as_dict()
    assert values["ratio"] == 1.0 and values["kl_step/k3"] == 0.0
    plain = algorithm()
    want = plain.loss(plain.weights(rollout.batch).with_(prox_T=None), record.steps[0].current).value
    assert record.steps[0].loss == pytest.approx(2.0 * want.item(), abs=1e-12) and want.item() != 0


def test_full_kl_to_a_reference_in_the_loss_equals_whole_logits_with_its_gradient():
    algo = algorithm(kl_loss_coef=0.5, kl_loss_estimator="full")
    model, reference = packed_model(), packed_model("Qwen3").requires_grad_(False)
    who, grads = learner(model, reference=reference), {}
    who.stepper.optimizer.register_step_pre_hook(
        lambda *_: grads.update({name: p.grad.clone() for name, p in model.lm.named_parameters()})
    )
    rollout = ready(who, algo)
    lm = tiny("Llama")
    with torch.no_grad():
        ref_TV = log_softmax_TV(tiny("Qwen3"), rollout, everyone(rollout))
    log_TV = log_softmax_TV(lm, rollout, everyone(rollout))
    logp_T = log_TV.gather(1, targets(rollout, everyone(rollout))[:, None])[:, 0]
    kl_T = kl(log_TV, ref_TV)
    loss = (0.5 * kl_T - rollout.batch.advantages_T * torch.exp(logp_T - logp_T.detach())).mean()
    loss.backward()
    _, record = who.learn(rollout, algo, 0)
    (step,) = record.steps
    assert (step.current.kl_full_ref_T - kl_T).abs().max() < 1e-8
    assert step.loss == pytest.approx(loss.item(), abs=1e-9)
    assert step.current.kl_full_old_T is None
    for name, p in lm.named_parameters():
        assert (grads[name] - p.grad).abs().max() < 1e-6 * p.grad.abs().max(), name
    assert all(p.grad is None for p in reference.parameters())


FULL_STEP_KL = {"kl_penalty_coef": 2.0, "kl_penalty_estimator": "full", "gate": "open"}


def test_full_kl_to_the_old_policy_is_zero_first_and_then_counts_from_the_start_of_the_batch():
    """PPO's penalty with the exact KL(old ‖ new), three optimizer steps, twice: the second batch has a new old policy."""
    algo = algorithm(**FULL_STEP_KL)
    who, lm = learner(packed_model(), ppo_epochs=3), tiny("Llama")
    optimizer = torch.optim.AdamW(lm.parameters(), lr=0.05, betas=(0.9, 0.95), eps=1.0, weight_decay=0.0)
    places = []
    for step in range(2):
        rollout = ready(who, algo)
        _, record = who.learn(rollout, algo, step)
        with torch.no_grad():
            old_TV = log_softmax_TV(lm, rollout, everyone(rollout))
        for taken in record.steps:
            assert list(taken.samples) == everyone(rollout)
            log_TV = log_softmax_TV(lm, rollout, taken.samples)
            chosen_T = targets(rollout, taken.samples)[:, None]
            ratio_T = (log_TV - old_TV).gather(1, chosen_T)[:, 0].exp()
            kl_T = kl(old_TV, log_TV)
            loss = (2.0 * kl_T - ratio_T * rollout.batch.advantages_T).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert (taken.current.kl_full_old_T - kl_T).abs().max() < 1e-6
            assert taken.loss == pytest.approx(loss.item(), abs=1e-6)
        assert not record.steps[0].current.kl_full_old_T.any()
        assert record.steps[2].current.kl_full_old_T.mean() > 1e-4
        assert_same_weights(who.model, lm)
        places.append([p.data_ptr() for p in who._old.parameters()])
    assert places[0] == places[1]  # one buffer, however many batches
    assert not {*places[0]} & {p.data_ptr() for p in who.model.parameters()}


def test_one_optimizer_step_needs_no_copy_of_the_policy():
    algo = algorithm(**FULL_STEP_KL)
    who = learner(packed_model())
    _, record = who.learn(ready(who, algo), algo, 0)
    assert who._old is None and not record.steps[0].current.kl_full_old_T.any()
    plain = algorithm()
    other = learner(packed_model(), ppo_epochs=2)
    other.learn(ready(other, plain), plain, 0)
    assert other._old is None


def test_the_copy_runs_only_in_steps_that_follow_a_move():
    algo, calls, model = algorithm(**FULL_STEP_KL), [0], packed_model()
    model.lm.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    who = learner(model, budget=4096, ppo_epochs=2)
    rollout = ready(who, algo)
    assert calls == [1]
    who.learn(rollout, algo, 0)  # the copy has the hook too
    assert calls == [1 + 1 + 2]


def test_in_bfloat16_a_policy_that_has_not_moved_is_at_distance_zero_from_its_copy():
    algo = algorithm(**FULL_STEP_KL)
    who = learner(packed_model(dtype=torch.float32), lr=0.0, ppo_epochs=2, compute=torch.bfloat16)
    _, record = who.learn(ready(who, algo), algo, 0)
    assert [step.outcome for step in record.steps] == ["stepped", "stepped"] and not record.steps[1].unmoved
    assert not record.steps[1].current.kl_full_old_T.any()


def test_recomputing_activations_does_not_change_the_divergence_from_the_copy():
    algo, found = algorithm(**FULL_STEP_KL), []
    for recompute in (False, True):
        model = packed_model()
        if recompute:
            model.lm.activation_checkpointing_enable()
            model.train()
        who = learner(model, ppo_epochs=2, gradient_checkpointing=recompute)
        found.append(who.learn(ready(who, algo), algo, 0)[1].steps[1])
        assert all(module.training == recompute for module in model.lm.modules())
    assert (
        torch.equal(found[0].current.kl_full_old_T, found[1].current.kl_full_old_T) and found[0].loss == found[1].loss
    )


@pytest.mark.parametrize("keys", [{"recompute_logprob": False}, {"prox_logp_method": "loglinear"}])
def test_a_centre_that_is_not_scored_costs_no_pass_and_is_the_samplers(keys):
    """All tokens are of the newest weights, so the interpolation is the sampler's log-prob too."""
    algo = algorithm(**keys)
    who = learner(packed_model(), ppo_epochs=2)
    rollout = ready(who, algo)
    assert rollout.batch.prox_T is None
    with torch.no_grad():
        behaviour_T = logprobs(tiny("Llama"), rollout, everyone(rollout)) - 0.1
    rollout = rollout.with_batch(rollout.batch.with_(behaviour_T=behaviour_T))
    _, record = who.learn(rollout, algo, 0)
    first = record.steps[0].current
    assert first.logprobs_T.sub(behaviour_T).exp().tolist() == pytest.approx([math.exp(0.1)] * len(behaviour_T))
    want = -(math.exp(0.1) * rollout.batch.advantages_T).mean().item()  # inside the clip range
    assert record.steps[0].loss == pytest.approx(want, abs=1e-9)


def test_the_entropy_from_before_the_step_comes_from_the_pass_that_gives_the_log_probs():
    algo = algorithm(adaptive_entropy=AdaptiveEntropyConfig(gate="same_step"))
    calls, model = [0], packed_model()
    model.register_forward_pre_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    who = learner(model, budget=4096)
    assert "old_entropy" in algo.needs
    rollout = who.score(rollout_of(), algo)
    assert calls == [1]
    with torch.no_grad():
        log_TV = log_softmax_TV(tiny("Llama"), rollout, everyone(rollout))
    chosen_T = log_TV.gather(1, targets(rollout, everyone(rollout))[:, None])[:, 0]
    assert torch.allclose(rollout.batch.entropy_T, -(log_TV.exp() * log_TV).sum(-1), atol=1e-9)
    assert torch.allclose(rollout.batch.prox_T, chosen_T, atol=1e-9)
    _, record = who.learn(rollout.with_batch(algo.credit(rollout.batch)), algo, 0)
    assert torch.allclose(record.steps[0].current.entropy_T, rollout.batch.entropy_T, atol=1e-12)


def test_several_steps_alone_score_no_entropy():
    scored = learner(packed_model(), ppo_epochs=2).score(rollout_of(), algorithm()).batch
    assert scored.prox_T is not None and scored.entropy_T is None


def test_an_empty_batch_is_scored_and_learned_as_nothing():
    algo = algorithm(adv_norm=NormConfig(mean_level="group", std_level=None), **FULL_STEP_KL)
    who = learner(packed_model(), ppo_epochs=2)
    rollout = who.score(collate([], seed=1, version=0), algo)
    assert rollout.batch.prox_T.shape == (0,)
    metrics, record = who.learn(rollout.with_batch(algo.credit(rollout.batch)), algo, 0)
    assert record.steps == () and metrics.as_dict()["dead_steps"] == 1
