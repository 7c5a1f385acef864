"""The one place where configuration keys become parts.

Left out: formulas (in the parts) and judgement of the keys (in `review`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from partita.algo.algorithm import Algorithm
from partita.algo.balance import Balance, Downsample, Reweight
from partita.algo.center import Behaviour, ClipCenter, LogLinear, Recomputed
from partita.algo.conflicts import (
    DECOUPLED_CAP,
    MASKS_ONLY,
    correction_bounds,
    gate_of,
    kl_places,
    kl_target,
    overlong_window,
    refuse_conflicts,
    runs,
)
from partita.algo.control import Bounds, Controller
from partita.algo.controllers import AdaptiveEntropy, ClipFraction, EmaStatistics, IqrClip
from partita.algo.correct import Correct, DropDrifted, Inside, SecondMoment, Weighted
from partita.algo.credit import Credit, Gae, Outcome, ProcessRewards, RewardToGo
from partita.algo.gate import GATES, Gate, Open
from partita.algo.keep import Keep, KeepAll, MixedOutcomes, MixedRewards
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
    Truncation,
)  # fmt: skip
from partita.algo.kl_control import KlCoefficient, KlRule, PpoPenalty, Trend, Ziegler
from partita.algo.norm import Center, EmaCenter, EmaScale, Norm, Scale
from partita.algo.penalty import EntropyBonus, KlLoss, Penalty, StepKl
from partita.algo.ratio import RATIOS
from partita.algo.reduce import PromptTokenMean, Reduce, SeqMeanTokenMean, SeqMeanTokenSum, TokenMean
from partita.algo.rows import RowRule, Stale, Truncated
from partita.algo.shape import Bias, Clip, Factor, KlInReward, Overlong, PartsNorm, RewardNorm, Right, Shape
from partita.algo.value import ClippedSquare
from partita.ops.divergence import ESTIMATORS

TRUNCATION: dict[Truncation, tuple[RowRule, ...]] = {
    "none": (),
    "mask_loss": (Truncated(in_loss=False),),
    "adv_mask_before": (Truncated(in_statistics=False, has_advantage=False),),
    "adv_mask_after": (Truncated(has_advantage=False),),
}


def compose(
    keys: AlgorithmKeys, *, n_samples: int, max_new_tokens: int, part_weights: tuple[float, ...] = ()
) -> Algorithm:
    """Build an algorithm. `n_samples` per prompt and `max_new_tokens` per sample are those of `gconfig`; `part_weights`
    are the weights of the reward functions, in the order of the batch's reward parts.

    Raises ValueError where mechanisms exclude each other, one line for each pair with both keys and values.
    """
    refuse_conflicts(keys, n_samples, max_new_tokens)
    statistics = None if keys.adv_norm is None else _norm(keys.adv_norm, varies=keys.credit != "outcome")
    of_steps = keys.credit == "process"  # whose statistics run over steps, before they are summed
    return Algorithm(
        keep=_keep(keys.dynamic_sampling),
        shape=_shape(keys, max_new_tokens, part_weights),
        assign=ProcessRewards(statistics) if of_steps else _credit(keys),
        norm=None if of_steps else statistics,
        rows=_rows(keys),
        balance=_balance(keys.balance),
        correct=_corrections(keys),
        center=_center(keys),
        reduce=_reduce(keys, max_new_tokens),
        ratio=RATIOS[keys.importance_sampling_level],
        gate=_gate(keys),
        penalties=_penalties(keys),
        value=ClippedSquare(keys.value_eps_clip, keys.value_loss_half) if keys.credit == "gae" else None,
    )


def controllers(keys: AlgorithmKeys) -> tuple[Controller, ...]:
    """The adaptive rules that the keys ask for, in the order in which they are applied."""
    found: list[Controller] = []
    if keys.reward_norm is not None and runs(keys.reward_norm):
        found.append(_running("reward_norm", keys.reward_norm.ema))
    if keys.adv_norm is not None and runs(keys.adv_norm):
        found.append(_running("adv_norm", keys.adv_norm.ema))
    if keys.eps_clip_rule is not None:
        found.append(_clip_rule(keys.eps_clip, keys.eps_clip_rule))
    if keys.kl_controller is not None and keys.kl_controller.type != "fixed":
        found.append(_kl_rule(keys, keys.kl_controller))
    if keys.adaptive_entropy is not None:
        found.append(_entropy_rule(keys.adaptive_entropy))
    return tuple(found)


def _running(place: Literal["adv_norm", "reward_norm"], ema: EmaConfig) -> EmaStatistics:
    return EmaStatistics(place, ema.beta, ema.order == "update_then_use", ema.init == "bias_corrected")


def _clip_rule(eps_clip: float, rule: ClipRuleConfig) -> Controller:
    bounds = Bounds(rule.min, rule.max)
    if rule.type == "iqr":
        return IqrClip(bounds, rule.reference or 0.0)
    return ClipFraction(eps_clip, bounds, rule.up, rule.down, rule.factor)


def _kl_rule(keys: AlgorithmKeys, rule: KlControllerConfig) -> Controller:
    [where] = kl_places(keys, rule.type)
    place, start, target = where.place, where.coef, kl_target(rule)
    if rule.type == "ziegler":
        return KlCoefficient(place, start, Ziegler(target, rule.horizon))
    follows: KlRule = (
        PpoPenalty(target)
        if rule.type == "penalty"
        else Trend(rule.window, rule.kl_slope, rule.reward_slope, rule.factor)
    )
    return KlCoefficient(place, start, follows, Bounds(rule.min, rule.max))


def _entropy_rule(rule: AdaptiveEntropyConfig) -> Controller:
    same_step, bounds = rule.gate == "same_step", Bounds(rule.min, rule.max)
    return AdaptiveEntropy(
        rule.target, rule.delta, rule.decrease, same_step, rule.update_first, rule.strict, rule.start, bounds
    )


def _keep(sampling: DynamicSampling | None) -> Keep:
    if sampling is None:
        return KeepAll()
    if sampling.filter == "mixed_rewards":
        return MixedRewards(sampling.max_batches)
    return MixedOutcomes(sampling.max_batches, sampling.correct_threshold)


def _shape(keys: AlgorithmKeys, max_new_tokens: int, part_weights: tuple[float, ...]) -> tuple[Shape, ...]:
    parts: list[
        Shape
    ] = []  # in this order: a bias after the scale, or a KL before the statistics, is another algorithm
    norm = None if keys.reward_norm is None else _norm(keys.reward_norm, varies=False)
    if norm is not None and keys.reward_norm_per_part:
        parts.append(PartsNorm(norm, part_weights))
    if keys.reward_threshold is not None:
        parts.append(Right(keys.reward_threshold))
    if keys.overlong_reward_penalty:
        window = overlong_window(keys, max_new_tokens)
        parts.append(Overlong(max_new_tokens, window, keys.overlong_penalty_factor))
    if keys.reward_bias != 0:
        parts.append(Bias(keys.reward_bias))
    if keys.reward_scaling != 1:
        parts.append(Factor(keys.reward_scaling))
    if keys.reward_clip is not None:
        parts.append(Clip(keys.reward_clip))
    if norm is not None and not keys.reward_norm_per_part:
        parts.append(RewardNorm(norm))
    if keys.kl_ctl > 0:
        parts.append(KlInReward(keys.kl_ctl, None if keys.kl_estimator == "full" else ESTIMATORS[keys.kl_estimator]))
    return tuple(parts)


def _credit(keys: AlgorithmKeys) -> Credit:
    if keys.credit == "gae":
        return Gae(keys.discount, keys.gae_lambda, keys.bootstrap_truncated)
    return RewardToGo(keys.discount) if keys.credit == "reward_to_go" else Outcome()


def _norm(norm: NormConfig, *, varies: bool) -> Norm:
    # a group of one has no baseline and may keep its value; a whole batch of one always gives 0
    single, inside = norm.singleton == "raw", norm.eps_mode == "inside_sqrt"
    center = scale = None
    if norm.mean_level == "ema":
        center = EmaCenter()
    elif norm.mean_level is not None:
        per_group = norm.mean_level == "group"
        center = Center(per_group, norm.mean_leave1out, single and per_group)
    if norm.std_level == "ema":
        scale = EmaScale(eps=norm.eps, eps_inside=inside)
    elif norm.std_level is not None:
        per_group, raw = norm.std_level == "group", norm.std_of == "raw"
        scale = Scale(per_group, norm.std_unbiased, norm.eps, inside, raw, single and per_group)
    return Norm(center, scale, per_token=varies if norm.unit is None else norm.unit == "token")


def _rows(keys: AlgorithmKeys) -> tuple[RowRule, ...]:
    stale = () if keys.max_staleness is None else (Stale(keys.max_staleness),)
    return (*TRUNCATION[keys.truncation], *stale)


def _balance(balance: BalanceConfig | None) -> Balance | None:
    if balance is None:
        return None
    fraction = balance.positive_fraction
    return Reweight(fraction) if balance.mode == "reweight" else Downsample(fraction)


def _center(keys: AlgorithmKeys) -> ClipCenter:
    if not keys.recompute_logprob:
        return Behaviour()
    return LogLinear() if keys.prox_logp_method == "loglinear" else Recomputed()


def _corrections(keys: AlgorithmKeys) -> tuple[Correct, ...]:
    named = keys.correction
    weighs = named is not None and named.kind not in MASKS_ONLY
    decoupled = (Weighted(DECOUPLED_CAP, mask=True),) if keys.use_decoupled_loss and not weighs else ()
    return decoupled if named is None else (*decoupled, _correction(named))


def _correction(named: CorrectionConfig) -> Correct:
    kept = named.denominator == "kept"
    bounds = correction_bounds(named)
    if named.kind == "opsm":
        return DropDrifted(bounds.threshold, kept)
    if named.kind == "m2po":
        return SecondMoment(bounds.threshold, kept)
    if named.kind in ("icepop", "mis"):
        return Inside(bounds.level, bounds.low, bounds.high, kept)
    mask = named.kind == "decoupled" and named.action == "mask"
    return Weighted(bounds.cap, mask, named.level == "sequence", kept)


def _reduce(keys: AlgorithmKeys, max_new_tokens: int) -> Reduce:
    empty = keys.count_empty_rows
    if keys.loss_agg_mode == "seq_mean_token_mean":
        return SeqMeanTokenMean(empty)
    if keys.loss_agg_mode == "seq_mean_token_sum":
        return SeqMeanTokenSum(count_empty=empty)
    if keys.loss_agg_mode == "seq_mean_token_sum_norm":
        return SeqMeanTokenSum(keys.loss_agg_constant or float(max_new_tokens), empty)
    return PromptTokenMean(empty) if keys.loss_agg_mode == "prompt_token_mean" else TokenMean()


def _gate(keys: AlgorithmKeys) -> Gate:
    """The named gate, its fields filled by name: a new gate needs no line here."""
    if keys.importance_sampling_level == "none":
        return Open()
    kind = GATES[gate_of(keys)]
    values = {
        "low": keys.eps_clip,
        "high": keys.eps_clip if keys.eps_clip_higher is None else keys.eps_clip_higher,
        "dual": keys.c_clip,
        "tau_pos": keys.sapo_tau_pos,
        "tau_neg": keys.sapo_tau_neg,
    }
    return kind(**{item.name: values[item.name] for item in fields(kind)})


def _penalties(keys: AlgorithmKeys) -> tuple[Penalty, ...]:
    parts: list[Penalty] = []
    if keys.kl_penalty_coef > 0:
        estimator = None if keys.kl_penalty_estimator == "full" else ESTIMATORS[keys.kl_penalty_estimator]
        ruled = keys.kl_controller is not None and keys.kl_controller.type == "penalty"
        parts.append(StepKl(keys.kl_penalty_coef, estimator, measured_after=ruled))
    if keys.kl_loss_coef > 0:
        estimator = None if keys.kl_loss_estimator == "full" else ESTIMATORS[keys.kl_loss_estimator]
        corrected = keys.kl_loss_importance_corrected and estimator is not None  # the others are exact at any token
        parts.append(KlLoss(keys.kl_loss_coef, estimator, corrected))
    if keys.adaptive_entropy is not None:
        parts.append(EntropyBonus(keys.adaptive_entropy.start, keys.adaptive_entropy.gate == "same_step"))
    elif keys.entropy_coef != 0:
        parts.append(EntropyBonus(keys.entropy_coef))
    return tuple(parts)
