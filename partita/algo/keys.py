"""The algorithm's configuration keys: one declaration, from which `compose` builds parts.

Left out: the model, its optimizer and how many optimizer steps a batch is used for. `actor` adds them beside these
keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partita.config.schema import key

Level = Literal["batch", "group"]
Aggregation = Literal[
    "token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm", "prompt_token_mean"
]
Truncation = Literal["none", "mask_loss", "adv_mask_before", "adv_mask_after"]


@dataclass(frozen=True)
class NormConfig:
    """Statistics that rewards or advantages are normalised with."""

    mean_level: Level | None = key("batch", "subtract the mean of the whole batch, of the prompt's group, or nothing")
    std_level: Level | None = key("batch", "divide by the standard deviation of the batch, of the group, or by nothing")
    mean_leave1out: bool = key(False, "leave a value out of its own mean")
    std_unbiased: bool = key(True, "divide squared deviations by n - 1 instead of n")
    eps: float = key(1e-5, "added to the standard deviation", ge=0)
    group_size: int | None = key(None, "samples per group; when given it must equal gconfig.n_samples", ge=1)
    unit: Literal["sequence", "token"] | None = key(
        None, "what a statistic counts; null: sequences for one number per sample, tokens where credit varies by token"
    )
    eps_mode: Literal["add", "inside_sqrt"] = key("add", "std + eps, or sqrt(variance + eps)")
    std_of: Literal["centered", "raw"] = key(
        "centered", "deviation of the values after, or before, the mean is subtracted"
    )
    singleton: Literal["zero", "raw"] = key("zero", "what a group of one gets: 0, or its own value")


@dataclass(frozen=True)
class DynamicSampling:
    """Train only on groups that teach something, and sample more prompts in place of the others."""

    filter: Literal["mixed_outcomes", "mixed_rewards"] = key(
        "mixed_outcomes", "keep groups with right and wrong samples, or groups whose raw rewards differ"
    )
    max_batches: int = key(10, "prompt batches that one step may sample, the first included, before the run ends", ge=1)
    correct_threshold: float = key(1.0, "mixed_outcomes: raw reward from which on a sample is right")


@dataclass(frozen=True)
class AlgorithmKeys:
    """Every key that belongs to an algorithm; a preset sets some of them and resets the others."""

    overlong_reward_penalty: bool = key(False, "lower the reward of responses near the length limit")
    overlong_tokens: int | None = key(
        None,
        "length of the window before max_new_tokens in which that penalty grows; null: a fifth of max_new_tokens",
        ge=1,
    )
    overlong_penalty_factor: float = key(1.0, "that penalty at the limit, in units of reward", ge=0)
    reward_bias: float = key(0.0, "added to the reward, before scaling")
    reward_scaling: float = key(1.0, "the reward is multiplied by this")
    reward_clip: float | None = key(None, "hold the scaled reward within plus and minus this", gt=0)
    reward_norm: NormConfig | None = key(None, "statistics over rewards, before any KL is subtracted")
    kl_ctl: float = key(0.0, "coefficient of the KL to the reference inside the reward", ge=0)
    kl_estimator: Literal["k1", "k2", "k3", "abs"] = key("k1", "estimator of the KL inside the reward")
    credit: Literal["outcome", "reward_to_go"] = key(
        "outcome", "one number for all tokens of a sample, or what a token can still influence"
    )
    discount: float = key(1.0, "reward_to_go: weight of a reward one token later", gt=0, le=1)
    adv_norm: NormConfig | None = key(None, "statistics over advantages, after any KL is subtracted")
    truncation: Truncation = key(
        "none",
        "samples cut at the length limit: treat as others, leave out of the loss, or give advantage 0 with statistics "
        "taken without (before) or with (after) them",
    )
    importance_sampling_level: Literal["token", "none"] = key(
        "token", "ratio of new to old policy per token, or none: the REINFORCE loss, without clipping"
    )
    eps_clip: float = key(
        0.2, "ratios below 1 - this are clipped; the upper side too unless eps_clip_higher is set", gt=0
    )
    eps_clip_higher: float | None = key(None, "ratios above 1 + this are clipped", gt=0)
    c_clip: float | None = key(None, "dual clip: an advantage below 0 counts at most this many times", gt=1)
    loss_agg_mode: Aggregation = key("token_mean", "how the losses of tokens become one number")
    loss_agg_constant: float | None = key(
        None, "seq_mean_token_sum_norm: the constant length C; null: max_new_tokens", gt=0
    )
    count_empty_rows: bool = key(True, "sequence and prompt means count samples without any token in the loss")
    kl_loss_coef: float = key(0.0, "coefficient of the KL to the reference in the loss", ge=0)
    kl_loss_estimator: Literal["k1", "k2", "k3", "abs", "k3_value_k2_grad"] = key(
        "k3", "estimator of the KL in the loss"
    )
    entropy_coef: float = key(0.0, "weight of the entropy bonus")
    dynamic_sampling: DynamicSampling | None = key(None, "filter groups and refill the batch")
