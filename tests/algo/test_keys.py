"""Names, types and defaults of the keys that published configurations use, and what a section refuses by itself."""

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from partita.algo.gate import GATES
from partita.algo.keys import (
    AdaptiveEntropyConfig,
    AlgorithmKeys,
    BalanceConfig,
    ClipRuleConfig,
    CorrectionConfig,
    DynamicSampling,
    EmaConfig,
    KlControllerConfig,
    NormConfig,
)  # fmt: skip
from partita.algo.ratio import RATIOS
from partita.config import ConfigError, load_config
from partita.ops.divergence import ESTIMATORS


def test_defaults_of_the_actor_keys():
    keys = AlgorithmKeys()
    assert (keys.eps_clip, keys.eps_clip_higher, keys.c_clip, keys.gate) == (0.2, None, None, "min_clip")
    assert (keys.overlong_reward_penalty, keys.overlong_tokens, keys.overlong_penalty_factor) == (False, None, 1.0)
    assert (keys.importance_sampling_level, keys.loss_agg_mode) == ("token", "token_mean")
    assert (keys.use_sapo_loss, keys.sapo_tau_pos, keys.sapo_tau_neg) == (False, 1.0, 1.05)
    assert (keys.use_decoupled_loss, keys.recompute_logprob, keys.prox_logp_method) == (False, True, "recompute")
    assert (keys.credit, keys.discount, keys.gae_lambda, keys.value_eps_clip) == ("outcome", 1.0, 1.0, None)
    assert (keys.kl_ctl, keys.kl_estimator, keys.kl_loss_coef, keys.kl_loss_estimator) == (0.0, "k1", 0.0, "k3")
    assert (keys.kl_penalty_coef, keys.kl_penalty_estimator, keys.entropy_coef) == (0.0, "k3", 0.0)
    assert (keys.reward_bias, keys.reward_scaling, keys.reward_clip) == (0.0, 1.0, None)
    sections = (
        "reward_norm", "adv_norm", "dynamic_sampling", "balance", "correction", "eps_clip_rule", "kl_controller",
        "adaptive_entropy", "mixed_group_retry", "max_staleness", "reward_threshold",
    )  # fmt: skip
    assert all(getattr(keys, name) is None for name in sections)


def test_defaults_of_a_norm():
    norm = NormConfig()
    assert (norm.mean_level, norm.std_level, norm.mean_leave1out) == ("batch", "batch", False)
    assert (norm.std_unbiased, norm.eps, norm.group_size) == (True, 1e-5, None)
    assert (norm.unit, norm.eps_mode, norm.std_of, norm.singleton) == (None, "add", "centered", "zero")
    assert norm.ema == EmaConfig(0.9, "update_then_use", "first_batch")


def test_defaults_of_the_other_sections():
    assert DynamicSampling() == DynamicSampling("mixed_outcomes", 10, 1.0, 1.0, 1, "error")
    assert BalanceConfig() == BalanceConfig("reweight", 0.5)
    assert CorrectionConfig() == CorrectionConfig("tis", None, None, None, None, "clamp", "original")
    assert KlControllerConfig() == KlControllerConfig("ziegler", None, 10000)
    assert (ClipRuleConfig().type, ClipRuleConfig().min, ClipRuleConfig().max) == ("iqr", 0.1, 0.3)
    assert (AdaptiveEntropyConfig().target, AdaptiveEntropyConfig().delta) == (0.2, 0.005)


def test_every_part_that_has_a_name_is_a_choice():
    hints = get_type_hints(AlgorithmKeys)
    assert set(get_args(hints["importance_sampling_level"])) == set(RATIOS)
    assert set(get_args(hints["kl_loss_estimator"])) == set(ESTIMATORS) | {"full"}
    gate = next(item for item in fields(AlgorithmKeys) if item.name == "gate")
    with pytest.raises(ConfigError, match=", ".join(GATES)):
        load_config(AlgorithmKeys, overrides=["gate=hard"])
    assert gate.default in GATES


@pytest.mark.parametrize(
    "override",
    [
        "eps_clip=0", "eps_clip_higher=-0.1", "c_clip=1", "discount=0", "discount=1.1", "gae_lambda=1.1",
        "kl_ctl=-0.1", "kl_loss_coef=-0.1", "sapo_tau_pos=0", "loss_agg_constant=0", "reward_clip=0", "max_staleness=-1",
        "mixed_group_retry=0", "balance.positive_fraction=1", "adv_norm.eps=-1", "adv_norm.ema.beta=1",
        "dynamic_sampling.max_batches=0", "correction.high=0", "kl_controller.window=1", "eps_clip_rule.factor=1",
        "credit=critic", "adv_norm.mean_level=prompt", "correction.kind=vtrace", "kl_controller.type=pid",
    ],
)  # fmt: skip
def test_values_that_a_key_cannot_have(override):
    with pytest.raises(ConfigError, match=override.split("=")[0].replace(".", r"\.")):
        load_config(AlgorithmKeys, overrides=[override])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClipRuleConfig(min=0.4, max=0.3), ["min=0.4", "max=0.3"]),
        (lambda: ClipRuleConfig(up=0.01, down=0.01), ["down=0.01", "up=0.01"]),
        (lambda: KlControllerConfig(min=2.0, max=1.0), ["min=2.0", "max=1.0"]),
        (lambda: AdaptiveEntropyConfig(start=2.0), ["start=2.0", "max=1.0"]),
        (lambda: AdaptiveEntropyConfig(update_first=True, gate="previous_step"), ["update_first", "same_step"]),
    ],
)
def test_values_that_do_not_go_together_within_a_section(make, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        make()
    assert all(word in str(caught.value) for word in words)
