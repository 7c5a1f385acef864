"""Keys that exclude each other: every line names both keys, their values, and what to set instead."""

from dataclasses import replace

import pytest

from partita.algo.compose import compose
from partita.algo.conflicts import Limits, correction_bounds, overlong_window
from partita.algo.keys import (
    AdaptiveEntropyConfig,
    AlgorithmKeys,
    ClipRuleConfig,
    CorrectionConfig,
    DynamicSampling,
    KlControllerConfig,
    NormConfig,
)  # fmt: skip
from partita.algo.presets import keys_of

GROUP = NormConfig(mean_level="group", std_level="group")
TOKENS, SEQUENCES = NormConfig(unit="token"), NormConfig(unit="sequence")
EMA = NormConfig(mean_level="ema", std_level=None)
KL_RULE = KlControllerConfig("ziegler")
COUPLED = {"recompute_logprob": False}
LINEAR = {"prox_logp_method": "loglinear"}


def keys(**values):
    return AlgorithmKeys(**values)


CONFLICTS = [
    # ---- sizes of groups and responses
    (keys(reward_norm=replace(GROUP, group_size=8)), ["actor.reward_norm.group_size 8", "gconfig.n_samples 4", "leave it out"]),
    (keys(overlong_reward_penalty=True, overlong_tokens=64), ["actor.overlong_tokens 64", "gconfig.max_new_tokens 64"]),
    # ---- statistics
    (keys(reward_norm=TOKENS), ["actor.reward_norm.unit token", "adv_norm"]),
    (keys(reward_norm=EMA, adv_norm=EMA), ["actor.reward_norm", "actor.adv_norm", "ema", "keep one"]),
    (keys(reward_norm_per_part=True), ["actor.reward_norm_per_part true", "actor.reward_norm"]),
    (keys(reward_norm_per_part=True, reward_norm=EMA), ["actor.reward_norm_per_part true", "level ema"]),
    (keys(reward_norm_per_part=True, reward_norm=GROUP, reward_threshold=0.5),
     ["actor.reward_threshold 0.5", "actor.reward_norm_per_part true", "one of the two"]),
    # ---- credit
    (keys(discount=0.9), ["actor.discount 0.9", "actor.credit outcome", "reward_to_go or gae"]),
    (keys(discount=0.9, credit="process"), ["actor.discount 0.9", "actor.credit process"]),
    (keys(kl_ctl=0.1, adv_norm=TOKENS), ["actor.kl_ctl 0.1", "actor.adv_norm.unit token", "unit: sequence"]),
    (keys(credit="reward_to_go", adv_norm=SEQUENCES), ["actor.adv_norm.unit sequence", "actor.credit reward_to_go"]),
    (keys(credit="gae", adv_norm=SEQUENCES), ["actor.adv_norm.unit sequence", "actor.credit gae", "credit: outcome"]),
    (keys(credit="process", adv_norm=TOKENS), ["actor.adv_norm.unit token", "actor.credit process", "Leave unit out"]),
    (keys(credit="process", adv_norm=EMA), ["actor.adv_norm", "ema", "actor.credit process"]),
    (keys(credit="process", kl_ctl=0.1), ["actor.kl_ctl 0.1", "actor.credit process", "kl_loss_coef"]),
    # ---- gates and ratios
    (keys(use_sapo_loss=True, gate="cispo"), ["actor.use_sapo_loss true", "actor.gate cispo", "Leave one"]),
    (keys(use_sapo_loss=True, use_decoupled_loss=True), ["actor.use_sapo_loss true", "actor.use_decoupled_loss true",
                                                        "soft gate replaces the clip", "actor.use_decoupled_loss=false"]),
    (keys(gate="soft", use_decoupled_loss=True), ["actor.gate soft", "actor.use_decoupled_loss true"]),
    (keys(importance_sampling_level="none", gate="soft"), ["actor.gate soft", "actor.importance_sampling_level none"]),
    (keys(importance_sampling_level="none", gate="cispo"), ["actor.gate cispo", "importance_sampling_level: token"]),
    (keys(importance_sampling_level="none", gate="clip_without_min"), ["actor.gate clip_without_min"]),
    (keys(importance_sampling_level="none", eps_clip_rule=ClipRuleConfig()), ["actor.eps_clip_rule.type iqr",
                                                                              "actor.importance_sampling_level none"]),
    (keys(gate="open", eps_clip_rule=ClipRuleConfig()), ["actor.eps_clip_rule.type iqr", "actor.gate open"]),
    (keys(use_sapo_loss=True, eps_clip_rule=ClipRuleConfig("clip_fraction")), ["actor.eps_clip_rule.type clip_fraction",
                                                                               "actor.gate soft"]),
    (keys(gate="cispo", eps_clip_rule=ClipRuleConfig("clip_fraction")), ["actor.eps_clip_rule.type clip_fraction",
                                                                         "actor.gate cispo"]),
    # ---- sampler and trainer
    (keys(**COUPLED, use_decoupled_loss=True), ["actor.use_decoupled_loss true", "actor.recompute_logprob false",
                                                "count it twice", "recompute_logprob: true"]),
    *[(keys(**COUPLED, correction=CorrectionConfig(kind)), [f"actor.correction.kind {kind}", "actor.recompute_logprob false"])
      for kind in ("decoupled", "tis", "icepop", "mis", "m2po")],
    (keys(**LINEAR, correction=CorrectionConfig("m2po")), ["actor.correction.kind m2po", "actor.prox_logp_method loglinear"]),
    (keys(**LINEAR, correction=CorrectionConfig("icepop", denominator="kept")), ["actor.correction.denominator kept",
                                                                                 "actor.prox_logp_method loglinear"]),
    (keys(correction=CorrectionConfig("opsm", denominator="kept")), ["actor.correction.denominator kept",
                                                                     "actor.correction.kind opsm", "denominator: original"]),
    (keys(correction=CorrectionConfig("icepop", level="sequence")), ["actor.correction.level sequence", "kind icepop", "token"]),
    (keys(correction=CorrectionConfig("mis", level="token")), ["actor.correction.level token", "kind mis", "geometric, sequence"]),
    (keys(correction=CorrectionConfig("tis", level="geometric")), ["actor.correction.level geometric", "kind tis"]),
    (keys(correction=CorrectionConfig("icepop", low=2.0, high=1.5)), ["actor.correction.low 2.0", "actor.correction.high 1.5"]),
    (keys(correction=CorrectionConfig("icepop", low=9.0)), ["actor.correction.low 9.0", "actor.correction.high 5.0"]),
    # ---- rules
    (keys(entropy_coef=0.1, adaptive_entropy=AdaptiveEntropyConfig()), ["actor.entropy_coef 0.1", "actor.adaptive_entropy",
                                                                       "adaptive_entropy.start"]),
    (keys(kl_controller=KL_RULE), ["actor.kl_controller.type ziegler", "actor.kl_ctl 0.0", "actor.kl_loss_coef 0.0"]),
    (keys(kl_controller=KL_RULE, kl_ctl=0.1, kl_loss_coef=0.2), ["actor.kl_controller.type ziegler", "actor.kl_ctl 0.1",
                                                                 "actor.kl_loss_coef 0.2", "more than one"]),
    (keys(kl_controller=KL_RULE, kl_penalty_coef=0.1), ["actor.kl_controller.type ziegler", "actor.kl_penalty_coef 0.1",
                                                        "kl_ctl or kl_loss_coef"]),
    (keys(kl_controller=KlControllerConfig("penalty")), ["actor.kl_controller.type penalty", "actor.kl_penalty_coef 0.0"]),
    (keys(kl_controller=KlControllerConfig("trend"), kl_ctl=0.1, kl_penalty_coef=0.2),
     ["actor.kl_controller.type trend", "actor.kl_ctl 0.1", "actor.kl_penalty_coef 0.2", "Set one to 0"]),
]  # fmt: skip
ALONE = [
    (keys(adv_norm=GROUP), ["actor.adv_norm.mean_level group", "gconfig.n_samples 1", "singleton: raw"]),
    (keys(reward_norm=replace(GROUP, mean_level=None)), ["actor.reward_norm.std_level group", "gconfig.n_samples 1"]),
    (keys_of("grpo"), ["actor.adv_norm.mean_level group", "gconfig.n_samples 1"]),
    (keys_of("rloo"), ["actor.adv_norm.mean_level group", "gconfig.n_samples 1"]),
    (keys(dynamic_sampling=DynamicSampling()), ["actor.dynamic_sampling.filter mixed_outcomes", "gconfig.n_samples 1"]),
    (keys(mixed_group_retry=2), ["actor.mixed_group_retry 2", "gconfig.n_samples 1"]),
]


