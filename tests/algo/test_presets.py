"""Presets as the config loader sees them."""

import pytest

from partita.algo.explain import keys_of
from partita.algo.presets import PRESETS, SOURCES, expand_preset


def test_expansion_gives_dotted_keys_of_the_actor():
    expanded = expand_preset("dapo")
    assert expanded["actor.eps_clip_higher"] == 0.28
    assert expanded["actor.adv_norm"] == {"mean_level": "group", "std_level": "group", "eps": 1e-6}
    assert set(expanded) <= expand_preset.reset_keys


def test_an_expansion_belongs_to_whoever_asked():
    expand_preset("dapo")["actor.adv_norm"]["std_level"] = None
    assert expand_preset("dapo")["actor.adv_norm"]["std_level"] == "group"
    assert PRESETS["grpo"]["adv_norm"]["std_level"] == "group"


def test_every_algorithm_key_is_reset():
    assert {"actor.eps_clip", "actor.reward_norm", "actor.truncation"} <= expand_preset.reset_keys
    assert "actor.path" not in expand_preset.reset_keys


@pytest.mark.parametrize(("name", "near"), [("grp", "grpo"), ("Dr.GRPO", "drgrpo"), ("dap0", "dapo")])
def test_an_unknown_name_gets_choices_and_a_near_match(name, near):
    with pytest.raises(ValueError, match="Choices: grpo, drgrpo, rloo, dapo") as caught:
        expand_preset(name)
    assert f"Near: {near}" in str(caught.value)


def test_a_name_like_nothing_gets_the_choices_only():
    with pytest.raises(ValueError, match="Choices") as caught:
        expand_preset("zzz")
    assert "Near" not in str(caught.value)


def test_presets_are_the_published_algorithms():
    assert set(SOURCES) == set(PRESETS)
    grpo, drgrpo, rloo, dapo = (keys_of(name) for name in ("grpo", "drgrpo", "rloo", "dapo"))
    assert (grpo.loss_agg_mode, grpo.kl_loss_coef, grpo.kl_loss_estimator) == ("seq_mean_token_mean", 0.04, "k3")
    assert drgrpo.adv_norm is not None
    assert (drgrpo.loss_agg_mode, drgrpo.adv_norm.std_level) == ("seq_mean_token_sum_norm", None)
    assert rloo.adv_norm is not None
    assert (rloo.importance_sampling_level, rloo.adv_norm.mean_leave1out) == ("none", True)
    assert (dapo.eps_clip, dapo.eps_clip_higher, dapo.loss_agg_mode) == (0.2, 0.28, "token_mean")
    assert dapo.dynamic_sampling is not None
