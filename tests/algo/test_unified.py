"""The unified view: formulas of the coefficients against the gradients of the real losses, and the line of an explanation."""

from dataclasses import replace

import pytest
import torch

from partita.algo.compose import compose
from partita.algo.explain import explain
from partita.algo.keys import AlgorithmKeys, NormConfig
from partita.algo.pairwise import Pairs, Sigmoid, pair_loss
from partita.algo.penalty import EntropyBonus, KlLoss, StepKl
from partita.algo.presets import PRESETS, keys_of
from partita.algo.tokens import Current
from partita.algo.unified import METHODS, coefficient_rows, dpo, grpo, ppo, rft, sft
from partita.ops.divergence import ESTIMATORS

GROUP = NormConfig(mean_level="group", std_level="group")


def composed(**keys):
    return compose(AlgorithmKeys(**keys), n_samples=4, max_new_tokens=16)


def weighted(algorithm, batch):
    return algorithm.weights(algorithm.credit(batch))


def on_policy(batch):
    return Current(batch.prox_T.clone(), entropy_T=torch.ones_like(batch.prox_T))


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean"])
def test_cross_entropy_is_the_score_function_with_a_reward_of_one(make_batch, close, mode):
    """SFT, and RFT where the reward says which samples are right: no ratio, no baseline, no new loss."""
    algorithm = composed(importance_sampling_level="none", loss_agg_mode=mode)
    batch = make_batch()
    current = on_policy(batch)
    for reward_S, of in (
        (torch.ones(7), sft(batch.seq_T)),
        ((torch.arange(7) % 2).double(), rft(torch.arange(7) % 2 == 1, batch.seq_T)),
    ):
        ready = weighted(algorithm, batch.with_(reward_S=reward_S))
        close(algorithm.gradient_coefficients(ready, current), of)
        close(algorithm.loss(ready, current).value, -(ready.weight_T * of * batch.prox_T).sum())


def test_the_weights_of_cross_entropy_are_those_of_the_whole_step(make_batch, close):
    algorithm = composed(importance_sampling_level="none", loss_agg_mode="seq_mean_token_mean")
    ready = weighted(algorithm, make_batch().with_(reward_S=torch.ones(7)))
    whole = algorithm.loss(ready, Current(ready.prox_T)).value
    parts = [ready.select(samples) for samples in ([0, 1, 2], [3], [4, 5, 6])]
    close(sum(algorithm.loss(part, Current(part.prox_T)).value for part in parts), whole)


@pytest.mark.parametrize("loss", [Sigmoid(0.3), Sigmoid(2.0), Sigmoid(0.3, 0.2)])
def test_dpo_has_the_same_coefficient_on_every_token_and_no_length(close, loss):
    policy_T = torch.tensor([-0.5, -1.2, -0.8, -0.4, -1.5], dtype=torch.float64, requires_grad=True)
    ref_T = torch.tensor([-0.9, -1.1, -0.6, -0.5, -1.0], dtype=torch.float64)
    pairs = Pairs.of_tokens(policy_T, ref_T, torch.tensor([0, 0, 1, 1, 1]), 1)
    (gradient_T,) = torch.autograd.grad(-pair_loss(loss, pairs, 1).value, policy_T)
    chosen_N, rejected_N = dpo(loss, pairs)
    close(gradient_T, torch.cat([chosen_N.expand(2), rejected_N.expand(3)]))


def test_dpo_by_hand(close):
    pairs = Pairs(*(torch.tensor([value]) for value in (-1.7, -2.7, -2.0, -2.1)))
    close(dpo(Sigmoid(0.1), pairs)[0], [0.1 / (1 + torch.tensor(0.09).exp())])


def test_ppo_and_grpo_have_the_coefficients_of_their_losses(make_batch, close):
    batch = make_batch()
    moved = Current(batch.prox_T + 0.3 * torch.sin(torch.arange(len(batch.prox_T), dtype=torch.float64)))
    clip = composed(adv_norm=GROUP, eps_clip=0.2, eps_clip_higher=0.25)
    ready = weighted(clip, batch)
    ratio_T = (moved.logprobs_T - batch.prox_T).exp()
    assert bool((ratio_T > 1.25).any() & (ratio_T < 0.8).any())
    close(clip.gradient_coefficients(ready, moved), ppo(ready.advantages_T, ratio_T, 0.2, 0.25))
    leash = composed(adv_norm=GROUP, kl_loss_coef=0.04, kl_loss_estimator="k3")
    ready = weighted(leash, batch)
    found_T = leash.gradient_coefficients(ready, on_policy(batch))
    close(found_T, grpo(ready.advantages_T, batch.prox_T, batch.ref_T, 0.04))


def test_grpo_of_the_golden_file(golden, padded, close):
    case = golden("gradient_coefficients_grpo")
    rows = padded(case["inputs"])
    found_T = grpo(rows.tokens("advantages"), rows.tokens("logp"), rows.tokens("ref_logp"), case["config"]["beta"])
    close(rows.padded(found_T), case["expected"]["GC"])


