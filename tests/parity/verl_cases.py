"""The cases against verl 0.9.1."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Any

from parity.cases import Absent, Case, Difference, Text
from parity.ragged import Draw, Hand

Keys = Mapping[str, Any]
CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
OUR_CLIP = {"eps_clip": 0.2, "eps_clip_higher": 0.28}
DUAL, OUR_DUAL = CLIP | {"clip_ratio_c": 1.5}, OUR_CLIP | {"c_clip": 1.5}
TIGHT, OUR_TIGHT = {"clip_ratio_low": 0.05, "clip_ratio_high": 0.06}, {"eps_clip": 0.05, "eps_clip_higher": 0.06}
RAGGED, PER_TOKEN = Draw(), Draw(per_token=True)
AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum": "seq_mean_token_sum",
    "seq-mean-token-sum-norm": "seq_mean_token_sum_norm",
}
FIXED = 10  # a constant length that is neither the width of the rows nor our `max_new_tokens`
GROUP = {"mean_level": "group", "std_level": "group", "eps": 1e-6, "singleton": "raw"}
WHITEN = {"mean_level": "batch", "std_level": "batch", "eps": 1e-8, "eps_mode": "inside_sqrt", "unit": "token"}


def constant(name: str) -> tuple[Keys, Keys]:
    """An aggregation in verl's words and in ours, with its constant where it has one."""
    theirs: dict[str, Any] = {"loss_agg_mode": name}
    ours: dict[str, Any] = {"loss_agg_mode": AGGREGATIONS[name]}
    if name == "seq-mean-token-sum-norm":
        theirs["loss_scale_factor"], ours["loss_agg_constant"] = FIXED, float(FIXED)
    return theirs, ours


def loss(en: str, zh: str, setting: Keys, keys: Keys, like: Draw | Hand = PER_TOKEN, **more: Any) -> Case:
    """A policy loss."""
    return Case(Text(en, zh), "loss", "verl", "policy_loss", setting, keys, like=like, **more)


LOSSES = (
    *(
        loss(
            f"PPO with clip-higher and dual clip, {name}", f"PPO，clip-higher 加双重裁剪，{name}",
            {"loss_mode": "vanilla", **constant(name)[0], **DUAL}, {**constant(name)[1], **OUR_DUAL},
        )
        for name in AGGREGATIONS
    ),
    *(
        loss(
            f"GSPO, {theirs}", f"GSPO，{theirs}", {"loss_mode": "gspo", "loss_agg_mode": theirs, **TIGHT},
            {"importance_sampling_level": "sequence", "loss_agg_mode": AGGREGATIONS[theirs], **OUR_TIGHT}, Draw(),
        )
        for theirs in ("seq-mean-token-mean", "token-mean")
    ),
    loss(
        "GSPO-token, advantages that vary along a row", "GSPO-token，优势沿序列变化",
        {"loss_mode": "gspo", "loss_agg_mode": "seq-mean-token-mean", **TIGHT},
        {"importance_sampling_level": "sequence_token", "loss_agg_mode": "seq_mean_token_mean", **OUR_TIGHT},
    ),
    loss(
        "SAPO", "SAPO", {"loss_mode": "sapo", "tau_pos": 1.0, "tau_neg": 1.05},
        {"gate": "soft", "sapo_tau_pos": 1.0, "sapo_tau_neg": 1.05, "loss_agg_mode": "seq_mean_token_mean"},
    ),
    loss(
        "a log-ratio of 100, A > 0", "对数比率为 100，A > 0", {"loss_mode": "vanilla", **CLIP}, OUR_CLIP,
        Hand(lengths=(1, 1), ratio=(exp(100.0), 1.0)),
    ),
    loss("CISPO", "CISPO", {"loss_mode": "cispo", **CLIP}, {"gate": "cispo", **OUR_CLIP}),
    loss(
        "GMPO, its range in nats", "GMPO，区间以 nat 计", {"loss_mode": "geo_mean", **CLIP},
        {"gate": "gmpo", "loss_agg_mode": "seq_mean_token_mean", "eps_clip": 1 - exp(-CLIP["clip_ratio_low"]),
         "eps_clip_higher": exp(CLIP["clip_ratio_high"]) - 1}, Draw(),
    ),
    loss("REINFORCE (`gpg`)", "REINFORCE（`gpg`）", {"loss_mode": "gpg"}, {"importance_sampling_level": "none"}),
    loss(
        "DRO: REINFORCE with a squared log-ratio", "DRO：REINFORCE 加对数比率的平方",
        {"loss_mode": "dro", "dro_beta": 0.3},
        {"importance_sampling_level": "none", "kl_penalty_coef": 0.3, "kl_penalty_estimator": "k2"},
    ),
    *(
        loss(
            f"PPO with a KL loss, {theirs}", f"PPO 加 KL 损失，{theirs}",
            {"loss_mode": "vanilla", "use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": theirs, **DUAL},
            {"kl_loss_coef": 0.3, "kl_loss_estimator": ours, **OUR_DUAL},
        )
        for theirs, ours in (("low_var_kl", "k3"), ("k2", "k2"), ("k3+", "k3_value_k2_grad"))
    ),
)  # fmt: skip


