"""The cases against TRL 1.16.0."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log, nan
from typing import Any

from parity.cases import Absent, Case, Difference, Text
from parity.ragged import Draw, Hand

Keys = Mapping[str, Any]
CLIP, OUR_CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}, {"eps_clip": 0.2, "eps_clip_higher": 0.28}
TIGHT, OUR_TIGHT = {"epsilon": 0.05, "epsilon_high": 0.06}, {"eps_clip": 0.05, "eps_clip_higher": 0.06}
ROWS = {"loss_agg_mode": "seq_mean_token_mean"}
EVEN = Draw(even=3)
PER_TOKEN = Draw(even=3, per_token=True)
PACKED = Draw(even=3, holes=False)  # RLOO has no mask of tool tokens
GROUP = {"mean_level": "group", "std_level": "group", "eps": 1e-4}
UNSCALED = {"mean_level": "group", "std_level": None}
SPREAD = {"mean_level": "batch", "std_level": "batch", "eps": 1e-4}


def loss(en: str, zh: str, setting: Keys, keys: Keys, like: Draw | Hand = PER_TOKEN, **more: Any) -> Case:
    """GRPOTrainer's loss, for given advantages unless another call is named."""
    call = more.pop("call", "policy_loss")
    return Case(Text(en, zh), "loss", "trl", call, setting, keys, like=like, **more)


SEQUENCE = {"importance_sampling_level": "sequence"}  # in both languages
LOSSES = (
    loss("PPO clip, `grpo`: mean over rows of the mean over tokens", "PPO 裁剪，`grpo`：先对 token 平均再对行平均",
         {"loss_type": "grpo", **CLIP}, OUR_CLIP | ROWS),
    loss("PPO clip, `bnpo`: mean over tokens", "PPO 裁剪，`bnpo`：对 token 平均", {"loss_type": "bnpo", **CLIP}, OUR_CLIP),
    loss("PPO clip, `dapo`, one optimizer step per generation", "PPO 裁剪，`dapo`，每次生成一个优化器步",
         {"loss_type": "dapo", **CLIP}, OUR_CLIP),
    loss("PPO clip, `dr_grpo`: sum over a constant", "PPO 裁剪，`dr_grpo`：求和后除以常数",
         {"loss_type": "dr_grpo", **CLIP}, OUR_CLIP | {"loss_agg_mode": "seq_mean_token_sum_norm"}),
    loss("two-sided clip `delta`", "双侧裁剪 `delta`", {"loss_type": "bnpo", "delta": 1.5, **CLIP},
         OUR_CLIP | {"c_clip": 1.5}),
    loss("GSPO: `sequence` with `grpo`", "GSPO：`sequence` 加 `grpo`", {"loss_type": "grpo", **SEQUENCE, **TIGHT},
         SEQUENCE | OUR_TIGHT | ROWS, EVEN),
    loss("`luspo`: a sequence ratio, weighted by length", "`luspo`：序列级比率，按长度加权",
         {"loss_type": "luspo", **SEQUENCE, **TIGHT},
         SEQUENCE | OUR_TIGHT | {"loss_agg_mode": "seq_mean_token_sum"}, EVEN),
    loss("SAPO", "SAPO", {"loss_type": "sapo"}, {"gate": "soft", **ROWS}),
    loss("CISPO, its cap in our words", "CISPO，上限换成我们的说法", {"loss_type": "cispo", "epsilon_high": 1.28},
         {"gate": "cispo", "eps_clip": 1.0, "eps_clip_higher": 0.28}),
    loss("KL loss (k3)", "KL 损失（k3）", {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False, **CLIP},
         OUR_CLIP | ROWS | {"kl_loss_coef": 0.3}),
    loss("KL loss, importance-corrected", "KL 损失，重要性修正",
         {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": True, **CLIP},
         OUR_CLIP | ROWS | {"kl_loss_coef": 0.3, "kl_loss_importance_corrected": True}),
    loss("cut completions masked", "屏蔽被截断的回答", {"loss_type": "grpo", "mask_truncated_completions": True, **CLIP},
         OUR_CLIP | ROWS | {"truncation": "mask_loss"}, Draw(even=3, cut=True)),
    loss("two micro-batches of one step, `grpo`, from rewards", "一步分两个 micro-batch，`grpo`，从奖励开始",
         {"loss_type": "grpo", "per_device_train_batch_size": 6, "gradient_accumulation_steps": 2, **CLIP},
         OUR_CLIP | ROWS | {"adv_norm": GROUP}, EVEN, call="step", compared="step"),
    loss("entropy bonus, `bnpo`", "熵奖励，`bnpo`", {"loss_type": "bnpo", "entropy_coef": 0.1}, {"entropy_coef": 0.1},
         EVEN, call="entropy_bonus", compared="entropy"),
)  # fmt: skip


def advantage(en: str, zh: str, setting: Keys, keys: Keys, like: Draw | Hand = EVEN, **more: Any) -> Case:
    """Advantages from rewards."""
    call = more.pop("call", "advantages")
    return Case(Text(en, zh), "advantage", "trl", call, setting, keys, "advantages", like, **more)


LOO = UNSCALED | {"mean_leave1out": True}
RLOO: dict[str, Any] = {"call": "rloo_advantages"}
ADVANTAGES = (
    advantage("GRPO", "GRPO", {"scale_rewards": "group"}, {"adv_norm": GROUP}),
    advantage("Dr.GRPO", "Dr.GRPO", {"scale_rewards": "none"}, {"adv_norm": UNSCALED}),
    advantage("LitePPO: the batch's deviation of raw rewards", "LitePPO：用整批原始奖励的标准差", {"scale_rewards": "batch"},
              {"adv_norm": GROUP | {"std_level": "batch", "std_of": "raw"}}),
    advantage("several rewards, normalised, then summed", "多个奖励，先归一化再求和",
              {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0, 2.0]},
              {"reward_norm": GROUP, "reward_norm_per_part": True, "adv_norm": SPREAD}, part_weights=(1.0, 2.0)),
    advantage("RLOO", "RLOO", {"beta": 0.0}, {"adv_norm": LOO}, PACKED, **RLOO),
    advantage("RLOO with KL in the reward", "RLOO，奖励中含 KL", {"beta": 0.1}, {"adv_norm": LOO, "kl_ctl": 0.1}, PACKED,
              **RLOO),
    advantage("RLOO, rewards clipped", "RLOO，裁剪奖励", {"beta": 0.0, "reward_clip_range": (-0.4, 0.4)},
              {"adv_norm": LOO, "reward_clip": 0.4}, PACKED, **RLOO),
    advantage("RLOO, normalised over the batch", "RLOO，对整批归一化", {"beta": 0.0, "normalize_advantages": True},
              {"reward_norm": LOO, "adv_norm": SPREAD}, PACKED, **RLOO),
)  # fmt: skip