def refused(case, n_samples):
    with pytest.raises(ValueError, match="actor") as caught:
        compose(case, n_samples=n_samples, max_new_tokens=64)
    return str(caught.value)


@pytest.mark.parametrize(("case", "words"), CONFLICTS, ids=[words[0] for _, words in CONFLICTS])
def test_one_line_names_both_keys_and_their_values(case, words):
    said = refused(case, 4)
    assert len(said.splitlines()) == 1
    for word in words:
        assert word in said


@pytest.mark.parametrize(("case", "words"), ALONE, ids=[words[0] for _, words in ALONE])
def test_a_group_of_one_has_nothing_to_compare_with(case, words):
    said = refused(case, 1)
    for word in words:
        assert word in said
    compose(case, n_samples=2, max_new_tokens=64)


def test_all_conflicts_are_told_at_once():
    case = AlgorithmKeys(discount=0.9, reward_norm=GROUP, dynamic_sampling=DynamicSampling())
    assert len(refused(case, 1).splitlines()) == 4


@pytest.mark.parametrize(
    "case",
    [
        keys(adv_norm=replace(GROUP, singleton="raw")),
        keys(adv_norm=NormConfig()),
        keys_of("reinforce"),
        keys_of("gspo_smoothed"),
    ],
)
def test_a_group_of_one_where_nothing_is_compared_within_it(case):
    compose(case, n_samples=1, max_new_tokens=64)


