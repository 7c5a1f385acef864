"""What is idle, filled in or unwise in keys that go together."""

from dataclasses import replace

import pytest

from partita.algo.keys import (
    AlgorithmKeys,
    ClipRuleConfig,
    CorrectionConfig,
    DynamicSampling,
    EmaConfig,
    KlControllerConfig,
    NormConfig,
)  # fmt: skip
from partita.algo.presets import PRESETS, keys_of
from partita.algo.review import of_starting_samples, review

GROUP = NormConfig(mean_level="group", std_level="group")
LOSS_KL = {"kl_loss_coef": 0.1}


def keys(**values):
    return AlgorithmKeys(**values)


def norm(**values):
    return AlgorithmKeys(adv_norm=NormConfig(**values))


def found(case):
    return review(case, n_samples=8, max_new_tokens=64)


INACTIVE = [
    # ---- shaping
    (keys(overlong_tokens=16), "actor.overlong_tokens 16", "overlong_reward_penalty: true"),
    (keys(overlong_penalty_factor=0.5), "actor.overlong_penalty_factor 0.5", "overlong_reward_penalty: true"),
    (keys(kl_estimator="k2"), "actor.kl_estimator k2", "kl_ctl above 0"),
    (keys(credit="process", reward_bias=1.0), "actor.reward_bias 1.0", "step rewards only"),
    (keys(credit="process", overlong_reward_penalty=True), "actor.overlong_reward_penalty True", "step rewards only"),
    (keys(credit="process", reward_threshold=1.0), "actor.reward_threshold 1.0", "step rewards only"),
    # ---- credit
    (keys(gae_lambda=0.9), "actor.gae_lambda 0.9", "credit: gae"),
    (keys(bootstrap_truncated=True), "actor.bootstrap_truncated True", "credit: gae"),
    (keys(value_eps_clip=0.2, credit="reward_to_go"), "actor.value_eps_clip 0.2", "credit: gae"),
    # ---- objective
    (keys(importance_sampling_level="none", eps_clip=0.3), "actor.eps_clip 0.3", "importance_sampling_level: token"),
    (keys(importance_sampling_level="none", c_clip=3.0), "actor.c_clip 3.0", "importance_sampling_level: token"),
    (keys(importance_sampling_level="none", recompute_logprob=False), "actor.recompute_logprob False", "no ratio"),
    (keys(importance_sampling_level="none", prox_logp_method="loglinear"), "actor.prox_logp_method loglinear", "no ratio"),
    (keys(gate="open", eps_clip=0.3), "actor.eps_clip 0.3", "gate open does not have it"),
    (keys(gate="cispo", c_clip=3.0), "actor.c_clip 3.0", "gate cispo does not have it"),
    (keys(use_sapo_loss=True, eps_clip_higher=0.3), "actor.eps_clip_higher 0.3", "gate soft does not have it"),
    (keys(eps_clip_rule=ClipRuleConfig(), eps_clip=0.25), "actor.eps_clip 0.25", "sets the range"),
    (keys(sapo_tau_pos=2.0), "actor.sapo_tau_pos 2.0", "use_sapo_loss: true"),
    (keys(sapo_tau_neg=2.0), "actor.sapo_tau_neg 2.0", "use_sapo_loss: true"),
    (keys(recompute_logprob=False, prox_logp_method="loglinear"), "actor.prox_logp_method loglinear", "recompute_logprob: true"),
    (keys(kl_penalty_estimator="k1"), "actor.kl_penalty_estimator k1", "kl_penalty_coef above 0"),
    (keys(kl_loss_estimator="k2"), "actor.kl_loss_estimator k2", "kl_loss_coef above 0"),
    (keys(kl_loss_importance_corrected=True), "actor.kl_loss_importance_corrected True", "kl_loss_coef above 0"),
    (keys(loss_agg_constant=8.0), "actor.loss_agg_constant 8.0", "seq_mean_token_sum_norm"),
    (keys(use_decoupled_loss=True, correction=CorrectionConfig("tis")), "actor.use_decoupled_loss True", "is the weight"),
    (keys(kl_loss_coef=0.1, kl_loss_estimator="full", kl_loss_importance_corrected=True),
     "actor.kl_loss_importance_corrected True", "no weight"),
    (keys(value_loss_half=False), "actor.value_loss_half False", "credit: gae"),
    (keys(count_empty_rows=False), "actor.count_empty_rows False", "token_mean"),
    # ---- statistics
    (norm(mean_level=None, mean_leave1out=True), "actor.adv_norm.mean_leave1out True", "needs mean_level"),
    (norm(mean_level="ema", mean_leave1out=True), "actor.adv_norm.mean_leave1out True", "leaves nothing out"),
    (norm(std_level=None, eps=1.0), "actor.adv_norm.eps 1.0", "needs std_level"),
    (norm(std_level=None, eps_mode="inside_sqrt"), "actor.adv_norm.eps_mode inside_sqrt", "needs std_level"),
    (norm(std_level="ema", std_unbiased=False), "actor.adv_norm.std_unbiased False", "running variance"),
    (norm(std_of="raw"), "actor.adv_norm.std_of raw", "changes none"),
    (norm(mean_level=None, std_of="raw"), "actor.adv_norm.std_of raw", "changes none"),
    (norm(std_level="ema", std_of="raw"), "actor.adv_norm.std_of raw", "running variance"),
    (norm(ema=EmaConfig(beta=0.5)), "actor.adv_norm.ema", "mean_level or std_level: ema"),
    (norm(mean_level="ema", std_level="ema", singleton="raw"), "actor.adv_norm.singleton raw", "group or batch"),
    (norm(mean_level=None, std_level=None), "actor.adv_norm: neither", "does nothing"),
    (keys(reward_norm=NormConfig(std_level=None, eps=1.0)), "actor.reward_norm.eps 1.0", "needs std_level"),
    # ---- sections
    (keys(dynamic_sampling=DynamicSampling("mixed_rewards", correct_threshold=0.5)),
     "actor.dynamic_sampling.correct_threshold 0.5", "filter: mixed_outcomes"),
    (keys(correction=CorrectionConfig("tis", low=0.5)), "actor.correction.low 0.5", "icepop or mis"),
    (keys(correction=CorrectionConfig("tis", threshold=0.5)), "actor.correction.threshold 0.5", "opsm or m2po"),
    (keys(correction=CorrectionConfig("tis", action="mask")), "actor.correction.action mask", "kind: decoupled"),
    (keys(correction=CorrectionConfig("tis", denominator="kept")), "actor.correction.denominator kept", "masks nothing"),
    (keys(correction=CorrectionConfig("decoupled", action="mask")), "actor.correction.action mask", "needs high"),
    (keys(correction=CorrectionConfig("decoupled", high=2.0, denominator="kept")), "actor.correction.denominator kept",
     "masks nothing"),
    (keys(correction=CorrectionConfig("m2po", high=2.0)), "actor.correction.high 2.0", "threshold only"),
    (keys(correction=CorrectionConfig("opsm", level="token")), "actor.correction.level token", "threshold only"),
    (keys(eps_clip_rule=ClipRuleConfig(factor=2.0)), "actor.eps_clip_rule.factor 2.0", "type: clip_fraction"),
    (keys(**LOSS_KL, kl_controller=KlControllerConfig(window=9)), "actor.kl_controller.window 9", "type ziegler"),
    (keys(**LOSS_KL, kl_controller=KlControllerConfig("trend", horizon=9)), "actor.kl_controller.horizon 9", "type trend"),
    (keys(**LOSS_KL, kl_controller=KlControllerConfig("fixed", target=9.0)), "actor.kl_controller.target 9.0", "type fixed"),
    (keys(kl_penalty_coef=0.1, kl_controller=KlControllerConfig("penalty", factor=9.0)), "actor.kl_controller.factor 9.0",
     "type penalty"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "name", "why"), INACTIVE, ids=[f"{name}, {why}" for _, name, why in INACTIVE])