def corrected(en: str, zh: str, setting: Keys, keys: Keys, compared: str = "correction", **more: Any) -> Case:
    """Against a sampler of another arithmetic."""
    call = "rollout_correction" if compared == "correction" else "policy_loss"
    return Case(Text(en, zh), "correction", "trl", call, setting, keys, compared, **({"like": EVEN} | more))


def mode(name: str, cap: float) -> dict[str, Any]:
    """One of TRL's corrections for vLLM."""
    return {"vllm_importance_sampling_mode": name, "vllm_importance_sampling_clip_max": cap}


MASKED = {"kind": "decoupled", "action": "mask", "high": 1.5}
CORRECTIONS = (
    corrected("`token_truncate`: token TIS", "`token_truncate`：token 级 TIS", mode("token_truncate", 1.3),
              {"correction": {"kind": "tis", "high": 1.3}}),
    corrected("`sequence_truncate`: sequence TIS", "`sequence_truncate`：序列级 TIS", mode("sequence_truncate", 1.3),
              {"correction": {"kind": "tis", "high": 1.3, "level": "sequence"}}),
    corrected("`token_mask`", "`token_mask`", mode("token_mask", 1.5), {"correction": MASKED}),
    corrected("`token_mask` with a lower bound: IcePop", "`token_mask` 加下界：IcePop",
              mode("token_mask", 1.4) | {"vllm_importance_sampling_clip_min": 0.7},
              {"correction": {"kind": "icepop", "low": 0.7, "high": 1.4}}),
    corrected("`sequence_mask`, TRL's default: the product, 0 above the cap", "`sequence_mask`，TRL 默认：连乘积，超过上限为 0",
              mode("sequence_mask", 1.5), {"correction": MASKED | {"level": "sequence"}}),
    corrected("GRPO with token TIS and a KL loss", "GRPO 加 token 级 TIS 和 KL 损失",
              {
                  "loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False, **CLIP,
                  **mode("token_truncate", 1.3),
              }, OUR_CLIP | ROWS | {"kl_loss_coef": 0.3, "correction": {"kind": "tis", "high": 1.3}}, "loss"),
    corrected("off-policy sequence mask", "离策略序列屏蔽",
              {"loss_type": "grpo", "off_policy_mask_threshold": 0.1, "sampler": True, **CLIP},
              OUR_CLIP | ROWS | {"correction": {"kind": "opsm", "threshold": 0.1}}, "loss"),
)  # fmt: skip


