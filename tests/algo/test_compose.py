"""From keys to parts: what is refused, what is listed as inactive, and that every value changes something."""

import re
from dataclasses import fields, replace

import pytest

from partita.algo.compose import compose
from partita.algo.explain import describe, keys_of
from partita.algo.gate import MinClip
from partita.algo.keys import AlgorithmKeys, DynamicSampling, NormConfig
from partita.algo.norm import Center, Norm
from partita.algo.presets import PRESETS
from partita.algo.reduce import SeqMeanTokenSum
from partita.algo.review import review
from partita.algo.rows import Truncated

GROUP = NormConfig(mean_level="group", std_level="group")
TOKENS, SEQUENCES = NormConfig(unit="token"), NormConfig(unit="sequence")
BAKERY = AlgorithmKeys(
    overlong_tokens=16,
    reward_scaling=10.0,
    reward_bias=-0.5,
    reward_norm=NormConfig(mean_level="group", std_level="group", group_size=8),
    eps_clip_higher=0.28,
)


@pytest.mark.parametrize(
    ("keys", "n_samples", "words"),
    [
        (BAKERY, 4, ["actor.reward_norm.group_size 8", "gconfig.n_samples 4"]),
        (AlgorithmKeys(adv_norm=GROUP), 1, ["actor.adv_norm.mean_level group", "gconfig.n_samples 1", "std_level"]),
        (keys_of("rloo"), 1, ["actor.adv_norm.mean_level group", "gconfig.n_samples 1"]),
        (replace(BAKERY, overlong_reward_penalty=True, overlong_tokens=64), 8, ["actor.overlong_tokens 64",
                                                                               "gconfig.max_new_tokens 64"]),
        (AlgorithmKeys(kl_ctl=0.1, adv_norm=TOKENS), 8, ["actor.kl_ctl 0.1", "actor.adv_norm.unit token"]),
        (AlgorithmKeys(discount=0.9), 8, ["actor.discount 0.9", "actor.credit outcome"]),
        (AlgorithmKeys(credit="reward_to_go", adv_norm=SEQUENCES), 8, ["unit sequence", "reward_to_go"]),
        (AlgorithmKeys(reward_norm=TOKENS), 8, ["actor.reward_norm.unit token"]),
        (AlgorithmKeys(dynamic_sampling=DynamicSampling()), 1, ["mixed_outcomes", "gconfig.n_samples 1"]),
    ],
)  # fmt: skip
def test_conflicts_name_both_keys_and_their_values(keys, n_samples, words):
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        compose(keys, n_samples=n_samples, max_new_tokens=64)
    for word in words:
        assert word in str(caught.value)


def test_all_conflicts_are_told_at_once():
    keys = AlgorithmKeys(discount=0.9, reward_norm=GROUP, dynamic_sampling=DynamicSampling())
    with pytest.raises(ValueError, match="discount") as caught:
        compose(keys, n_samples=1, max_new_tokens=64)
    assert len(str(caught.value).splitlines()) == 4


def test_a_group_of_one_may_keep_its_own_reward():
    raw = NormConfig(mean_level="group", std_level="group", singleton="raw")
    compose(AlgorithmKeys(adv_norm=raw), n_samples=1, max_new_tokens=64)


def test_the_settings_of_a_disabled_feature_are_not_judged():
    compose(AlgorithmKeys(overlong_tokens=64), n_samples=8, max_new_tokens=64)


def test_keys_without_effect_name_the_missing_switch():
    inactive = review(BAKERY, n_samples=8, max_new_tokens=64).inactive
    assert inactive == ("actor.overlong_tokens 16: no effect, needs actor.overlong_reward_penalty: true",)
    assert review(replace(BAKERY, overlong_reward_penalty=True), n_samples=8, max_new_tokens=64).inactive == ()


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (AlgorithmKeys(importance_sampling_level="none", eps_clip=0.3), "actor.eps_clip 0.3"),
        (AlgorithmKeys(importance_sampling_level="none", c_clip=3.0), "actor.c_clip 3.0"),
        (AlgorithmKeys(kl_estimator="k2"), "actor.kl_estimator k2"),
        (AlgorithmKeys(kl_loss_estimator="k2"), "actor.kl_loss_estimator k2"),
        (AlgorithmKeys(loss_agg_constant=8.0), "actor.loss_agg_constant 8.0"),
        (AlgorithmKeys(count_empty_rows=False), "actor.count_empty_rows False"),
        (AlgorithmKeys(adv_norm=NormConfig(mean_level=None, mean_leave1out=True)), "actor.adv_norm.mean_leave1out"),
        (AlgorithmKeys(adv_norm=NormConfig(std_level=None, eps=1.0)), "actor.adv_norm.eps 1.0"),
        (AlgorithmKeys(adv_norm=NormConfig(mean_level=None, std_level=None)), "actor.adv_norm: neither"),
        (AlgorithmKeys(dynamic_sampling=DynamicSampling("mixed_rewards", correct_threshold=0.5)),
         "actor.dynamic_sampling.correct_threshold 0.5"),
    ],
)  # fmt: skip
def test_inactive_values(keys, name):
    inactive = review(keys, n_samples=8, max_new_tokens=64).inactive
    assert len(inactive) == 1
    assert inactive[0].startswith(name)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (AlgorithmKeys(reward_norm=GROUP, adv_norm=GROUP), "both normalise"),
        (AlgorithmKeys(kl_loss_coef=0.1, kl_loss_estimator="k1"), "no gradient in expectation"),
        (AlgorithmKeys(kl_ctl=0.1, kl_estimator="k3"), "only k1 is"),
        (AlgorithmKeys(kl_ctl=0.1, adv_norm=GROUP), "no fixed meaning"),
        (AlgorithmKeys(adv_norm=NormConfig(unit="token", mean_leave1out=True)), "not RLOO"),
        (AlgorithmKeys(overlong_reward_penalty=True), "rewards of 0 and 1"),
    ],
)
def test_advice(keys, words):
    assert words in " ".join(review(keys, n_samples=8, max_new_tokens=64).advice)


