"""From keys to parts: which part each key puts where, in which order, and which rules run.

What is refused stands in `test_conflicts`, what is idle in `test_review`, and that every option acts in `test_options`.
"""

from dataclasses import replace

import pytest

from partita.algo.balance import Downsample, Reweight
from partita.algo.center import Behaviour, LogLinear, Recomputed
from partita.algo.compose import compose, controllers
from partita.algo.control import Bounds
from partita.algo.controllers import AdaptiveEntropy, ClipFraction, EmaStatistics, IqrClip
from partita.algo.correct import DropDrifted, Inside, SecondMoment, Weighted
from partita.algo.credit import Gae, Outcome, ProcessRewards, RewardToGo
from partita.algo.gate import BandClip, Cispo, MinClip, Open, Soft
from partita.algo.keep import KeepAll, MixedOutcomes, MixedRewards
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
from partita.algo.kl_control import KlCoefficient, PpoPenalty, Trend, Ziegler
from partita.algo.norm import Center, EmaCenter, EmaScale, Norm, Scale
from partita.algo.penalty import EntropyBonus, KlLoss, StepKl
from partita.algo.ratio import RATIOS, TokenRatio
from partita.algo.reduce import PromptTokenMean, SeqMeanTokenMean, SeqMeanTokenSum, TokenMean
from partita.algo.rows import Stale, Truncated
from partita.algo.shape import Bias, Clip, Factor, KlInReward, Overlong, PartsNorm, RewardNorm, Right
from partita.algo.value import ClippedSquare
from partita.ops.divergence import k1, k2, k3, k3_value_k2_grad

GROUP = NormConfig(mean_level="group", std_level=None)
CENTRED = Norm(Center(per_group=True), None)


def composed(**values):
    return compose(AlgorithmKeys(**values), n_samples=4, max_new_tokens=64, part_weights=(1.0, 2.0))


def correction(*values, **named):
    return composed(correction=CorrectionConfig(*values, **named)).correct