ADAPTIVE = {
    "loss_type": "bnpo", "use_adaptive_entropy": True, "entropy_target": 0.2, "entropy_coef_delta": 0.005,
    "observed": (0.30, 0.19, 0.18, 0.25, 0.15, 0.20),
}  # fmt: skip
REST = (
    Case(Text("RLOO's loss: the product of token ratios", "RLOO 的损失：token 比率连乘"), "loss", "trl", "rloo_loss",
         {"epsilon": 0.2}, {
             "importance_sampling_level": "sequence_product", "loss_agg_mode": "seq_mean_token_mean",
         }, "loss", PACKED),
    Case(Text("adaptive entropy coefficient", "自适应熵系数"), "controller", "trl", "entropy_coefficient",
         ADAPTIVE,
         {"adaptive_entropy": {"gate": "previous_step", "target": 0.2, "delta": 0.005}}, "entropy_coefficient", EVEN),
    Case(Text("soft overlong punishment", "软超长惩罚"), "reward", "trl", "overlong",
         {"max_completion_len": 7, "soft_punish_cache": 4},
         {"overlong_reward_penalty": True, "overlong_tokens": 4}, "shaping", PACKED, budget=7),
    Case(Text("DPO", "DPO"), "pairs", "trl", "dpo_loss", {"beta": 0.1, "loss_type": ["sigmoid"]},
         {"loss": "Sigmoid", "beta": 0.1}, "pairs", EVEN),
    Case(Text("DPO, hinge", "DPO，hinge"), "pairs", "trl", "dpo_loss", {"beta": 0.1, "loss_type": ["hinge"]},
         {"loss": "Hinge", "beta": 0.1}, "pairs", EVEN),
    Case(Text("IPO", "IPO"), "pairs", "trl", "dpo_loss", {"beta": 0.1, "loss_type": ["ipo"]},
         {"loss": "Ipo", "beta": 0.1}, "pairs", EVEN),
    Case(Text("robust DPO", "稳健 DPO"), "pairs", "trl", "dpo_loss",
         {"beta": 0.1, "loss_type": ["robust"], "label_smoothing": 0.1},
         {"loss": "Robust", "beta": 0.1, "label_smoothing": 0.1}, "pairs", EVEN),
)  # fmt: skip


