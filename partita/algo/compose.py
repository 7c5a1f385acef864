"""The one place where configuration keys become parts.

Left out: formulas (in the parts) and judgement of the keys (in `review`).
"""

from __future__ import annotations

from partita.algo.algorithm import Algorithm
from partita.algo.credit import Credit, Outcome, RewardToGo
from partita.algo.gate import Gate, MinClip, Open
from partita.algo.keep import Keep, KeepAll, MixedOutcomes, MixedRewards
from partita.algo.keys import AlgorithmKeys, DynamicSampling, NormConfig, Truncation
from partita.algo.norm import Center, Norm, Scale
from partita.algo.penalty import EntropyBonus, KlLoss, Penalty
from partita.algo.ratio import NoRatio, Ratio, TokenRatio
from partita.algo.reduce import PromptTokenMean, Reduce, SeqMeanTokenMean, SeqMeanTokenSum, TokenMean
from partita.algo.review import overlong_window, refuse_conflicts
from partita.algo.rows import RowRule, Truncated
from partita.algo.shape import Bias, Clip, Factor, KlInReward, Overlong, RewardNorm, Shape
from partita.ops.divergence import ESTIMATORS

TRUNCATION: dict[Truncation, tuple[RowRule, ...]] = {
    "none": (),
    "mask_loss": (Truncated(in_loss=False),),
    "adv_mask_before": (Truncated(in_statistics=False, has_advantage=False),),
    "adv_mask_after": (Truncated(has_advantage=False),),
}


def compose(keys: AlgorithmKeys, *, n_samples: int, max_new_tokens: int) -> Algorithm:
    """Build an algorithm. `n_samples` per prompt and `max_new_tokens` per sample are those of `gconfig`.

    Raises ValueError where mechanisms exclude each other, one line for each pair with both keys and values.
    """
    refuse_conflicts(keys, n_samples, max_new_tokens)
    return Algorithm(
        keep=_keep(keys.dynamic_sampling),
        shape=_shape(keys, max_new_tokens),
        assign=_credit(keys),
        norm=None if keys.adv_norm is None else _norm(keys.adv_norm, varies=keys.credit != "outcome"),
        rows=TRUNCATION[keys.truncation],
        reduce=_reduce(keys, max_new_tokens),
        ratio=_ratio(keys),
        gate=_gate(keys),
        penalties=_penalties(keys),
    )


def _keep(sampling: DynamicSampling | None) -> Keep:
    if sampling is None:
        return KeepAll()
    if sampling.filter == "mixed_rewards":
        return MixedRewards(sampling.max_batches)
    return MixedOutcomes(sampling.max_batches, sampling.correct_threshold)


def _shape(keys: AlgorithmKeys, max_new_tokens: int) -> tuple[Shape, ...]:
    parts: list[
        Shape
    ] = []  # in this order: a bias after the scale, or a KL before the statistics, is another algorithm
    if keys.overlong_reward_penalty:
        window = overlong_window(keys, max_new_tokens)
        parts.append(Overlong(max_new_tokens, window, keys.overlong_penalty_factor))
    if keys.reward_bias != 0:
        parts.append(Bias(keys.reward_bias))
    if keys.reward_scaling != 1:
        parts.append(Factor(keys.reward_scaling))
    if keys.reward_clip is not None:
        parts.append(Clip(keys.reward_clip))
    if keys.reward_norm is not None:
        parts.append(RewardNorm(_norm(keys.reward_norm, varies=False)))
    if keys.kl_ctl > 0:
        parts.append(KlInReward(keys.kl_ctl, ESTIMATORS[keys.kl_estimator]))
    return tuple(parts)


def _credit(keys: AlgorithmKeys) -> Credit:
    return RewardToGo(keys.discount) if keys.credit == "reward_to_go" else Outcome()


def _norm(norm: NormConfig, *, varies: bool) -> Norm:
    keep_single = norm.singleton == "raw"
    center = scale = None
    if norm.mean_level is not None:
        center = Center(norm.mean_level == "group", norm.mean_leave1out, keep_single)
    if norm.std_level is not None:
        scale = Scale(
            per_group=norm.std_level == "group",
            unbiased=norm.std_unbiased,
            eps=norm.eps,
            eps_inside=norm.eps_mode == "inside_sqrt",
            of_raw=norm.std_of == "raw",
            keep_single=keep_single,
        )
    return Norm(center, scale, per_token=varies if norm.unit is None else norm.unit == "token")


def _reduce(keys: AlgorithmKeys, max_new_tokens: int) -> Reduce:
    empty = keys.count_empty_rows
    if keys.loss_agg_mode == "seq_mean_token_mean":
        return SeqMeanTokenMean(empty)
    if keys.loss_agg_mode == "seq_mean_token_sum":
        return SeqMeanTokenSum(count_empty=empty)
    if keys.loss_agg_mode == "seq_mean_token_sum_norm":
        return SeqMeanTokenSum(keys.loss_agg_constant or float(max_new_tokens), empty)
    return PromptTokenMean(empty) if keys.loss_agg_mode == "prompt_token_mean" else TokenMean()


def _ratio(keys: AlgorithmKeys) -> Ratio:
    return TokenRatio() if keys.importance_sampling_level == "token" else NoRatio()


def _gate(keys: AlgorithmKeys) -> Gate:
    if keys.importance_sampling_level == "none":
        return Open()
    high = keys.eps_clip if keys.eps_clip_higher is None else keys.eps_clip_higher
    return MinClip(keys.eps_clip, high, keys.c_clip)


def _penalties(keys: AlgorithmKeys) -> tuple[Penalty, ...]:
    parts: list[Penalty] = []
    if keys.kl_loss_coef > 0:
        parts.append(KlLoss(keys.kl_loss_coef, ESTIMATORS[keys.kl_loss_estimator]))
    if keys.entropy_coef != 0:
        parts.append(EntropyBonus(keys.entropy_coef))
    return tuple(parts)