SLOTS = [
    ("keep", {}, KeepAll()),
    ("keep", {"dynamic_sampling": DynamicSampling(max_batches=3)}, MixedOutcomes(3)),
    ("keep", {"dynamic_sampling": DynamicSampling("mixed_rewards")}, MixedRewards(10)),
    ("shape", {}, ()),
    ("shape", {"reward_threshold": 0.5, "reward_bias": 1.0}, (Right(0.5), Bias(1.0))),
    ("assign", {}, Outcome()),
    ("assign", {"credit": "reward_to_go", "discount": 0.9}, RewardToGo(0.9)),
    ("assign", {"credit": "gae", "discount": 0.9, "gae_lambda": 0.8, "bootstrap_truncated": True}, Gae(0.9, 0.8, True)),
    ("assign", {"credit": "process", "adv_norm": GROUP}, ProcessRewards(Norm(Center(True), None, per_token=True))),
    ("assign", {"credit": "process"}, ProcessRewards(None)),
    ("norm", {}, None),
    ("norm", {"adv_norm": GROUP}, CENTRED),
    ("norm", {"adv_norm": GROUP, "credit": "process"}, None),  # its statistics are of steps, inside the credit
    ("norm", {"adv_norm": GROUP, "credit": "gae"}, Norm(Center(True), None, per_token=True)),
    ("norm", {"adv_norm": replace(GROUP, unit="token")}, Norm(Center(True), None, per_token=True)),
    ("norm", {"adv_norm": replace(GROUP, mean_leave1out=True, singleton="raw")}, Norm(Center(True, True, True), None)),
    ("norm", {"adv_norm": NormConfig(None, "group", False, False, 0.1, None, None, "inside_sqrt", "raw", "raw")},
     Norm(None, Scale(True, False, 0.1, True, True, True))),
    ("norm", {"adv_norm": NormConfig("ema", "ema", eps=0.1, eps_mode="inside_sqrt")},
     Norm(EmaCenter(), EmaScale(None, 0.1, True))),
    ("rows", {}, ()),
    ("rows", {"truncation": "mask_loss", "max_staleness": 2}, (Truncated(in_loss=False), Stale(2))),
    ("rows", {"truncation": "adv_mask_before"}, (Truncated(in_statistics=False, has_advantage=False),)),
    ("rows", {"truncation": "adv_mask_after"}, (Truncated(has_advantage=False),)),
    ("balance", {}, None),
    ("balance", {"balance": BalanceConfig(positive_fraction=0.3)}, Reweight(0.3)),
    ("balance", {"balance": BalanceConfig("downsample")}, Downsample(0.5)),
    ("center", {}, Recomputed()),
    ("center", {"recompute_logprob": False}, Behaviour()),
    ("center", {"prox_logp_method": "loglinear"}, LogLinear()),
    ("reduce", {}, TokenMean()),
    ("reduce", {"loss_agg_mode": "seq_mean_token_mean", "count_empty_rows": False}, SeqMeanTokenMean(False)),
    ("reduce", {"loss_agg_mode": "seq_mean_token_sum"}, SeqMeanTokenSum()),
    ("reduce", {"loss_agg_mode": "seq_mean_token_sum_norm"}, SeqMeanTokenSum(64.0)),
    ("reduce", {"loss_agg_mode": "seq_mean_token_sum_norm", "loss_agg_constant": 8.0}, SeqMeanTokenSum(8.0)),
    ("reduce", {"loss_agg_mode": "prompt_token_mean"}, PromptTokenMean()),
    *[("ratio", {"importance_sampling_level": level}, ratio) for level, ratio in RATIOS.items()],
    ("gate", {}, MinClip(0.2, 0.2)),
    ("gate", {"eps_clip": 0.1, "eps_clip_higher": 0.3, "c_clip": 3.0}, MinClip(0.1, 0.3, 3.0)),
    ("gate", {"gate": "clip_without_min", "eps_clip_higher": 0.3}, BandClip(0.2, 0.3)),
    ("gate", {"gate": "cispo"}, Cispo(0.2, 0.2)),
    ("gate", {"gate": "open"}, Open()),
    ("gate", {"gate": "soft", "sapo_tau_neg": 2.0}, Soft(1.0, 2.0)),
    ("gate", {"use_sapo_loss": True}, Soft(1.0, 1.05)),
    ("gate", {"importance_sampling_level": "none"}, Open()),
    ("penalties", {}, ()),
    ("penalties", {"kl_penalty_coef": 0.1, "kl_loss_coef": 0.2, "entropy_coef": 0.3},
     (StepKl(0.1, k3), KlLoss(0.2, k3), EntropyBonus(0.3))),
    ("penalties", {"kl_penalty_coef": 0.1, "kl_penalty_estimator": "full"}, (StepKl(0.1, None),)),
    ("penalties", {"kl_loss_coef": 0.1, "kl_loss_estimator": "full", "kl_loss_importance_corrected": True},
     (KlLoss(0.1, None),)),  # exact at any token, whoever sampled it
    ("penalties", {"kl_loss_coef": 0.1, "kl_loss_importance_corrected": True}, (KlLoss(0.1, k3, True),)),
    ("penalties", {"kl_penalty_coef": 0.1, "kl_controller": KlControllerConfig("penalty")},
     (StepKl(0.1, k3, measured_after=True),)),
    ("penalties", {"kl_loss_coef": 0.1, "kl_loss_estimator": "k3_value_k2_grad"}, (KlLoss(0.1, k3_value_k2_grad),)),
    ("penalties", {"adaptive_entropy": AdaptiveEntropyConfig(start=0.1)}, (EntropyBonus(0.1, measured_before=True),)),
    ("penalties", {"adaptive_entropy": AdaptiveEntropyConfig(gate="previous_step")}, (EntropyBonus(0.0),)),
    ("value", {}, None),
    ("value", {"credit": "gae", "value_eps_clip": 0.2}, ClippedSquare(0.2)),
    ("value", {"credit": "gae"}, ClippedSquare(None)),
]  # fmt: skip


@pytest.mark.parametrize(("slot", "values", "part"), SLOTS, ids=[f"{slot} {values}" for slot, values, _ in SLOTS])
def test_which_part_a_key_puts_where(slot, values, part):
    assert getattr(composed(**values), slot) == part


def test_shaping_is_in_one_order_whatever_the_order_of_the_keys():
    shaping = {"kl_ctl": 0.1, "kl_estimator": "k2", "reward_norm": GROUP, "reward_clip": 3.0, "reward_scaling": 2.0,
               "reward_bias": 1.0, "overlong_tokens": 8, "overlong_penalty_factor": 0.5,
               "overlong_reward_penalty": True}  # fmt: skip
    after = (Overlong(64, 8, 0.5), Bias(1.0), Factor(2.0), Clip(3.0))
    assert composed(**shaping).shape == (*after, RewardNorm(CENTRED), KlInReward(0.1, k2))
    each = composed(**shaping, reward_norm_per_part=True)
    assert each.shape == (PartsNorm(CENTRED, (1.0, 2.0)), *after, KlInReward(0.1, k2))
    assert composed(kl_ctl=0.1).shape == (KlInReward(0.1, k1),)


