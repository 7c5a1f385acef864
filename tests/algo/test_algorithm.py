"""How the slots work together: credit, weights, loss, the critic's loss, coefficients, and when a step has nothing to teach.

What must hold for every algorithm stands in `properties`.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from properties.batches import current_at, moved, random_batch, ready, step, tokens_of, unmoved, weighed
from properties.combined import COMBINED

from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys, BalanceConfig, CorrectionConfig, EmaConfig, NormConfig
from partita.algo.presets import PRESETS, keys_of
from partita.algo.tokens import Current

ALL = {name: keys_of(name) for name in PRESETS} | COMBINED
GROUP = NormConfig(mean_level="group", std_level=None)
EMA = NormConfig(mean_level="ema", std_level="ema")


def composed(**keys):
    return compose(AlgorithmKeys(**keys), n_samples=4, max_new_tokens=8)


# ---- credit


def test_an_invalid_sample_is_in_no_statistic_and_gets_nothing(make_batch):
    batch = make_batch().with_(valid_S=torch.tensor([True, True, False, True, True, True, True]))
    credited = composed(adv_norm=GROUP).credit(batch)
    assert credited.advantages_T[batch.seq_T == 2].tolist() == [0.0] * 3
    assert credited.score_S[2] == 0.0
    assert credited.advantages_T[0].item() == pytest.approx(1 - 2.5 / 3)  # of rewards 1, 1 and 0.5


@pytest.mark.parametrize("stream", ["prox_T", "behaviour_T", "ref_T", "values_T"])
def test_a_scored_number_that_is_not_finite_makes_its_sample_invalid(make_batch, stream):
    spoiled_T = getattr(make_batch(), stream).clone()
    spoiled_T[1] = float("-inf")
    credited = composed(adv_norm=GROUP).credit(make_batch().with_(**{stream: spoiled_T}))
    assert credited.valid_S.tolist() == [False] + [True] * 6


def test_a_sample_has_one_number_and_statistics_count_samples_unless_they_are_asked_to_count_tokens(make_batch, close):
    batch = make_batch()
    by_sample, by_token = composed(adv_norm=GROUP), composed(adv_norm=replace(GROUP, unit="token"))
    advantages_T = by_sample.credit(batch).advantages_T
    close(advantages_T[batch.seq_T == 1], [-0.5] * 2)  # rewards 0 and 1 of two samples
    close(by_token.credit(batch).advantages_T[batch.seq_T == 1], [-0.75] * 2)  # of 2 and 6 tokens


def test_running_statistics_are_of_what_the_norm_will_see(make_batch, close):
    batch = make_batch().with_(valid_S=torch.arange(7) != 6)
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    found = composed(adv_norm=EMA, reward_bias=1.0).statistics(batch)
    assert found == {
        "adv_norm/mean": pytest.approx(1 + 2 / 3), "adv_norm/variance": pytest.approx(2 / 9), "adv_norm/count": 6.0
    }  # fmt: skip
    before_bias = composed(reward_norm=EMA, adv_norm=NormConfig()).statistics(batch)
    assert before_bias["reward_norm/mean"] == pytest.approx(float(rewards.mean()))
    assert composed(adv_norm=NormConfig()).statistics(batch) == {}
    masked = composed(adv_norm=EMA, truncation="adv_mask_before").statistics(batch)
    assert masked["adv_norm/count"] == 5.0  # the truncated sample is in no statistic
    nothing = batch.with_(valid_S=torch.zeros(7, dtype=torch.bool))
    assert composed(adv_norm=EMA).statistics(nothing) == {"adv_norm/count": 0.0}


def test_running_statistics_count_tokens_where_credit_varies(make_batch):
    found = composed(adv_norm=EMA, credit="gae").statistics(make_batch())
    assert found["adv_norm/count"] == 21.0
    assert composed(adv_norm=replace(EMA, unit="token")).statistics(make_batch())["adv_norm/count"] == 21.0


def test_statistics_and_credit_agree_on_the_first_step(make_batch, close):
    keys = AlgorithmKeys(adv_norm=replace(EMA, eps=0.0, eps_mode="inside_sqrt", ema=EmaConfig()))
    population = AlgorithmKeys(adv_norm=NormConfig(std_unbiased=False, eps=0.0))
    batch = make_batch()
    close(ready(keys, batch).credit(batch).advantages_T, ready(population, batch).credit(batch).advantages_T)


# ---- weights


def test_an_optimizer_step_on_one_prompt_has_its_own_denominator(make_batch):
    for keys in map(keys_of, PRESETS):
        algorithm = ready(keys, make_batch())
        batch = algorithm.credit(make_batch())
        alone = algorithm.weights(batch.select([1, 4]))
        again = algorithm.weights(batch).select([1, 4])
        if keys.balance is None:
            assert torch.equal(alone.advantages_T, again.advantages_T)  # statistics belong to the rollout batch
        assert not torch.equal(alone.weight_T, again.weight_T)


def test_weights_a_second_time_change_nothing(make_batch):
    for keys in ALL.values():
        algorithm = ready(keys, make_batch())
        once = weighed(algorithm, make_batch())
        again = algorithm.weights(once)
        torch.testing.assert_close(again.weight_T, once.weight_T, atol=0, rtol=0)
        torch.testing.assert_close(again.advantages_T, once.advantages_T, atol=1e-12, rtol=1e-12)


def test_weights_and_advantages_are_double_precision_whatever_the_streams(make_batch):
    for keys in ALL.values():
        batch = make_batch(dtype=torch.float32)
        algorithm = ready(keys, batch)
        batch = weighed(algorithm, batch)
        assert batch.weight_T.dtype == batch.advantages_T.dtype == torch.float64
        assert not batch.weight_T.requires_grad
        assert not batch.advantages_T.requires_grad
        single = Current(batch.prox_T, *[torch.ones(21)] * 3)
        assert algorithm.loss(batch, single).value.dtype == torch.float32


def test_balance_comes_after_masks_and_under_the_weights(padded, close):
    """Long right answers against short wrong ones: group-centred, and out of balance under a token mean."""
    batch = padded({"mask": [[1.0] * 3, [1.0, 0.0, 0.0]], "rewards": [1.0, 0.0]}).batch()
    algorithm = composed(adv_norm=GROUP, balance=BalanceConfig())
    batch = weighed(algorithm, batch)
    close(batch.advantages_T, [1 / 3] * 3 + [-1.0])
    close((batch.weight_T * batch.advantages_T).sum(), 0.0)


def test_weights_come_before_the_loss(make_batch):
    algorithm = composed()
    batch = algorithm.credit(make_batch())
    with pytest.raises(ValueError, match="weight_T"):
        algorithm.loss(batch, unmoved(batch))
    with pytest.raises(ValueError, match="weight_T"):
        algorithm.moving_S(batch)


# ---- loss


def test_the_loss_is_weight_times_penalties_minus_correction_times_objective(make_batch, close):
    keys = AlgorithmKeys(kl_loss_coef=0.1, kl_loss_estimator="k2", entropy_coef=0.5, gate="open",
                         correction=CorrectionConfig("decoupled"))  # fmt: skip
    algorithm, current = ready(keys, make_batch()), moved(make_batch())
    batch = weighed(algorithm, make_batch())
    objective_T = (current.logprobs_T - batch.prox_T).exp() * batch.advantages_T
    penalty_T = 0.05 * (current.logprobs_T - batch.ref_T).square() - 0.5 * current.entropy_T
    behaviour_T = (batch.prox_T - batch.behaviour_T).exp()
    close(algorithm.loss(batch, current).value, ((penalty_T - behaviour_T * objective_T) / 21).sum())


def test_one_ratio_for_a_sequence_goes_with_the_mean_of_its_advantages(make_batch, close):
    batch = make_batch()
    advantages_T = torch.linspace(-1, 1, 21).double()
    mean_T = torch.stack([advantages_T[batch.seq_T == s].mean() for s in batch.seq_T])
    for level, expected_T in (("sequence", mean_T), ("sequence_token", advantages_T)):
        algorithm = composed(importance_sampling_level=level, gate="open", loss_agg_mode="seq_mean_token_mean")
        weighted = algorithm.weights(batch.with_(advantages_T=advantages_T))
        close(step(algorithm, weighted, unmoved(batch)).gradient_T, -weighted.weight_T * expected_T)


def test_a_sequence_is_gated_by_the_sign_of_its_mean_advantage(padded, close):
    """Ratio 1.5 for both tokens, advantages 1 and -3: by the token the first is clipped, as a sequence none is."""
    algorithm = composed(importance_sampling_level="sequence")
    batch = padded({"mask": [[1.0, 1.0]], "rewards": [0.0]}).batch(
        prox_T=torch.zeros(2).double(), advantages_T=torch.tensor([1.0, -3.0]).double()
    )
    pushed = Current(torch.full((2,), 1.5, dtype=torch.float64).log())
    loss, gradient_T = step(algorithm, algorithm.weights(batch), pushed)
    close(loss.value, 1.5)
    close(gradient_T, [0.75, 0.75])
    assert float(loss.stats["clip_fraction"].sum) == 0.0


def test_a_first_step_takes_the_policy_itself_as_the_centre(make_batch):
    algorithm, current = composed(adv_norm=GROUP), moved(make_batch())
    batch = weighed(algorithm, make_batch())
    found = step(algorithm, batch.with_(prox_T=None), current)
    assert float(found.loss.stats["ratio"].sum) == 21.0
    torch.testing.assert_close(found.gradient_T, -batch.weight_T * batch.advantages_T, atol=1e-12, rtol=1e-12)


def test_the_ratio_pushes_further_only_inside_the_band(make_batch):
    """As a policy follows a positive advantage, clipped tokens are counted one after another."""
    algorithm = composed()
    batch = algorithm.weights(make_batch().with_(advantages_T=torch.ones(21)))
    found = [algorithm.loss(batch, Current(batch.prox_T + push)).stats for push in (0.1, 0.18, 0.19)]
    high = [float(stats["clip_fraction/high"].sum) for stats in found]
    assert high == [0, 0, 21]
    assert all(a <= b for a, b in pairwise(high))


@pytest.mark.parametrize("name", ALL)
def test_single_precision_streams(make_batch, close, name):
    found = []
    for dtype in (torch.float64, torch.float32):
        batch, current = make_batch(dtype=dtype), moved(make_batch())
        algorithm = ready(ALL[name], make_batch())
        current = Current(*(stream.to(dtype) for stream in vars(current).values()))
        batch = weighed(algorithm, batch)
        found.append((batch.advantages_T, *step(algorithm, batch, current)))
    for (double_T, double, slope_T), (single_T, single, single_slope_T) in [found]:
        close(single_T, double_T, atol=1e-5, rtol=1e-5)
        close(single.value, double.value, atol=1e-5, rtol=1e-5)
        close(single_slope_T, slope_T, atol=1e-5, rtol=1e-5)


# ---- the unified view


def test_gradient_coefficients_of_grpo_on_policy(golden, padded, close):
    case = golden("gradient_coefficients_grpo")
    rows = padded(case["inputs"])
    algorithm = composed(kl_loss_coef=0.04, loss_agg_mode="seq_mean_token_mean")
    batch = algorithm.weights(rows.batch())
    found_T = algorithm.gradient_coefficients(batch, Current(rows.tokens("logp")))
    close(rows.padded(found_T), case["expected"]["GC"])
    assert found_T.dtype == torch.float64


def test_coefficients_of_the_named_methods_off_policy(make_batch, close):
    """PPO: A·ρ where it is not clipped; SAPO: A·ρ·4p(1-p); REINFORCE: A; CISPO: A·clip(ρ)."""
    batch = make_batch()
    current = moved(batch)
    ratio_T = (current.logprobs_T - batch.prox_T).exp()
    p_T = torch.sigmoid(ratio_T - 1)
    for keys, of in (
        ({"gate": "open"}, lambda A: A * ratio_T),
        ({}, lambda A: A * ratio_T * ~(((A > 0) & (ratio_T > 1.2)) | ((A < 0) & (ratio_T < 0.8)))),
        ({"gate": "soft", "sapo_tau_neg": 1.0}, lambda A: A * ratio_T * 4 * p_T * (1 - p_T)),
        ({"importance_sampling_level": "none"}, lambda A: A),
        ({"gate": "cispo"}, lambda A: A * ratio_T.clamp(0.8, 1.2)),
    ):
        algorithm = composed(adv_norm=GROUP, loss_agg_mode="seq_mean_token_mean", **keys)
        weighted = weighed(algorithm, batch)
        close(algorithm.gradient_coefficients(weighted, current), of(weighted.advantages_T))


def test_coefficients_are_zero_without_weight_and_need_no_gradient_of_the_caller(make_batch):
    batch = make_batch().with_(valid_S=torch.arange(7) != 0)
    algorithm = composed(adv_norm=GROUP)
    weighted = weighed(algorithm, batch)
    with torch.no_grad():
        found_T = algorithm.gradient_coefficients(weighted, unmoved(batch))
    assert found_T[:4].tolist() == [0.0] * 4
    torch.testing.assert_close(found_T, weighted.advantages_T, atol=1e-12, rtol=1e-12)


# ---- signal


def test_equal_rewards_leave_nothing_to_learn_unless_a_penalty_acts(make_batch):
    for name in ("grpo", "drgrpo", "gspo", "dapo", "areal_grpo", "skywork_or1"):
        keys = keys_of(name)
        batch = make_batch().with_(reward_S=torch.full((7,), 0.7), truncated_S=torch.zeros(7, dtype=torch.bool))
        algorithm = ready(keys, batch, max_new_tokens=64)
        credited = weighed(algorithm, batch)
        assert not bool(credited.advantages_T.any())
        assert bool(algorithm.moving_S(credited).any()) is (name == "grpo")  # its KL; Skywork's bonus is still at 0
        nothing = weighed(algorithm, batch.with_(valid_S=torch.zeros(7, dtype=torch.bool)))
        assert not bool(algorithm.moving_S(nothing).any())
        assert bool(algorithm.moving_S(weighed(algorithm, make_batch())).any())


def test_what_is_masked_away_is_no_signal(make_batch):
    batch = make_batch().with_(behaviour_T=make_batch().prox_T - 3)  # weights of 20: all above the cap
    algorithm = composed(adv_norm=GROUP, use_decoupled_loss=True)
    assert not bool(algorithm.moving_S(weighed(algorithm, batch)).any())
    assert bool(algorithm.moving_S(weighed(algorithm, batch.with_(behaviour_T=batch.prox_T))).any())


def test_a_penalty_on_the_step_is_no_signal_before_the_first_step(make_batch):
    """KL(old ‖ new) and its slope are 0 while the policy has not moved."""
    batch = make_batch().with_(reward_S=torch.full((7,), 0.7))
    algorithm = composed(adv_norm=GROUP, kl_penalty_coef=1.0, gate="open")
    batch = weighed(algorithm, batch)
    assert bool(algorithm.moving_S(batch).any())
    assert not bool(algorithm.moving_S(batch.with_(prox_T=None)).any())


@pytest.mark.parametrize("on_policy", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_samples_that_move_nothing_add_nothing(name, on_policy):
    """On the left out samples loss and gradient are exactly 0, so what is left has the loss and gradient of all."""
    for seed in range(3):
        batch = random_batch(seed)
        spread_S = torch.tensor([0.0, 0.7, 1.0, 0.0, 0.7, 0.7, 1.0], dtype=torch.float32)  # a group alike, a mixed one
        batch = batch.with_(reward_S=spread_S)
        algorithm = ready(ALL[name], batch)
        current = unmoved(batch) if on_policy else moved(batch)
        batch = weighed(algorithm, batch)
        batch = batch.with_(prox_T=None) if on_policy else batch
        moving = algorithm.moving_S(batch)
        gone = (~moving).nonzero().flatten().tolist()
        whole, lost = step(algorithm, batch, current), tokens_of(batch, gone)
        assert not bool(whole.gradient_T[lost].any())
        assert step(algorithm, batch.select(gone), current_at(current, lost)).loss.value.item() == 0
        kept = moving.nonzero().flatten().tolist()
        rest = step(algorithm, batch.select(kept), current_at(current, tokens_of(batch, kept)))
        assert torch.allclose(rest.loss.value, whole.loss.value, rtol=0, atol=1e-12)
        assert torch.allclose(rest.gradient_T, whole.gradient_T[tokens_of(batch, kept)], rtol=0, atol=1e-12)


def test_every_sample_without_an_advantage_is_known_by_its_tokens(make_batch):
    """Groups alike move nothing; a KL, or k1's slope on the step, moves every sample that has a weight."""
    batch = make_batch().with_(reward_S=torch.tensor([1.0, 0.0, 0.7, 1.0, 0.7, 1.0, 0.0]))
    batch = batch.with_(prompt_S=torch.tensor([9, 9, 4, 9, 4, 9, 9]))
    batch = batch.with_(truncated_S=torch.tensor([False] * 6 + [True]))
    has_tokens = batch.length_S > 0

    def moving(on_policy=True, **keys):
        algorithm = composed(adv_norm=GROUP, truncation="mask_loss", **keys)
        weighed_batch = weighed(algorithm, batch)
        return algorithm.moving_S(weighed_batch.with_(prox_T=None) if on_policy else weighed_batch).tolist()

    alike = torch.tensor([False, False, True, False, True, False, False])
    mixed = (has_tokens & ~alike & ~batch.truncated_S).tolist()
    weighted = (has_tokens & ~batch.truncated_S).tolist()
    assert moving() == mixed
    assert moving(kl_loss_coef=0.1) == moving(entropy_coef=0.1) == weighted
    assert moving(kl_penalty_coef=1.0, kl_penalty_estimator="k3", gate="open") == mixed
    assert moving(False, kl_penalty_coef=1.0, kl_penalty_estimator="k3", gate="open") == weighted
    assert moving(kl_penalty_coef=1.0, kl_penalty_estimator="k1", gate="open") == weighted