def test_a_changed_value_without_effect_names_the_missing_switch(case, name, why):
    (line,) = found(case).inactive
    assert line.startswith(name)
    assert why in line


ACTIVE = [
    keys(),
    keys(overlong_reward_penalty=True, overlong_tokens=16, overlong_penalty_factor=0.5),
    keys(credit="gae", gae_lambda=0.9, discount=0.9, bootstrap_truncated=True, value_eps_clip=0.2),
    keys(importance_sampling_level="none", recompute_logprob=False, kl_penalty_coef=0.1),
    keys(importance_sampling_level="none", prox_logp_method="loglinear", use_decoupled_loss=True),
    keys(eps_clip_rule=ClipRuleConfig(), eps_clip=0.1, eps_clip_higher=0.2),  # the two keep their proportion
    keys(eps_clip_rule=ClipRuleConfig("clip_fraction", factor=2.0), eps_clip=0.25),
    keys(correction=CorrectionConfig("decoupled", high=2.0, action="mask", denominator="kept")),
    keys(correction=CorrectionConfig("mis", level="sequence", low=0.1, high=9.0, denominator="kept")),
    norm(mean_level="group", std_level="batch", std_of="raw"),
    norm(mean_level="group", std_level="group", mean_leave1out=True, std_of="raw"),
    norm(mean_level="ema", std_level="group", singleton="raw", ema=EmaConfig(0.5)),
    keys(loss_agg_mode="seq_mean_token_sum_norm", loss_agg_constant=8.0, count_empty_rows=False),
]