@pytest.mark.parametrize(
    "case",
    [
        keys(overlong_tokens=64),  # the settings of what is off are not judged
        keys(use_sapo_loss=True, gate="soft"),
        keys(importance_sampling_level="none", gate="open"),
        keys(**COUPLED, correction=CorrectionConfig("opsm")),  # drift in the loss needs no sampler
        keys(**LINEAR, use_decoupled_loss=True),
        keys(use_sapo_loss=True, correction=CorrectionConfig("tis")),
        keys(gate="cispo", eps_clip_rule=ClipRuleConfig("iqr")),
        keys(reward_norm=EMA, adv_norm=NormConfig()),
        keys(kl_penalty_coef=0.1, kl_controller=KlControllerConfig("trend")),
        keys(kl_ctl=0.1, kl_penalty_coef=0.1, kl_controller=KlControllerConfig("ziegler")),  # each rule has its place
        keys(kl_ctl=0.1, kl_penalty_coef=0.1, kl_controller=KlControllerConfig("penalty")),
        keys(kl_ctl=0.1, kl_controller=KlControllerConfig("penalty")),
        keys(kl_controller=KlControllerConfig("fixed")),
        keys(credit="process", adv_norm=GROUP),
        keys(correction=CorrectionConfig("icepop", low=2.0, high=2.0)),
    ],
)
def test_neighbours_of_a_conflict_that_go_together(case):
    compose(case, n_samples=4, max_new_tokens=64)


@pytest.mark.parametrize(
    ("named", "limits"),
    [
        (CorrectionConfig("decoupled"), Limits("token", 0.5, 5.0, None, 0.1)),
        (CorrectionConfig("tis"), Limits("token", 0.5, 5.0, 2.0, 0.1)),
        (CorrectionConfig("tis", level="sequence", high=3.0), Limits("sequence", 0.5, 3.0, 3.0, 0.1)),
        (CorrectionConfig("icepop", low=0.2), Limits("token", 0.2, 5.0, None, 0.1)),
        (CorrectionConfig("mis"), Limits("geometric", 0.99, 1.01, None, 0.1)),
        (CorrectionConfig("mis", level="sequence"), Limits("sequence", 0.5, 2.0, None, 0.1)),
        (CorrectionConfig("m2po"), Limits("token", 0.5, 5.0, None, 0.04)),
        (CorrectionConfig("opsm", threshold=0.3), Limits("token", 0.5, 5.0, None, 0.3)),
    ],
    ids=str,
)
def test_bounds_that_are_not_given(named, limits):
    assert correction_bounds(named) == limits


def test_a_window_that_is_not_given_is_a_fifth_of_the_limit():
    assert [overlong_window(keys(), limit) for limit in (20480, 9, 1)] == [4096, 1, 1]
    assert overlong_window(keys(overlong_tokens=7), 100) == 7