def test_a_critic_learns_from_every_weighted_sample(make_batch):
    """Without any advantage, too: the value loss is that of its returns."""
    batch = make_batch().with_(valid_S=torch.arange(7) != 1)
    algorithm = compose(AlgorithmKeys(credit="gae"), n_samples=4, max_new_tokens=64)
    batch = algorithm.weights(batch.with_(advantages_T=torch.zeros(len(batch.seq_T)).double()))
    weighted_S = [bool((batch.weight_T[batch.seq_T == s] != 0).any()) for s in range(7)]
    assert any(weighted_S) and not weighted_S[1]
    assert algorithm.valued_S(batch).tolist() == weighted_S
    assert not bool(algorithm.moving_S(batch).any())


# ---- needs


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("reinforce", set()), ("grpo", {"ref"}), ("drgrpo", set()), ("dapo", set()), ("gspo", set()), ("sapo", set()),
        ("rloo", {"prox", "ref"}), ("ppo", {"prox", "ref", "values"}), ("ppo_penalty", {"values", "prox", "kl_after"}),
        ("skywork_or1", {"entropy", "old_entropy"}), ("areal_grpo", {"prox", "behaviour"}), ("areal_sapo", set()),
        ("areal_ppo", {"prox", "behaviour", "values"}), ("much shaping", {"prox", "ref", "entropy"}),
        ("coupled, drifted sequences dropped", {"behaviour"}), ("interpolated centre", {"behaviour"}),
        ("steps", {"step_rewards"}), ("each reward by itself", {"parts"}),
        ("sapo with a token mean and a full KL", {"ref", "kl_full_ref", "prox", "behaviour"}),
        ("ppo's full penalty by sequence", {"values", "kl_full_old", "prox", "kl_after", "entropy", "old_entropy"}),
    ],
)  # fmt: skip
def test_needs_follow_from_the_parts(name, needs):
    assert compose(ALL[name], n_samples=4, max_new_tokens=8, part_weights=(1.0, 0.5)).needs == needs