def aggregation(name: str, alone: bool) -> Case:
    """`agg_loss` with a row that has no trained tokens, by itself or told the step's counts."""
    theirs, ours = constant(name)
    if not alone:
        what = Text(f"{name}, told the step's counts", f"{name}，给出该步的计数")
        return Case(what, "aggregation", "verl", "agg_loss", theirs, ours, "aggregation", Draw(empty=True))
    what = Text(f"{name}, called alone", f"{name}，单独调用")
    counted = {} if name == "token-mean" else {"count_empty_rows": False}
    setting = {**theirs, "alone": True}
    return Case(what, "aggregation", "verl", "agg_loss", setting, {**ours, **counted}, "aggregation", Draw(empty=True))


MEANS = tuple(aggregation(name, alone) for name in AGGREGATIONS for alone in (False, True))


def advantage(en: str, zh: str, setting: Keys, keys: Keys, like: Draw | Hand = RAGGED, **more: Any) -> Case:
    """An advantage estimator."""
    compared = "returns" if more.pop("returns", False) else "advantages"
    return Case(Text(en, zh), "advantage", "verl", compared, setting, keys, compared, like, **more)


SINGLE = Draw(singles=True)
UNSCALED = {"mean_level": "group", "std_level": None, "singleton": "raw"}
LOO = UNSCALED | {"mean_leave1out": True}
GAE = {"adv_estimator": "gae", "gamma": 0.97, "lam": 0.95}
OUR_GAE = {"credit": "gae", "discount": 0.97, "gae_lambda": 0.95}
TO_GO = {"credit": "reward_to_go", "discount": 0.97, "adv_norm": WHITEN}
ADVANTAGES = (
    advantage("GRPO", "GRPO", {"adv_estimator": "grpo"}, {"adv_norm": GROUP}, SINGLE),
    advantage("GRPO, vectorized", "GRPO（向量化）", {"adv_estimator": "grpo_vectorized"}, {"adv_norm": GROUP}, SINGLE),
    advantage(
        "Dr.GRPO", "Dr.GRPO", {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False}, {"adv_norm": UNSCALED},
        SINGLE,
    ),
    advantage("RLOO", "RLOO", {"adv_estimator": "rloo"}, {"adv_norm": LOO}, SINGLE),
    advantage(
        "RLOO, vectorized", "RLOO（向量化）", {"adv_estimator": "rloo_vectorized"},
        {"adv_norm": LOO | {"singleton": "zero"}}, SINGLE,
    ),
    advantage(
        "OPO: a baseline weighted by length", "OPO：按长度加权的基线", {"adv_estimator": "opo"},
        {"adv_norm": UNSCALED | {"unit": "token"}},
    ),
    advantage("GAE, whitened", "GAE，白化", GAE, OUR_GAE | {"adv_norm": WHITEN}),
    advantage("GAE: the critic's targets", "GAE：critic 的目标", GAE, OUR_GAE, returns=True),
    advantage("REINFORCE++", "REINFORCE++", {"adv_estimator": "reinforce_plus_plus", "gamma": 0.97}, TO_GO),
    advantage(
        "REINFORCE++ with KL in the reward", "REINFORCE++，奖励中含 KL",
        {"adv_estimator": "reinforce_plus_plus", "gamma": 0.97, "kl_ratio": 0.1}, TO_GO | {"kl_ctl": 0.1},
    ),
    advantage(
        "REINFORCE++ baseline", "REINFORCE++ baseline", {"adv_estimator": "reinforce_plus_plus_baseline"},
        {"reward_norm": UNSCALED, "adv_norm": WHITEN}, SINGLE,
    ),
    advantage(
        "GRPO with KL in the reward", "GRPO，奖励中含 KL", {"adv_estimator": "grpo", "kl_ratio": 0.1},
        {"adv_norm": GROUP, "kl_ctl": 0.1},
    ),
    advantage(
        "GDPO: each reward normalised by itself", "GDPO：每个奖励单独归一化", {"adv_estimator": "gdpo"},
        {"reward_norm": GROUP, "reward_norm_per_part": True, "adv_norm": WHITEN}, part_weights=(1.0, 1.0),
    ),
)  # fmt: skip