def test_on_policy_every_preset_has_the_advantage_and_its_line_says_so(make_batch, close):
    """What stands in the line is what the loss does: the correction, the advantage, and k3's pull for grpo."""
    for name in PRESETS:
        if PRESETS[name].get("credit") == "gae":
            continue  # the same losses on a critic's advantages
        algorithm = compose(keys_of(name), n_samples=4, max_new_tokens=64)
        batch = make_batch().with_(truncated_S=torch.zeros(7, dtype=torch.bool))
        if algorithm.norm is not None and algorithm.norm.running:
            algorithm = replace(algorithm, norm=None)
        ready = weighted(algorithm, batch)
        (label, line), *_ = coefficient_rows(algorithm)
        assert label == "on policy"
        weight_T = torch.ones_like(ready.prox_T) if ready.correction_T is None else ready.correction_T
        if line.startswith("mean_t w_it"):  # one ratio for the response, so one weight
            mean_S = torch.zeros(7, dtype=torch.float64).index_add(0, ready.seq_T, weight_T) / ready.length_S
            weight_T = mean_S[ready.seq_T]
        assert line.removeprefix("mean_t ").removeprefix("w_it · ").startswith("A_i")
        assert ("w_it" in line) is bool(algorithm.correct)
        expected_T = weight_T * ready.advantages_T
        if name == "grpo":
            assert line == "A_i + 0.04 (π_ref/π - 1)"
            expected_T = grpo(ready.advantages_T, batch.prox_T, batch.ref_T, 0.04)
        found_T = algorithm.gradient_coefficients(ready, on_policy(batch))
        close(found_T, torch.where(ready.weight_T != 0, expected_T, 0.0))


def test_a_product_of_ratios_multiplies_by_the_length(make_batch, close):
    algorithm = composed(adv_norm=GROUP, importance_sampling_level="sequence_product", loss_agg_mode="token_mean")
    ready = weighted(algorithm, make_batch())
    found_T = algorithm.gradient_coefficients(ready, on_policy(ready))
    close(found_T, ready.length_S[ready.seq_T] * ready.advantages_T)
    assert coefficient_rows(algorithm) == [("on policy", "|o_i| A_i")]


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_pull_of_a_kl_in_the_loss(make_batch, close, name, corrected):
    penalty = KlLoss(0.5, ESTIMATORS[name], corrected)
    algorithm = replace(composed(adv_norm=GROUP), penalties=(penalty,))
    batch = weighted(algorithm, make_batch())
    d_T = batch.prox_T - batch.ref_T
    slope_T = {
        "k1": torch.ones_like(d_T), "k2": d_T, "k3": -torch.expm1(-d_T), "abs": d_T.sign(), "k3_value_k2_grad": d_T,
    }[name]  # fmt: skip
    if corrected:
        slope_T = slope_T + ESTIMATORS[name](d_T)
    close(algorithm.gradient_coefficients(batch, on_policy(batch)), batch.advantages_T - 0.5 * slope_T)
    line = {
        "k1": "A_i - 0.5", "k2": "A_i - 0.5 log π/π_ref", "k3": "A_i + 0.5 (π_ref/π - 1)",
        "abs": "A_i - 0.5 sign(log π/π_ref)", "k3_value_k2_grad": "A_i - 0.5 log π/π_ref",
    }[name]  # fmt: skip
    more = f" - 0.5 {ESTIMATORS[name].__name__}(π ‖ π_ref)" if corrected else ""
    assert coefficient_rows(algorithm) == [("on policy", line + more)]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_penalty_on_the_step_pulls_only_by_k1(make_batch, close, name):
    algorithm = replace(composed(adv_norm=GROUP), penalties=(StepKl(0.5, ESTIMATORS[name]),))
    batch = weighted(algorithm, make_batch())
    shift = 0.5 if name == "k1" else 0.0
    close(algorithm.gradient_coefficients(batch, on_policy(batch)), batch.advantages_T + shift)
    assert coefficient_rows(algorithm) == [("on policy", "A_i + 0.5" if name == "k1" else "A_i")]


def test_what_goes_through_the_whole_vocabulary_stands_beside_it():
    algorithm = replace(composed(), penalties=(EntropyBonus(0.01), KlLoss(0.2, None)))
    assert coefficient_rows(algorithm) == [
        ("on policy", "A_i"), ("beside it", "+ 0.01 ∇ H(π)"), ("beside it", "- 0.2 ∇ KL(π ‖ π_ref)"),
    ]  # fmt: skip


def test_the_methods_are_those_of_the_paper():
    assert [method.name for method in METHODS] == ["SFT", "RFT", "Online RFT", "DPO", "PPO", "GRPO"]
    assert METHODS[1].coefficient == METHODS[2].coefficient  # only where the samples come from differs


def test_an_explanation_has_the_coefficient():
    lines = explain("grpo")
    start = lines.index("## Gradient coefficient")
    assert lines[start + 3] == "on policy  A_i + 0.04 (π_ref/π - 1)"