@pytest.mark.parametrize(
    ("named", "part"),
    [
        (("decoupled",), Weighted(None)),
        (("decoupled", "sequence", None, 3.0, None, "mask", "kept"), Weighted(3.0, True, True, True)),
        (("tis",), Weighted(2.0)),
        (("tis", "sequence", None, 3.0), Weighted(3.0, False, True)),
        (("icepop",), Inside("token", 0.5, 5.0)),
        (("mis",), Inside("geometric", 0.99, 1.01)),
        (("mis", "sequence", 0.4), Inside("sequence", 0.4, 2.0)),
        (("opsm",), DropDrifted(0.1)),
        (("m2po", None, None, None, 0.5, "clamp", "kept"), SecondMoment(0.5, True)),
    ],
    ids=str,
)
def test_corrections(named, part):
    assert correction(*named) == (part,)


def test_the_decoupled_switch_beside_a_correction():
    capped = Weighted(5.0, mask=True)
    assert composed(use_decoupled_loss=True).correct == (capped,)
    for kind, beside in (
        ("opsm", True),
        ("m2po", True),
        ("tis", False),
        ("decoupled", False),
        ("icepop", False),
        ("mis", False),
    ):
        found = composed(use_decoupled_loss=True, correction=CorrectionConfig(kind)).correct
        assert found == ((capped, *correction(kind)) if beside else correction(kind))


def test_fixed_values_need_no_rule():
    assert controllers(AlgorithmKeys()) == ()
    assert composed().ratio == TokenRatio()


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"adv_norm": NormConfig("ema", ema=EmaConfig(0.5, "use_then_update", "bias_corrected"))},
         EmaStatistics("adv_norm", 0.5, False, True)),
        ({"reward_norm": NormConfig(std_level="ema")}, EmaStatistics("reward_norm", 0.9, True, False)),
        ({"eps_clip_rule": ClipRuleConfig(min=0.05)}, IqrClip(Bounds(0.05, 0.3))),
        ({"eps_clip": 0.15, "eps_clip_rule": ClipRuleConfig("clip_fraction", up=0.2, down=0.1, factor=2.0)},
         ClipFraction(0.15, Bounds(0.1, 0.3), 0.2, 0.1, 2.0)),
        ({"kl_ctl": 0.2, "kl_controller": KlControllerConfig(target=3.0, horizon=9)},
         KlCoefficient("reward", 0.2, Ziegler(3.0, 9))),
        ({"kl_loss_coef": 0.2, "kl_controller": KlControllerConfig()}, KlCoefficient("loss", 0.2, Ziegler())),
        ({"kl_penalty_coef": 0.2, "kl_controller": KlControllerConfig("penalty", target=0.01, max=9.0)},
         KlCoefficient("step", 0.2, PpoPenalty(0.01), Bounds(1e-5, 9.0))),
        *[({key: 0.2, "kl_controller": KlControllerConfig("trend", window=3)},
           KlCoefficient(place, 0.2, Trend(window=3), Bounds(1e-5, 100.0)))
          for key, place in (("kl_ctl", "reward"), ("kl_loss_coef", "loss"), ("kl_penalty_coef", "step"))],
        ({"adaptive_entropy": AdaptiveEntropyConfig(0.3, 0.01, False, "same_step", True, True, 0.0, 0.5, 0.1)},
         AdaptiveEntropy(0.3, 0.01, False, True, True, True, 0.1, Bounds(0.0, 0.5))),
    ],
)  # fmt: skip
def test_rules_and_the_parts_they_set(values, rule):
    assert controllers(AlgorithmKeys(**values)) == (rule,)
    rule.apply(composed(**values))


def test_rules_come_in_one_order():
    keys = AlgorithmKeys(
        adv_norm=NormConfig("ema"), eps_clip_rule=ClipRuleConfig(), kl_loss_coef=0.1, kl_controller=KlControllerConfig(),
        adaptive_entropy=AdaptiveEntropyConfig(),
    )  # fmt: skip
    assert [rule.name for rule in controllers(keys)] == ["ema_adv_norm", "eps_clip", "kl_loss", "entropy"]