@pytest.mark.parametrize("case", ACTIVE, ids=range(len(ACTIVE)))
def test_values_with_an_effect_are_not_listed(case):
    assert found(case).inactive == ()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_no_idle_key(name):
    assert found(keys_of(name)).inactive == ()


ADVICE = [
    (keys(reward_norm=GROUP, adv_norm=GROUP), ["actor.reward_norm", "actor.adv_norm", "both normalise"]),
    (keys(kl_loss_coef=0.1, kl_loss_estimator="k1"), ["kl_loss_estimator k1", "no gradient in expectation"]),
    (keys(kl_ctl=0.1, kl_estimator="k3"), ["kl_estimator k3", "only k1 is"]),
    (keys(kl_ctl=0.1, adv_norm=GROUP), ["actor.kl_ctl 0.1", "std_level group", "no fixed meaning"]),
    (keys(importance_sampling_level="sequence"), ["actor.eps_clip 0.2", "3e-4", "never clips"]),
    (keys(importance_sampling_level="sequence_token"), ["actor.eps_clip 0.2", "sequence_token"]),
    (keys(importance_sampling_level="sequence_product"), ["sequence_product", "a few dozen tokens"]),
    (
        keys(eps_clip_rule=ClipRuleConfig(), adv_norm=GROUP),
        ["eps_clip_rule.type iqr", "std_level group", "std_level null"],
    ),
    (keys(eps_clip_rule=ClipRuleConfig(), eps_clip=3e-4), ["actor.eps_clip_rule 0.1 to 0.3", "actor.eps_clip 0.0003"]),
    (keys(credit="gae", adv_norm=GROUP), ["actor.adv_norm of a group", "actor.credit gae", "credit: outcome"]),
    (keys(recompute_logprob=False), ["recompute_logprob false", "not 1 on the first step"]),
    (keys(adv_norm=NormConfig(unit="token", mean_leave1out=True)), ["mean_leave1out", "not RLOO"]),
    (keys(overlong_reward_penalty=True), ["overlong_penalty_factor 1.0", "rewards of 0 and 1"]),
    (
        keys(reward_threshold=0.5, dynamic_sampling=DynamicSampling()),
        ["reward_threshold 0.5", "correct_threshold 1", "right"],
    ),
    (
        keys(reward_threshold=0.5, dynamic_sampling=DynamicSampling("mixed_rewards")),
        ["reward_threshold 0.5", "mixed_outcomes"],
    ),
]