def test_values_that_were_filled_in_are_told():
    assumed = review(keys_of("dapo"), n_samples=8, max_new_tokens=20480).assumed
    assert assumed == ("actor.overlong_tokens 4096: a fifth of gconfig.max_new_tokens 20480",)
    assert review(keys_of("drgrpo"), n_samples=8, max_new_tokens=64).assumed == (
        "actor.loss_agg_constant 64: gconfig.max_new_tokens",
    )


def test_a_script_of_another_library_in_these_keys():
    """Dr.GRPO loss, no reward scaling, asymmetric clip, truncated completions masked, no reference."""
    keys = replace(keys_of("drgrpo"), eps_clip_higher=0.28, truncation="mask_loss")
    algorithm = compose(keys, n_samples=8, max_new_tokens=64)
    assert algorithm.needs == frozenset()
    assert algorithm.gate == MinClip(0.2, 0.28)
    assert algorithm.norm == Norm(Center(per_group=True), None)
    assert algorithm.reduce == SeqMeanTokenSum(64.0)
    assert algorithm.rows == (Truncated(in_loss=False),)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_raise_no_alarm(name):
    compose(keys_of(name), n_samples=2, max_new_tokens=16)
    assert review(keys_of(name), n_samples=2, max_new_tokens=16).inactive == ()


NORM_VALUES = {
    "mean_level": ["batch", "group", None], "std_level": ["batch", "group", None], "mean_leave1out": [True],
    "std_unbiased": [False], "eps": [0.1], "unit": ["token"], "eps_mode": ["inside_sqrt"], "std_of": ["raw"],
    "singleton": ["raw"],
}  # fmt: skip
VALUES = {
    "overlong_reward_penalty": [True], "reward_bias": [0.5], "reward_scaling": [2.0], "reward_clip": [1.0],
    "reward_norm": [NormConfig()], "kl_ctl": [0.1], "credit": ["reward_to_go"], "adv_norm": [NormConfig()],
    "truncation": ["mask_loss", "adv_mask_before", "adv_mask_after"], "importance_sampling_level": ["none"],
    "eps_clip": [0.1], "eps_clip_higher": [0.3], "c_clip": [3.0], "kl_loss_coef": [0.1], "entropy_coef": [0.1],
    "loss_agg_mode": ["seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm", "prompt_token_mean"],
    "dynamic_sampling": [DynamicSampling(), DynamicSampling("mixed_rewards"), DynamicSampling(max_batches=3),
                         DynamicSampling(correct_threshold=0.5)],
    # with the switch that each needs
    "overlong_tokens": [8], "overlong_penalty_factor": [0.5], "kl_estimator": ["k2", "k3", "abs"], "discount": [0.9],
    "loss_agg_constant": [3.0], "count_empty_rows": [False],
    "kl_loss_estimator": ["k1", "k2", "abs", "k3_value_k2_grad"],
}  # fmt: skip
SWITCHES = {
    "overlong_tokens": {"overlong_reward_penalty": True}, "overlong_penalty_factor": {"overlong_reward_penalty": True},
    "kl_estimator": {"kl_ctl": 0.1}, "discount": {"credit": "reward_to_go"}, "kl_loss_estimator": {"kl_loss_coef": 0.1},
    "loss_agg_constant": {"loss_agg_mode": "seq_mean_token_sum_norm"},
    "count_empty_rows": {"loss_agg_mode": "seq_mean_token_mean"},
}  # fmt: skip


def test_every_value_of_every_key_makes_another_algorithm():
    assert set(VALUES) == {item.name for item in fields(AlgorithmKeys)}
    for name, values in VALUES.items():
        base = AlgorithmKeys(**SWITCHES.get(name, {}))
        variants = [base] + [replace(base, **{name: value}) for value in values]
        composed = {tuple(describe(compose(keys, n_samples=4, max_new_tokens=64))) for keys in variants}
        assert len(composed) == len(variants), name


def test_every_value_of_every_norm_key_makes_another_norm():
    assert set(NORM_VALUES) == {item.name for item in fields(NormConfig)} - {"group_size"}
    for name, values in NORM_VALUES.items():
        norms = [replace(NormConfig(), **{name: value}) for value in values]
        shown = {tuple(describe(compose(AlgorithmKeys(adv_norm=n), n_samples=4, max_new_tokens=64))) for n in norms}
        default = tuple(describe(compose(AlgorithmKeys(adv_norm=NormConfig()), n_samples=4, max_new_tokens=64)))
        assert len(shown | {default}) == len(set(norms) | {NormConfig()}), name