KL = tuple(
    Case(
        Text(f"estimator {theirs}", f"估计量 {theirs}"), "kl", "verl", "kl_penalty", {"kl_penalty": theirs},
        {"kl_loss_coef": 1.0, "kl_loss_estimator": ours}, "kl",
    )
    for theirs, ours in {"k1": "k1", "abs": "abs", "k2": "k2", "k3": "k3", "k3+": "k3_value_k2_grad"}.items()
)  # fmt: skip


def weights(en: str, zh: str, setting: Keys, correction: Keys) -> Case:
    """The factor of each token."""
    return Case(
        Text(en, zh), "correction", "verl", "rollout_correction", setting, {"correction": correction}, "correction"
    )


def corrected(en: str, zh: str, setting: Keys, keys: Keys, **more: Any) -> Case:
    """A policy loss under a correction."""
    return Case(Text(en, zh), "correction", "verl", "policy_loss", setting, keys, **more)


FREE = {"rollout_is": "token", "rollout_is_threshold": 1e6}
GEOMETRIC = FREE | {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.8_1.25"}
MIS = {"kind": "mis", "level": "geometric", "low": 0.8, "high": 1.25}
TIS, OUR_TIS = {"rollout_is": "token", "rollout_is_threshold": 1.3}, {"kind": "tis", "high": 1.3}
PPO = {"loss_mode": "vanilla", **DUAL}
BYPASS = {"loss_mode": "bypass_mode"}
CORRECTIONS = (
    weights("untruncated token weights", "不截断的 token 权重", FREE, {"kind": "decoupled"}),
    weights("token TIS", "token 级 TIS", TIS, OUR_TIS),
    weights(
        "sequence TIS", "序列级 TIS", TIS | {"rollout_is": "sequence"}, OUR_TIS | {"level": "sequence"}
    ),
    weights(
        "IcePop", "IcePop", {"rollout_is": "token", "rollout_is_threshold": "0.7_1.4"},
        {"kind": "icepop", "low": 0.7, "high": 1.4},
    ),
    weights(
        "token rejection, symmetric bounds", "token 级拒绝，对称的上下界",
        FREE | {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.8_1.25"},
        {"kind": "icepop", "low": 0.8, "high": 1.25},
    ),
    weights("sequence rejection by the geometric mean", "按几何平均拒绝序列", GEOMETRIC, MIS),
    weights(
        "sequence rejection by the product", "按乘积拒绝序列", GEOMETRIC | {"rollout_rs": "seq_sum_k1"},
        MIS | {"level": "sequence"},
    ),
    corrected("PPO with token TIS", "PPO 加 token 级 TIS", PPO | TIS, OUR_DUAL | {"correction": OUR_TIS}),
    corrected(
        "PPO, sequences rejected, token-mean", "PPO，拒绝序列，token-mean", PPO | GEOMETRIC,
        OUR_DUAL | {"correction": MIS | {"denominator": "kept"}},
    ),
    corrected(
        "PPO, sequences rejected, seq-mean-token-mean", "PPO，拒绝序列，seq-mean-token-mean",
        PPO | GEOMETRIC | {"loss_agg_mode": "seq-mean-token-mean"},
        OUR_DUAL | {"correction": MIS, "loss_agg_mode": "seq_mean_token_mean"},
    ),
    corrected(
        "bypass: PPO around the sampler's log-probs", "bypass：以采样器的对数概率为中心的 PPO",
        BYPASS | DUAL | {"loss_type": "ppo_clip"}, OUR_DUAL | {"recompute_logprob": False},
    ),
    corrected(
        "bypass: REINFORCE with token TIS, first optimizer step", "bypass：REINFORCE 加 token 级 TIS，第一个优化器步",
        BYPASS | TIS | {"loss_type": "reinforce"},
        {"importance_sampling_level": "none", "correction": OUR_TIS}, like=Draw(unmoved=True),
    ),
)  # fmt: skip


REST = (
    *(
        Case(
            Text(f"value loss, {theirs}", f"价值损失，{theirs}"), "critic", "verl", "value_loss",
            {"cliprange_value": 0.2, "loss_agg_mode": theirs},
            {"credit": "gae", "value_eps_clip": 0.2, "loss_agg_mode": AGGREGATIONS[theirs]}, "value",
        )
        for theirs in ("token-mean", "seq-mean-token-mean")
    ),
    *(
        Case(
            Text(f"entropy bonus, {theirs}", f"熵奖励，{theirs}"), "loss", "verl", "entropy_bonus",
            {"entropy_coeff": 0.1, "loss_agg_mode": theirs},
            {"entropy_coef": 0.1, "loss_agg_mode": AGGREGATIONS[theirs]}, "entropy",
        )
        for theirs in ("token-mean", "seq-mean-token-mean")
    ),
    Case(
        Text("adaptive KL coefficient", "自适应 KL 系数"), "controller", "verl", "kl_coefficient",
        {"kl_coef": 0.2, "target_kl": 6.0, "horizon": 100, "n_steps": 16, "observed": (3.0, 5.9, 6.0, 6.5, 20.0, 0.0)},
        {"kl_ctl": 0.2, "kl_controller": {"type": "ziegler", "target": 6.0, "horizon": 100}}, "kl_coefficient",
    ),
)  # fmt: skip

DIFFERENCES = (
    loss(
        "dual clip", "双重裁剪", {"loss_mode": "vanilla", **CLIP}, OUR_CLIP,
        Hand(lengths=(1,), advantages=(-1.0,), ratio=(4.0,)),
        differs=Difference(3.0, 4.0, Text(
            "verl's PPO always has a dual clip, by default at 3; here it is off unless `c_clip` is set, as in PPO",
            "verl 的 PPO 总带双重裁剪，默认 3；这里与 PPO 一致，除非设置 `c_clip`，否则关闭",
        )),
    ),
    loss(
        "SAPO's aggregation", "SAPO 的聚合方式", {"loss_mode": "sapo", "tau_neg": 1.0, "loss_agg_mode": "token-mean"},
        {"gate": "soft", "sapo_tau_neg": 1.0, "loss_agg_mode": "token_mean"},
        Hand(lengths=(1, 3), advantages=(1.0, -1.0)),
        differs=Difference(0.0, 1.0, Text(
            "verl's SAPO ignores `loss_agg_mode` and always takes seq-mean-token-mean; here every gate takes every mode",
            "verl 的 SAPO 忽略 `loss_agg_mode`，总用 seq-mean-token-mean；这里任何 gate 都可配任何聚合方式",
        )),
    ),
    Case(
        Text("the constant of seq-mean-token-sum-norm", "seq-mean-token-sum-norm 的常数"), "aggregation", "verl",
        "agg_loss", {"loss_agg_mode": "seq-mean-token-sum-norm"}, {"loss_agg_mode": "seq_mean_token_sum_norm"},
        "aggregation", Hand(lengths=(1, 2), entropy=(4.0, 4.0)),
        differs=Difference(3.0, 0.5, Text(
            "unset, verl divides by the padded width of the batch at hand (here 2), which moves from step to step; "
            "here `max_new_tokens` (12) for the whole run",
            "未设置时，verl 除以当前批次的填充宽度（本例为 2），逐步变化；这里整个运行都用 `max_new_tokens`（12）",
        )),
    ),
    Case(
        Text("a row without trained tokens", "没有训练 token 的行"), "aggregation", "verl", "agg_loss",
        {"loss_agg_mode": "seq-mean-token-mean", "alone": True}, {"loss_agg_mode": "seq_mean_token_mean"},
        "aggregation", Hand(lengths=(2, 0), entropy=(4.0, 4.0)),
        differs=Difference(4.0, 2.0, Text(
            "called alone, verl leaves the row out of the mean; told the step's row count it does not, as we do unless "
            "`count_empty_rows: false`",
            "单独调用时，verl 不把该行计入平均；给出该步的行数时则计入，我们也计入，除非 `count_empty_rows: false`",
        )),
    ),
    advantage(
        "a group of one", "只有一个样本的组", {"adv_estimator": "grpo"}, {"adv_norm": GROUP | {"singleton": "zero"}},
        Hand(lengths=(1,), rewards=(0.3,)),
        differs=Difference(0.3, 0.0, Text(
            "verl's `grpo` and `rloo` leave the raw reward, without any baseline; here 0 unless `singleton: raw`",
            "verl 的 `grpo` 和 `rloo` 保留没有基线的原始奖励；这里为 0，除非 `singleton: raw`",
        ), at=(0, 0)),
    ),
    advantage(
        "a group of equal rewards", "奖励全相等的组", {"adv_estimator": "grpo"}, {"adv_norm": GROUP},
        Hand(lengths=(1,) * 8, rewards=(0.7,) * 8),
        differs=Difference(0.056034, 0.0, Text(
            "the mean of eight times 0.7 is not 0.7 in float32: verl divides the residue by a deviation near 0; here a "
            "constant group gives exactly 0",
            "float32 下八个 0.7 的平均值不等于 0.7：verl 把这个残差除以接近 0 的标准差；这里常数组恰好为 0",
        ), at=(0, 0)),
    ),
    Case(
        Text("k3 far from the reference", "远离参考策略时的 k3"), "kl", "verl", "kl_penalty", {"kl_penalty": "k3"},
        {"kl_loss_coef": 1.0, "kl_loss_estimator": "k3"}, "kl", Hand(lengths=(1,), from_ref=(-3.5,)),
        Difference(10.0, 28.615452, Text(
            "verl holds the estimate at 10, where its gradient becomes 0 just as the KL is largest; here only the "
            "exponent is held, at 20",
            "verl 把估计值限制在 10，恰在 KL 最大处梯度变为 0；这里只把指数限制在 20",
        ), at=(0, 0)),
    ),
    Case(
        Text("token rejection, bounds that are not symmetric", "token 级拒绝，不对称的上下界"), "correction", "verl",
        "rollout_correction",
        {"rollout_is": "token", "rollout_is_threshold": 1e6, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_4"},
        {"correction": {"kind": "icepop", "low": 0.5, "high": 4.0}}, "correction", Hand(lengths=(1,), sampled=(3.0,)),
        Difference(0.0, 3.0, Text(
            "verl holds the *inverse* ratio to the bounds, so 0.5_4 keeps 0.25 to 2; here bounds are those of "
            "the ratio",
            "verl 用比率的*倒数*与上下界比较，因此 0.5_4 保留 0.25 到 2；这里上下界针对比率本身",
        ), at=(0, 0)),
    ),
    corrected(
        "the divisor after rejection", "拒绝之后的分母",
        {"loss_mode": "vanilla", "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2", "alone": True},
        {"correction": {"kind": "icepop", "low": 0.5, "high": 2.0}}, like=Hand(lengths=(1, 1), sampled=(1.0, 3.0)),
        differs=Difference(-1.0, -0.5, Text(
            "in verl a rejected token leaves the mean; here it counts unless `denominator: kept`, so that masking "
            "does not enlarge the others' step",
            "verl 中被拒绝的 token 不再计入平均；这里仍计入，除非 `denominator: kept`，使屏蔽不会放大其余 token 的步长",
        )),
    ),
    corrected(
        "the KL loss of a rejected token", "被拒绝 token 的 KL 损失",
        {
            "loss_mode": "vanilla", "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2", "use_kl_loss": True,
            "kl_loss_coef": 1.0, "kl_loss_type": "k2", "loss_agg_mode": "seq-mean-token-sum",
        },
        {
            "correction": {"kind": "icepop", "low": 0.5, "high": 2.0}, "kl_loss_coef": 1.0,
            "kl_loss_estimator": "k2", "loss_agg_mode": "seq_mean_token_sum",
        },
        like=Hand(lengths=(1,), sampled=(3.0,), from_ref=(2.0,)),
        differs=Difference(0.0, 2.0, Text(
            "verl takes the token out of every term; here a correction is a factor of the objective, and penalties stay",
            "verl 把该 token 从所有项中去掉；这里修正只是目标的一个因子，惩罚项仍然保留",
        )),
    ),
)  # fmt: skip

VERL = (*LOSSES, *MEANS, *ADVANTAGES, *KL, *CORRECTIONS, *REST, *DIFFERENCES)

VERL_ABSENT = (
    Absent("loss", "verl", ("dppo_tv", "dppo_kl"), Text(
        "DPPO: tokens are masked by their divergence, not by their ratio", "DPPO：按散度而不是按比率屏蔽 token")),
    Absent("loss", "verl", ("clip_cov", "kl_cov"), Text(
        "tokens with a large covariance of advantage and log-prob are cut or penalised",
        "对优势与对数概率协方差大的 token 进行裁剪或惩罚")),
    Absent("aggregation", "verl", ("token-sum",), Text("a sum over tokens without any divisor", "对 token 求和，没有分母")),
    Absent("advantage", "verl", ("grpo_passk",), Text(
        "only the best row of a group, for pass@k", "只取组内最好的一行，用于 pass@k")),
    Absent("advantage", "verl", ("remax",), Text("the reward of a greedy answer as baseline", "以贪心回答的奖励为基线")),
    Absent("advantage", "verl", ("gpg",), Text(
        "scaled by the share of rows with a reward that is not 0", "按奖励不为 0 的行的占比缩放")),
    Absent("advantage", "verl", ("optimal_token_baseline", "tir_optimal_token_baseline"), Text(
        "a baseline per token, weighted by its gradient's variance", "每个 token 一个基线，按梯度方差加权")),
    Absent("correction", "verl", (
        "token_k2", "token_k3", "seq_sum_k2", "seq_sum_k3", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3",
    ), Text("rejection by k2 or k3 in place of the ratio", "按 k2 或 k3 而不是按比率拒绝")),
    Absent("kl", "verl", ("k1+", "abs+"), Text(
        "the value of k1 or abs with the gradient of k2", "取 k1 或 abs 的值、k2 的梯度")),
    Absent("correction", "verl", ("rollout_rs without rollout_is",), Text(
        "rejection alone; here what is kept carries its weight", "只拒绝；这里保留下来的带有权重")),
    Absent("correction", "verl", ("rollout_is: sequence with two bounds",), Text(
        "IcePop on the product of a sequence", "对整条序列的连乘积做 IcePop")),
    Absent("correction", "verl", ("rollout_is_batch_normalize",), Text(
        "weights divided by their mean", "权重除以其均值")),
)  # fmt: skip
