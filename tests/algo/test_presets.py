"""Presets: typed keys, as the config loader sees them, and the papers' values."""

from dataclasses import fields, is_dataclass, replace
from typing import get_args, get_type_hints

import pytest
import torch
from properties.batches import ready

from partita.algo.compose import compose, controllers
from partita.algo.explain import explain
from partita.algo.keys import AlgorithmKeys, BalanceConfig, EmaConfig, NormConfig
from partita.algo.presets import PRESETS, SECTIONS, expand_preset, keys_of, preset
from partita.algo.review import review
from partita.algo.sources import SOURCES
from partita.algo.tokens import Current
from partita.algo.unified import rft
from partita.config import load_config


def test_expansion_gives_dotted_keys_of_the_actor_and_of_what_else_it_sets():
    expanded = expand_preset("dapo")
    assert expanded["actor.eps_clip_higher"] == 0.28
    assert expanded["actor.adv_norm"] == {"mean_level": "group", "std_level": "group", "eps": 1e-6}
    assert expand_preset("sapo_selfadaptive")["gconfig.adaptive_n"] == {"score": "entropy"}
    for name in PRESETS:
        assert set(expand_preset(name)) <= expand_preset.reset_keys


def test_an_expansion_belongs_to_whoever_asked():
    expand_preset("dapo")["actor.adv_norm"]["std_level"] = None
    preset("gspo_smoothed")["adv_norm"]["ema"]["beta"] = 0.1
    assert expand_preset("dapo")["actor.adv_norm"]["std_level"] == "group"
    assert PRESETS["grpo"]["adv_norm"]["std_level"] == "group"
    assert PRESETS["gspo_smoothed"]["adv_norm"]["ema"]["beta"] == 0.9


def test_every_algorithm_key_is_reset():
    assert {f"actor.{item.name}" for item in fields(AlgorithmKeys)} <= expand_preset.reset_keys
    beside = {"gconfig.adaptive_n", "rollout.policy"}
    assert expand_preset.reset_keys - {f"actor.{item.name}" for item in fields(AlgorithmKeys)} == beside
    assert "actor.path" not in expand_preset.reset_keys


NEAR = [("grp", "grpo"), ("Dr.GRPO", "drgrpo"), ("dap0", "dapo"), ("ppo-penalty", "ppo_penalty")]


@pytest.mark.parametrize(("name", "near"), NEAR)
def test_an_unknown_name_gets_choices_and_a_near_match(name, near):
    for ask in (expand_preset, keys_of, preset):
        with pytest.raises(ValueError, match="Choices: reinforce, rft, online_rft, ppo") as caught:
            ask(name)
        assert f"Near: {near}" in str(caught.value)


def test_a_name_like_nothing_gets_the_choices_only():
    with pytest.raises(ValueError, match="Choices") as caught:
        expand_preset("zzz")
    assert "Near" not in str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_typed_keys_are_what_the_loader_makes_of_the_expansion(name):
    given = {key: value for key, value in preset(name).items() if "." not in key}
    assert keys_of(name) == load_config(AlgorithmKeys, base_tree=given).value


def test_every_key_that_is_a_section_is_typed():
    hints = get_type_hints(AlgorithmKeys) | get_type_hints(NormConfig)
    classes = {name: [kind for kind in (*get_args(hint), hint) if is_dataclass(kind)] for name, hint in hints.items()}
    assert {name: kinds[0] for name, kinds in classes.items() if kinds} == SECTIONS


@pytest.mark.parametrize("name", PRESETS)
def test_presets_compose_without_alarm_and_have_a_source(name):
    assert name in SOURCES
    keys = keys_of(name)
    compose(keys, n_samples=2, max_new_tokens=16)
    assert review(keys, n_samples=2, max_new_tokens=16).inactive == ()
    assert explain(name)


def test_presets_are_different_algorithms(make_batch):
    """Together with what they set beside `actor`: the two kinds of rejection sampling differ in who samples only."""
    seen = {}
    for name in PRESETS:
        keys = keys_of(name)
        beside = {path: value for path, value in preset(name).items() if "." in path}
        seen.setdefault(repr((ready(keys, make_batch()), controllers(keys), beside)), []).append(name)
    assert [names for names in seen.values() if len(names) > 1] == []