PLAIN = {"loss_type": "bnpo", **CLIP}
SINGLY = {"scale_rewards": "none", "per_device_train_batch_size": 1}
THREE_ONE = Hand(lengths=(3, 1), rewards=(1.0, 0.0))
DIFFERENCES = (
    loss("the cap of CISPO", "CISPO 的上限", {"loss_type": "cispo", **CLIP}, {"gate": "cispo", **OUR_CLIP},
         Hand(lengths=(1, 1)), differs=Difference(-0.14, -0.5, Text(
             "TRL reads `epsilon_high` as the cap of the weight itself and has no lower bound; here, as in verl and the "
             "paper, the weight lies in 1 - `eps_clip` to 1 + `eps_clip_higher`",
             "TRL 把 `epsilon_high` 当作权重本身的上限，且没有下限；这里与 verl 和论文一致，权重在 1 - `eps_clip` 到 "
             "1 + `eps_clip_higher` 之间",
         ), "gradient", (0, 0))),
    loss("`dapo`'s divisor", "`dapo` 的分母",
         {"loss_type": "dapo", "steps_per_generation": 2, "gradient_accumulation_steps": 1, **SINGLY, **CLIP},
         {"adv_norm": UNSCALED, **OUR_CLIP}, THREE_ONE, call="step", compared="step", rows=(0,),
         differs=Difference(-0.75, -0.5, Text(
             "with several optimizer steps per generation TRL divides each by the mean number of tokens of all of them "
             "(here 2); we divide by the step's own (3)",
             "每次生成有多个优化器步时，TRL 每步都除以各步 token 数的平均值（本例为 2）；这里除以该步自己的 token 数（3）",
         ))),
    loss("`bnpo` over two micro-batches", "`bnpo` 分两个 micro-batch",
         {"loss_type": "bnpo", "gradient_accumulation_steps": 2, **SINGLY, **CLIP}, {"adv_norm": UNSCALED, **OUR_CLIP},
         THREE_ONE, call="step", compared="step", differs=Difference(0.0, -0.25, Text(
             "TRL takes the mean of each micro-batch's mean, so a token's weight depends on the split; here never",
             "TRL 对每个 micro-batch 的均值再取平均，token 的权重取决于切分方式；这里从不如此",
         ))),
    loss("`delta` below the clip range", "`delta` 低于裁剪范围", PLAIN | {"delta": 1.1}, OUR_CLIP | {"c_clip": 1.1},
         Hand(lengths=(1, 1), ratio=(1.15, 1.15)), differs=Difference(-1.1, -1.15, Text(
             "TRL's `delta` also holds positive advantages where it is below 1 + `epsilon_high`; a dual clip is for "
             "negative ones only",
             "当 `delta` 小于 1 + `epsilon_high` 时，TRL 的 `delta` 也会限制正优势；双重裁剪只针对负优势",
         ))),
    loss("a log-ratio of 100, A > 0", "对数比率为 100，A > 0", PLAIN, OUR_CLIP,
         Hand(lengths=(1, 1), ratio=(exp(100.0), 1.0)), differs=Difference(nan, 0.0, Text(
             "TRL's exponential overflows, and the clipped token's gradient is 0 times infinity; here, as in verl, "
             "log-ratios are held within ±20",
             "TRL 的指数溢出，被裁剪 token 的梯度变成 0 乘无穷大；这里与 verl 一样，对数比率限制在 ±20 之内",
         ), "gradient", (0, 0))),
    loss("the KL loss by default", "默认的 KL 损失", {"loss_type": "bnpo", "beta": 1.0}, {"kl_loss_coef": 1.0},
         Hand(lengths=(1, 1), advantages=(0.0, 0.0), ratio=(2.0, 2.0), from_ref=(log(2.0), log(2.0))),
         differs=Difference(0.386294, 0.193147, Text(
             "TRL multiplies the KL by the ratio unless `use_bias_correction_kl` is off; here "
             "`kl_loss_importance_corrected` is off unless it is set, as in the GRPO paper",
             "除非关闭 `use_bias_correction_kl`，TRL 会把 KL 乘以比率；这里与 GRPO 论文一致，`kl_loss_importance_corrected` "
             "默认关闭",
         ))),
    loss("the entropy bonus under `grpo`", "`grpo` 下的熵奖励", {"loss_type": "grpo", "entropy_coef": 0.1},
         ROWS | {"entropy_coef": 0.1}, Hand(lengths=(1, 3), entropy=(1.0, 2.0)), call="entropy_bonus",
         compared="entropy", differs=Difference(-0.175, -0.15, Text(
             "TRL's bonus is a mean over tokens whatever the loss type; here all terms of a loss share one aggregation",
             "无论损失类型，TRL 的熵奖励都是对 token 平均；这里一个损失的所有项共用同一种聚合方式",
         ))),
    loss("a row that no reward function scored", "没有任何奖励函数打分的行", {"scale_rewards": "none", **PLAIN},
         {"adv_norm": UNSCALED, **OUR_CLIP},
         Hand(lengths=(1, 1, 1, 1), rewards=(1.0, 0.0, nan, 0.0), ratio=(1.1, 1.0, 1.0, 1.0)), call="step",
         compared="step", differs=Difference(-0.016667, -0.022222, Text(
             "both leave it out of the statistics; TRL still counts its tokens in the divisor, here it is outside the loss",
             "两者都不把它计入统计；TRL 的分母仍计入它的 token，这里它完全不在损失之内",
         ))),
    advantage("a group of equal rewards", "奖励全相等的组", {"scale_rewards": "group"}, {"adv_norm": GROUP},
              Hand(lengths=(1,) * 8, rewards=(0.7,) * 8), differs=Difference(0.000596, 0.0, Text(
                  "the mean of eight times 0.7 is not 0.7 in float32: TRL divides the residue by its 1e-4; here a constant "
                  "group gives exactly 0",
                  "float32 下八个 0.7 的平均值不等于 0.7：TRL 把这个残差除以它的 1e-4；这里常数组恰好为 0",
              ), at=(0, 0))),
    Case(Text("DPO's label smoothing", "DPO 的标签平滑"), "pairs", "trl", "dpo_loss", {"beta": 0.1, "label_smoothing": 0.1},
         {"loss": "Sigmoid", "beta": 0.1, "label_smoothing": 0.1}, "pairs", Hand(lengths=(1, 1), from_ref=(1.0, -1.0)),
         Difference(0.598139, 0.618139, Text(
             "TRL's `sigmoid` ignores `label_smoothing`; here it is conservative DPO's",
                "TRL 的 `sigmoid` 忽略 `label_smoothing`；这里是保守 DPO 的标签平滑",
         ))),
)  # fmt: skip

TRL = (*LOSSES, *ADVANTAGES, *CORRECTIONS, *REST, *DIFFERENCES)

TRL_ABSENT = (
    Absent("loss", "trl", ("vespo",), Text(
        "VESPO: a gamma-shaped weight of the sequence ratio", "VESPO：以 gamma 形函数对序列比率加权")),
    Absent("loss", "trl", ("top_entropy_quantile",), Text(
        "only the tokens of highest entropy are trained on", "只训练熵最高的 token")),
    Absent("pairs", "trl", (
        "exo_pair", "nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero",
        "apo_down", "discopop", "sft", "sigmoid_norm",
    ), Text("other losses on pairs", "其他基于偏好对的损失")),
)  # fmt: skip