NAMES = {"prox": "prox_T", "ref": "ref_T", "values": "values_T", "behaviour": "behaviour_T", "parts": "parts_SR",
         "step_rewards": "step_rewards_T", "entropy": "entropy_T", "kl_full_ref": "kl_full_ref_T",
         "kl_full_old": "kl_full_old_T"}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_what_is_not_needed_is_not_read_and_what_is_needed_is_missed(make_batch, name):
    """Streams beside those that every algorithm reads: a second scoring pass is run for what is needed only."""
    algorithm, current = ready(ALL[name], make_batch()), moved(make_batch())
    needed = {NAMES[stream] for stream in algorithm.needs if stream in NAMES}
    versions = {"version_T", "train_version", "lot_S", "bootstrap_value_S"}  # come with every rollout
    batch = make_batch()
    bare = batch.with_(**{n: None for n in set(NAMES.values()) - needed if hasattr(batch, n)})
    now = Current(current.logprobs_T, *(getattr(current, n) if n in needed else None for n in
                                        ("entropy_T", "kl_full_ref_T", "kl_full_old_T")))  # fmt: skip
    step(algorithm, weighed(algorithm, bare), now)
    for missing in needed - versions:
        lacking = bare.with_(**{missing: None}) if hasattr(batch, missing) and missing != "entropy_T" else bare
        after = replace(now, **{missing: None}) if hasattr(now, missing) else now
        if missing == "entropy_T" and not any(penalty.coef for penalty in algorithm.penalties):
            continue  # a bonus of 0 is not computed
        if missing == "ref_T" and "kl_full_ref_T" in needed:
            continue  # the loss reads the distributions; metrics and rules read the tokens
        if missing == "prox_T" and "kl_after" in algorithm.needs:
            continue  # a rule's metric is measured against it after the last optimizer step
        with pytest.raises(ValueError, match=missing):
            step(algorithm, weighed(algorithm, lacking), after)