def test_the_papers_values():
    grpo, drgrpo, rloo, dapo, gspo = (keys_of(name) for name in ("grpo", "drgrpo", "rloo", "dapo", "gspo"))
    assert (grpo.loss_agg_mode, grpo.kl_loss_coef, grpo.kl_loss_estimator) == ("seq_mean_token_mean", 0.04, "k3")
    assert (drgrpo.loss_agg_mode, drgrpo.adv_norm.std_level) == ("seq_mean_token_sum_norm", None)
    assert (rloo.importance_sampling_level, rloo.adv_norm.mean_leave1out, rloo.kl_ctl) == ("none", True, 0.03)
    assert (dapo.eps_clip, dapo.eps_clip_higher, dapo.loss_agg_mode) == (0.2, 0.28, "token_mean")
    assert dapo.dynamic_sampling.filter == "mixed_outcomes"
    assert (gspo.eps_clip, gspo.eps_clip_higher, gspo.importance_sampling_level) == (3e-4, 4e-4, "sequence")
    sapo, cispo, lite, skywork = (keys_of(name) for name in ("sapo", "cispo", "liteppo", "skywork_or1"))
    assert (sapo.use_sapo_loss, sapo.sapo_tau_pos, sapo.sapo_tau_neg) == (True, 1.0, 1.05)
    assert (cispo.gate, cispo.eps_clip) == ("cispo", 1.0)
    assert (lite.adv_norm.mean_level, lite.adv_norm.std_level, lite.adv_norm.std_of) == ("group", "batch", "raw")
    assert (skywork.adaptive_entropy.target, skywork.adaptive_entropy.delta) == (0.2, 0.005)
    fixed, online = preset("rft"), preset("online_rft")
    assert fixed == online | {"rollout.policy": "starting"}
    assert (online["reward_threshold"], online["adv_norm"], online["importance_sampling_level"]) == (1.0, None, "none")
    ppo, penalty = keys_of("ppo"), keys_of("ppo_penalty")
    assert (ppo.credit, ppo.gae_lambda, ppo.value_eps_clip, ppo.eps_clip) == ("gae", 0.95, 0.2, 0.2)
    assert (penalty.gate, penalty.kl_controller.type, penalty.kl_controller.target) == ("open", "penalty", 0.01)