@pytest.mark.parametrize(("case", "words"), ADVICE, ids=[words[0] for _, words in ADVICE])
def test_advice_names_keys_and_says_why(case, words):
    (line,) = found(case).advice
    assert all(word in line for word in words)


@pytest.mark.parametrize(
    "case",
    [
        keys(), keys_of("gspo"), keys_of("reinforce"), keys_of("sapo_selfadaptive"),
        keys(importance_sampling_level="sequence", gate="soft"), keys(importance_sampling_level="sequence_product", gate="open"),
        keys(recompute_logprob=False, importance_sampling_level="none"), keys(kl_ctl=0.1),
        keys(importance_sampling_level="sequence", eps_clip_rule=ClipRuleConfig()),
        keys(reward_threshold=1.0, dynamic_sampling=DynamicSampling()), keys_of("rft"), keys_of("online_rft"),
    ],
    ids=range(12),
)  # fmt: skip
def test_no_advice_where_none_is_due(case):
    assert found(case).advice == ()


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (keys(), ["importance_sampling_level token", "actor.use_decoupled_loss=true", "algorithm=rft"]),
        (keys_of("gspo"), ["importance_sampling_level sequence"]),
        (keys(correction=CorrectionConfig("opsm")), ["importance_sampling_level token"]),  # it weighs nothing
        (keys_of("reinforce"), ["nothing weighs them", "pushed down ever further"]),
        (replace(keys_of("rft"), adv_norm=GROUP), ["nothing weighs them"]),
    ],
    ids=range(5),
)
def test_samples_of_the_starting_policy_are_not_the_policys_own(case, words):
    (line,) = of_starting_samples(case)
    assert all(word in line for word in ["rollout.policy starting", *words])


@pytest.mark.parametrize(
    "case",
    [
        keys_of("rft"), keys(use_decoupled_loss=True), keys(correction=CorrectionConfig("tis")), keys(recompute_logprob=False),
        replace(keys_of("reinforce"), correction=CorrectionConfig("decoupled")),
    ],
    ids=range(5),
)  # fmt: skip
def test_samples_of_the_starting_policy_are_right_for_what_weighs_them_or_likes_them_as_they_are(case):
    assert of_starting_samples(case) == ()


ASSUMED = [
    (keys_of("dapo"), "actor.overlong_tokens 12: a fifth of gconfig.max_new_tokens 64"),
    (keys_of("drgrpo"), "actor.loss_agg_constant 64: gconfig.max_new_tokens"),
    (keys(use_decoupled_loss=True), "behaviour weights above 5 are masked"),
    (
        keys(use_decoupled_loss=True, correction=CorrectionConfig("opsm", threshold=0.2)),
        "behaviour weights above 5 are masked",
    ),
    (keys(correction=CorrectionConfig("tis")), "actor.correction.high 2"),
    (keys(correction=CorrectionConfig("opsm")), "actor.correction.threshold 0.1"),
    (keys(correction=CorrectionConfig("m2po")), "actor.correction.threshold 0.04"),
    (keys(correction=CorrectionConfig("mis")), "ratios (geometric) inside 0.99 to 1.01"),
    (keys(correction=CorrectionConfig("icepop", low=0.2)), "ratios (token) inside 0.2 to 5"),
]


@pytest.mark.parametrize(("case", "words"), ASSUMED, ids=[words for _, words in ASSUMED])
def test_values_that_were_filled_in_are_told(case, words):
    (line,) = found(case).assumed
    assert words in line


def test_given_values_are_not_told():
    for case in (
        keys(), replace(keys_of("dapo"), overlong_tokens=4), replace(keys_of("drgrpo"), loss_agg_constant=8.0),
        keys(correction=CorrectionConfig("tis", high=3.0)), keys(correction=CorrectionConfig("decoupled")),
        keys(use_decoupled_loss=True, correction=CorrectionConfig("icepop", low=0.1, high=9.0)),
    ):  # fmt: skip
        assert found(case).assumed == ()
