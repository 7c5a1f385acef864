"""Penalties: the sign of the leash, every estimator and the whole vocabulary, and the entropy bonus down to the logits."""

import math

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.keys import AdaptiveEntropyConfig, AlgorithmKeys
from partita.algo.penalty import EntropyBonus, KlLoss, StepKl
from partita.algo.tokens import Current
from partita.ops.divergence import ESTIMATORS, k2, k3

TOKEN = {"mask": [[1.0]], "rewards": [0.0]}


def step(padded, keys, **streams):
    algorithm = compose(keys, n_samples=1, max_new_tokens=4)
    batch = algorithm.weights(padded(TOKEN).batch(advantages_T=torch.zeros(1), **streams))
    return algorithm, batch


def value_and_slope(algorithm, batch, logprob, **streams):
    logprobs_T = torch.tensor([logprob], dtype=torch.float64, requires_grad=True)
    loss = algorithm.loss(batch, Current(logprobs_T, **streams)).value
    (gradient_T,) = torch.autograd.grad(loss, logprobs_T)
    return loss.item(), gradient_T.item()


# ---- to the reference


@pytest.mark.parametrize(
    ("logprob", "ref", "values", "slopes"),
    [
        (-1.0, -2.0, {"k1": 1.0, "k2": 0.5, "k3": 0.367879, "abs": 1.0, "k3_value_k2_grad": 0.367879},
         {"k1": 1.0, "k2": 1.0, "k3": 0.632121, "abs": 1.0, "k3_value_k2_grad": 1.0}),
        (-2.0, -1.0, {"k1": -1.0, "k2": 0.5, "k3": 0.718282, "abs": 1.0, "k3_value_k2_grad": 0.718282},
         {"k1": 1.0, "k2": -1.0, "k3": -1.718282, "abs": -1.0, "k3_value_k2_grad": -1.0}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_descent_moves_towards_the_reference(padded, logprob, ref, values, slopes, estimator):
    keys = AlgorithmKeys(kl_loss_coef=0.1, kl_loss_estimator=estimator)
    algorithm, batch = step(padded, keys, ref_T=torch.tensor([ref]))
    value, slope = value_and_slope(algorithm, batch, logprob)
    assert (value, slope) == (
        pytest.approx(0.1 * values[estimator], abs=1e-6), pytest.approx(0.1 * slopes[estimator], abs=1e-6)
    )  # fmt: skip
    assert algorithm.needs == {"ref"}


def test_the_whole_vocabulary_in_place_of_an_estimate(padded):
    algorithm, batch = step(
        padded, AlgorithmKeys(kl_loss_coef=0.1, kl_loss_estimator="full"), ref_T=torch.tensor([-2.0])
    )
    full_T = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    loss = algorithm.loss(batch, Current(torch.tensor([-1.0]).double(), kl_full_ref_T=full_T)).value
    loss.backward()
    assert (loss.item(), full_T.grad.item()) == (pytest.approx(0.07), pytest.approx(0.1))
    assert algorithm.needs == {"ref", "kl_full_ref"}
    with pytest.raises(ValueError, match="kl_full_ref_T"):
        algorithm.loss(batch, Current(torch.tensor([-1.0])))


def test_tokens_of_an_older_policy_are_weighed_by_a_ratio_with_a_gradient(padded):
    """d (ρ·k3) / d log π = ρ·(k3 + 1 - e^-d), where ρ = e^0.5 and d = 1."""
    keys = AlgorithmKeys(kl_loss_coef=0.1, kl_loss_importance_corrected=True)
    algorithm, batch = step(padded, keys, ref_T=torch.tensor([-2.0]), prox_T=torch.tensor([-1.5]))
    value, slope = value_and_slope(algorithm, batch, -1.0)
    ratio, divergence = math.exp(0.5), math.exp(-1)
    assert value == pytest.approx(0.1 * ratio * divergence)
    assert slope == pytest.approx(0.1 * ratio * (divergence + 1 - math.exp(-1)))
    plain = step(padded, AlgorithmKeys(kl_loss_coef=0.1), ref_T=torch.tensor([-2.0]), prox_T=torch.tensor([-1.5]))
    assert value_and_slope(*plain, -1.0)[0] == pytest.approx(0.1 * divergence)


def test_groups_without_spread_still_feel_the_leash_and_nothing_else(padded, close):
    """Two groups of equal rewards: no advantage, whatever the scale, and the KL is kept."""
    keys = AlgorithmKeys(kl_loss_coef=0.1, kl_loss_estimator="k2")
    batch = padded({"mask": [[1.0]] * 4, "rewards": [1.0, 1.0, 0.0, 0.0], "group_ids": [0, 0, 1, 1]}).batch(
        ref_T=torch.tensor([-1.0, -2.0, -3.0, -1.0])
    )
    algorithm = compose(keys, n_samples=2, max_new_tokens=4)
    batch = algorithm.weights(batch.with_(advantages_T=torch.zeros(4)))
    assert bool(algorithm.moving_S(batch).any())
    logprobs_T = torch.full((4,), -1.0, dtype=torch.float64, requires_grad=True)
    algorithm.loss(batch, Current(logprobs_T)).value.backward()
    close(logprobs_T.grad, [0.0, 0.025, 0.05, 0.0])


def test_without_a_leash_no_reference_is_asked_for_and_one_that_is_there_is_only_measured(make_batch):
    algorithm = compose(AlgorithmKeys(kl_ctl=0.0, kl_loss_coef=0.0), n_samples=4, max_new_tokens=8)
    assert not {"ref", "kl_full_ref"} & algorithm.needs
    with_ref = make_batch()
    found = []
    for batch in (with_ref.with_(ref_T=None), with_ref):
        logprobs_T = (batch.prox_T + 0.1).requires_grad_()
        loss = algorithm.loss(algorithm.weights(algorithm.credit(batch)), Current(logprobs_T))
        found.append((loss.value.detach(), *torch.autograd.grad(loss.value, logprobs_T)))
        assert ("kl_ref/k3" in loss.stats) is (batch.ref_T is not None)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert bool(torch.isfinite(found[0][1]).all())


# ---- from the old policy


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", 0.5, -1.0),
        ("k2", 0.125, -0.5),
        ("k3", math.exp(-0.5) - 0.5, math.exp(-0.5) - 1),  # ρ - 1 - log ρ with log ρ = -0.5, and its slope ρ - 1
        ("abs", 0.5, -1.0),
    ],
)
def test_a_step_away_costs(padded, estimator, value, slope):
    keys = AlgorithmKeys(kl_penalty_coef=2.0, kl_penalty_estimator=estimator, gate="open")
    algorithm, batch = step(padded, keys, prox_T=torch.tensor([-1.0]))
    assert value_and_slope(algorithm, batch, -1.5) == (pytest.approx(2 * value), pytest.approx(2 * slope))
    assert algorithm.needs == frozenset()


def test_the_whole_vocabulary_against_the_old_policy(padded):
    keys = AlgorithmKeys(kl_penalty_coef=2.0, kl_penalty_estimator="full", gate="open")
    algorithm, batch = step(padded, keys, prox_T=torch.tensor([-1.0]))
    now = Current(torch.tensor([-1.5]).double(), kl_full_old_T=torch.tensor([0.3]).double())
    assert algorithm.loss(batch, now).value.item() == pytest.approx(0.6)
    assert algorithm.needs == {"kl_full_old"}
    with pytest.raises(ValueError, match="kl_full_old_T"):
        algorithm.loss(batch, Current(torch.tensor([-1.5])))


def test_the_penalty_pulls_back_what_the_open_gate_pushes(padded):
    """Unbounded above: with A > 0 the plain objective rises with ρ for ever, the penalty only turns it at some ρ."""
    keys = AlgorithmKeys(kl_penalty_coef=1.0, gate="open")
    algorithm = compose(keys, n_samples=1, max_new_tokens=4)
    batch = algorithm.weights(padded(TOKEN).batch(prox_T=torch.zeros(1), advantages_T=torch.ones(1)))
    slopes = [value_and_slope(algorithm, batch, math.log(ratio))[1] for ratio in (0.5, 1.0, 1.5)]
    assert slopes == [pytest.approx(-0.5 - 0.5), pytest.approx(-1.0), pytest.approx(-1.5 + 0.5)]


@pytest.mark.parametrize("nats", [90.0, -90.0, 1e4])
def test_far_away_penalties_are_finite(padded, nats):
    keys = AlgorithmKeys(kl_penalty_coef=1.0, kl_loss_coef=1.0, kl_loss_importance_corrected=True, gate="open")
    algorithm, batch = step(padded, keys, prox_T=torch.tensor([-1.0]), ref_T=torch.tensor([-1.0]))
    assert all(math.isfinite(number) for number in value_and_slope(algorithm, batch, -1.0 + nats))


# ---- entropy


def test_entropy_bonus_down_to_the_logits(golden, padded, close):
    case = golden("entropy_bonus_full_vocab")
    logits = torch.tensor(case["inputs"]["logits"], dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(logits, 1)
    entropy_T = -(logprobs.exp() * logprobs).sum(1)
    algorithm = compose(AlgorithmKeys(entropy_coef=0.01), n_samples=1, max_new_tokens=4)
    batch = padded({"mask": [[1.0, 1.0, 1.0]], "rewards": [0.0]}).batch(advantages_T=torch.zeros(3))
    loss = algorithm.loss(algorithm.weights(batch), Current(logprobs[:, 0], entropy_T))
    (gradient,) = torch.autograd.grad(loss.value, logits)
    assert algorithm.needs == {"entropy"}
    close(loss.value, case["expected"]["loss"])
    close(gradient, case["expected"]["grad_logits"])
    close(loss.stats["entropy"].sum, sum(case["expected"]["entropy"]))


def test_a_missing_entropy_is_named(padded):
    algorithm, batch = step(padded, AlgorithmKeys(entropy_coef=0.01))
    with pytest.raises(ValueError, match="entropy_T"):
        algorithm.loss(batch, Current(torch.zeros(1)))


def test_a_rule_that_reads_the_entropy_before_the_step_has_it_scored():
    for gate, needs in (("same_step", {"entropy", "old_entropy"}), ("previous_step", {"entropy"})):
        keys = AlgorithmKeys(adaptive_entropy=AdaptiveEntropyConfig(gate=gate))
        assert compose(keys, n_samples=1, max_new_tokens=4).needs == needs


def test_a_coefficient_of_zero_reads_and_moves_nothing(padded):
    algorithm, batch = step(padded, AlgorithmKeys(adaptive_entropy=AdaptiveEntropyConfig()))
    assert algorithm.penalties[0].coef == 0.0
    assert value_and_slope(algorithm, batch, -1.0) == (0.0, 0.0)  # although no entropy was given
    assert not bool(algorithm.moving_S(batch).any())


@pytest.mark.parametrize(
    ("penalty", "said"),
    [
        (KlLoss(0.1, k3), "- 0.1 k3(π ‖ π_ref)"),
        (KlLoss(0.1, None, True), "- 0.1 ρ_it · KL(π ‖ π_ref)"),
        (StepKl(2.0, k2), "- 2 k2(π_old ‖ π)"),
        (StepKl(2.0, None), "- 2 KL(π_old ‖ π)"),
        (EntropyBonus(0.01), "+ 0.01 H(π)"),
    ],
)
def test_formulas_have_the_sign_of_the_objective(penalty, said):
    assert penalty.formula() == said