@pytest.mark.parametrize("name", ["rft", "online_rft"])
def test_rejection_sampling_is_the_mean_log_likelihood_of_right_samples(padded, close, name):
    """Three samples of 2, 1 and 3 tokens, of which the first and the last are right."""
    batch = padded({"mask": [[1, 1, 0], [1, 0, 0], [1, 1, 1]], "rewards": [1.0, 0.6, 2.0]}).batch(
        prox_T=torch.tensor([-1.0, -2.0, -0.5, -0.25, -0.5, -0.75], dtype=torch.float64)
    )
    algorithm = compose(keys_of(name), n_samples=3, max_new_tokens=8)
    batch = algorithm.weights(algorithm.credit(batch))
    close(batch.advantages_T, [1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    close(algorithm.gradient_coefficients(batch, Current(batch.prox_T)), rft(batch.reward_S >= 1, batch.seq_T))
    logprobs_T = batch.prox_T.clone().requires_grad_()
    value = algorithm.loss(batch, Current(logprobs_T)).value
    close(value, -(-1.5 + 0.0 - 0.5) / 3)
    (gradient_T,) = torch.autograd.grad(value, logprobs_T)
    close(gradient_T, [-1 / 6, -1 / 6, 0.0, -1 / 9, -1 / 9, -1 / 9])
    assert algorithm.moving_S(batch).tolist() == [True, False, True]
    assert algorithm.needs == frozenset()


def test_a_step_without_a_right_sample_has_nothing_to_learn(padded):
    batch = padded({"mask": [[1, 1], [1, 0]], "rewards": [0.99, 0.0]}).batch(prox_T=torch.tensor([-1.0, -2.0, -0.5]))
    algorithm = compose(keys_of("online_rft"), n_samples=2, max_new_tokens=8)
    assert not bool(algorithm.moving_S(algorithm.weights(algorithm.credit(batch))).any())


def test_two_ideas_under_one_short_name_are_two_presets():
    smoothed, adaptive, band = (keys_of(name) for name in ("gspo_smoothed", "sapo_selfadaptive", "decoupled_clip"))
    assert (smoothed.importance_sampling_level, smoothed.adv_norm.ema) == ("token", EmaConfig(0.9))
    assert (adaptive.use_sapo_loss, adaptive.eps_clip_rule.type) == (False, "iqr")
    assert (band.gate, band.balance) == ("clip_without_min", BalanceConfig())


def test_rows_of_a_library_s_matrix():
    rows = {name.removeprefix("areal_"): keys_of(name) for name in PRESETS if name.startswith("areal_")}
    assert set(rows) == {"ppo", "grpo", "drgrpo", "liteppo", "rloo", "gspo", "dapo", "sapo"}
    levels = {name: (keys.adv_norm.mean_level, keys.adv_norm.std_level) for name, keys in rows.items()}
    assert levels == {
        "ppo": ("batch", "batch"), "grpo": ("batch", "batch"), "drgrpo": ("group", None), "liteppo": ("group", "batch"),
        "rloo": ("group", None), "gspo": ("batch", "batch"), "dapo": ("batch", "batch"), "sapo": ("batch", "batch"),
    }  # fmt: skip
    assert {keys.loss_agg_mode for keys in rows.values()} == {"token_mean"}
    assert [name for name, keys in rows.items() if not keys.use_decoupled_loss] == ["sapo"]


def test_half_the_penalty_on_right_or_wrong_is_the_papers_on_plus_minus_one(make_batch, close):
    batch = make_batch()
    papers = replace(keys_of("dapo"), overlong_penalty_factor=1.0)
    expected = ready(papers, batch).credit(batch.with_(reward_S=2 * batch.reward_S - 1))
    found = ready(keys_of("dapo"), batch).credit(batch)
    close(found.advantages_T, expected.advantages_T, atol=1e-5)


def test_a_script_of_another_library_in_these_keys():
    """Dr.GRPO's loss, no reward scaling, asymmetric clip, truncated completions masked, no reference."""
    keys = replace(keys_of("drgrpo"), eps_clip_higher=0.28, truncation="mask_loss")
    algorithm = compose(keys, n_samples=8, max_new_tokens=64)
    assert algorithm.needs == frozenset()
    said = " ".join(part.formula() for part in (algorithm.gate, algorithm.reduce, *algorithm.rows))
    assert all(word in said for word in ("1-0.2, 1+0.28", "N·64", "truncated samples"))
    assert algorithm.norm.formula("r") == "r - mean(group)"


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token", "sequence_product", "none"])
@pytest.mark.parametrize("name", PRESETS)
def test_no_ratio_option_loses_the_gradient(make_batch, name, level):
    """Where policy, old policy and sampler agree, it is that of REINFORCE in every combination that is not refused."""
    keys = replace(
        keys_of(name), importance_sampling_level=level, kl_loss_coef=0.0, kl_penalty_coef=0.0, kl_controller=None
    )
    batch = make_batch().with_(behaviour_T=make_batch().prox_T)
    if level == "none" and (keys.use_sapo_loss or keys.gate not in ("min_clip", "open") or keys.eps_clip_rule):
        with pytest.raises(ValueError, match="importance_sampling_level none"):
            ready(keys, batch)
        return
    algorithm = ready(keys, batch)
    batch = algorithm.weights(algorithm.credit(batch))
    logprobs_T = batch.prox_T.clone().requires_grad_()
    value = algorithm.loss(batch, Current(logprobs_T, torch.zeros(21))).value
    (gradient_T,) = torch.autograd.grad(value, logprobs_T)
    signal_T = batch.advantages_T
    if level in ("sequence", "sequence_product"):  # all tokens share one advantage
        mean_S = torch.zeros(7).double().index_add(0, batch.seq_T, signal_T) / batch.length_S.clamp(min=1)
        signal_T = mean_S[batch.seq_T]
    if level == "sequence_product" and keys.gate != "cispo":  # a product moves by each of them, a held weight does not
        signal_T = signal_T * batch.length_S[batch.seq_T]
    torch.testing.assert_close(gradient_T, -batch.weight_T * signal_T, atol=1e-9, rtol=1e-9)
    assert float(gradient_T.abs().max()) > 0
