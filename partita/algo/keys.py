"""The algorithm's configuration keys: one declaration, from which `compose` builds parts.

Left out: the model, its optimizer and how many optimizer steps a batch is used for. `actor` adds them beside these
keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partita.algo.gate import GATES
from partita.config.schema import key, key_factory

Level = Literal["batch", "group", "ema"]
Aggregation = Literal[
    "token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm", "prompt_token_mean"
]
Truncation = Literal["none", "mask_loss", "adv_mask_before", "adv_mask_after"]


@dataclass(frozen=True)
class EmaConfig:
    """Running statistics over the rewards of many steps."""

    beta: float = key(0.9, "weight of the past; the batch has 1 - beta", gt=0, lt=1)
    order: Literal["update_then_use", "use_then_update"] = key(
        "update_then_use", "whether a batch is part of the statistics that it is normalised with"
    )
    init: Literal["first_batch", "bias_corrected"] = key(
        "first_batch", "start from the first batch's statistics, or from 0 with Adam's correction"
    )


@dataclass(frozen=True)
class NormConfig:
    """Statistics that rewards or advantages are normalised with."""

    mean_level: Level | None = key(
        "batch", "subtract the mean of the whole batch, of the prompt's group, the running mean, or nothing"
    )
    std_level: Level | None = key(
        "batch", "divide by the standard deviation of the batch, of the group, by the running one, or by nothing"
    )
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
    ema: EmaConfig = key_factory(EmaConfig, "the running statistics of a level `ema`")


@dataclass(frozen=True)
class DynamicSampling:
    """Train only on groups that teach something, and sample more prompts in place of the others."""

    filter: Literal["mixed_outcomes", "mixed_rewards"] = key(
        "mixed_outcomes", "keep groups with right and wrong samples, or groups whose raw rewards differ"
    )
    max_batches: int = key(10, "rounds of sampling that one step may take, the first included; then see on_limit", ge=1)
    correct_threshold: float = key(1.0, "mixed_outcomes: raw reward from which on a sample is right")
    oversample: float = key(
        1.0,
        "a round starts this many times the groups that the batch still lacks; all of them are finished, and the batch takes "
        "those that passed in the order in which they were started, never in that in which they ended",
        ge=1,
    )
    surplus_steps: int = key(
        1,
        "train steps that groups which passed beyond the batch may wait for a place in a later one, and so weight versions that "
        "they are older than the newest samples; 0 drops them at once",
        ge=0,
    )
    on_limit: Literal["error", "train_on_less", "skip"] = key(
        "error",
        "after max_batches rounds without a full batch: end the run, train on what passed, or learn nothing in this step and keep "
        "what passed for the next (as surplus_steps allows)",
    )

    @property
    def keeps_surplus(self) -> bool:
        """Whether groups can wait for a later step, so that a batch holds samples of several weight versions."""
        return self.surplus_steps > 0 and (self.oversample > 1 or self.on_limit == "skip")


@dataclass(frozen=True)
class BalanceConfig:
    """Positive against negative advantages of an optimizer step."""

    mode: Literal["reweight", "downsample"] = key(
        "reweight", "scale both sides, keeping the total, or leave out random samples of the larger side"
    )
    positive_fraction: float = key(0.5, "share of the positive side", gt=0, lt=1)


@dataclass(frozen=True)
class ClipRuleConfig:
    """A clip range that follows training."""

    type: Literal["iqr", "clip_fraction"] = key(
        "iqr", "iqr: with the spread of the advantages; clip_fraction: with the share of tokens that are clipped"
    )
    min: float = key(0.1, "smallest range", gt=0)
    max: float = key(0.3, "largest range", gt=0)
    up: float = key(0.1, "clip_fraction: widen above this share", ge=0, le=1)
    down: float = key(0.01, "clip_fraction: narrow below this share", ge=0, le=1)
    factor: float = key(1.1, "clip_fraction: factor of one change", gt=1)
    reference: float | None = key(
        None, "iqr: the spread (metric advantage/iqr) that max belongs to; null: the first that the rule sees", gt=0
    )

    def __post_init__(self) -> None:
        """Raise ValueError for bounds in the wrong order."""
        if self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")
        if self.down >= self.up:
            raise ValueError(f"down={self.down} must be below up={self.up}")


@dataclass(frozen=True)
class KlControllerConfig:
    """A rule that moves the KL coefficient that is in use: `kl_ctl`, `kl_loss_coef` or `kl_penalty_coef`."""

    type: Literal["fixed", "ziegler", "penalty", "trend"] = key(
        "ziegler",
        "fixed; proportional to the distance from target; PPO's halving and doubling; or by slopes over a window",
    )
    target: float | None = key(
        None,
        "ziegler: nats per sequence to the reference, null is 6; penalty: nats per token, of a step for kl_penalty_coef, "
        "null is 0.01",
        gt=0,
    )
    horizon: int = key(10000, "ziegler: samples over which the coefficient follows", ge=1)
    min: float = key(1e-5, "penalty, trend: smallest coefficient", gt=0)
    max: float = key(100.0, "penalty, trend: largest coefficient", gt=0)
    window: int = key(4, "trend: steps that a slope is taken over", ge=2)
    kl_slope: float = key(0.002, "trend: raise the coefficient where the KL rises faster than this per step")
    reward_slope: float = key(0.0, "trend: lower it where the reward rises slower than this per step")
    factor: float = key(1.5, "trend: factor of one change", gt=1)

    def __post_init__(self) -> None:
        """Raise ValueError for bounds in the wrong order."""
        if self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")


@dataclass(frozen=True)
class AdaptiveEntropyConfig:
    """An entropy coefficient that rises while the entropy is below a target (Skywork-OR1, arXiv 2505.22312)."""

    target: float = key(0.2, "nats per token", gt=0)
    delta: float = key(0.005, "one change of the coefficient", gt=0)
    decrease: bool = key(True, "lower it again above the target; else it never falls")
    gate: Literal["same_step", "previous_step"] = key(
        "same_step", "the bonus acts while the entropy measured before this step, or that of the last one, is low"
    )
    update_first: bool = key(False, "whether a step's change already acts in that step")
    strict: bool = key(False, "low is below the target instead of at most the target")
    min: float = key(0.0, "smallest coefficient", ge=0)
    max: float = key(1.0, "largest coefficient", gt=0)
    start: float = key(0.0, "coefficient before the first change", ge=0)

    def __post_init__(self) -> None:
        """Raise ValueError for a start outside the bounds."""
        if not self.min <= self.start <= self.max:
            raise ValueError(f"start={self.start} is not between min={self.min} and max={self.max}")
        if self.update_first and self.gate == "previous_step":
            raise ValueError("update_first=true needs gate=same_step: else the entropy is known only after the step")


@dataclass(frozen=True)
class CorrectionConfig:
    """What is done about tokens that another policy sampled: an older one, or the same weights in another arithmetic."""

    kind: Literal["decoupled", "tis", "icepop", "mis", "opsm", "m2po"] = key(
        "tis",
        "decoupled: behaviour weight, capped by high; tis: clamped weight; icepop: weight inside [low, high], else 0; mis: "
        "whole sequences inside [low, high]; opsm: drop negative sequences that drifted; m2po: drop the largest moments",
    )
    level: Literal["token", "sequence", "geometric"] | None = key(
        None,
        "what is bounded: tokens, the product over a sequence, or its geometric mean. null: geometric for mis, else token",
    )
    low: float | None = key(
        None, "lower bound of the ratio; null: icepop 0.5, mis 0.99 (geometric) or 0.5 (sequence)", gt=0
    )
    high: float | None = key(
        None, "upper bound; null: tis 2, icepop 5, mis 1.01 (geometric) or 2 (sequence), decoupled has no cap", gt=0
    )
    threshold: float | None = key(
        None, "opsm: mean drift in nats, null is 0.1; m2po: mean second moment, null is 0.04", gt=0
    )
    action: Literal["clamp", "mask"] = key("clamp", "decoupled: what happens to a weight above high")
    denominator: Literal["original", "kept"] = key(
        "original", "whether tokens that are masked still count in the aggregation's denominator"
    )


@dataclass(frozen=True)
class AlgorithmKeys:
    """Every key that belongs to an algorithm; a preset sets some of them and resets the others."""

    reward_threshold: float | None = key(
        None, "count a reward from this on as 1 and any other as 0, before all other shaping: rejection sampling"
    )
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
    reward_norm_per_part: bool = key(
        False, "normalise each reward function's values by reward_norm, then sum them by their weights"
    )
    kl_ctl: float = key(0.0, "coefficient of the KL to the reference inside the reward", ge=0)
    kl_estimator: Literal["k1", "k2", "k3", "abs", "full"] = key(
        "k1", "estimator of the KL inside the reward; full: the whole vocabulary"
    )
    credit: Literal["outcome", "reward_to_go", "gae", "process"] = key(
        "outcome",
        "one number for all tokens of a sample; what a token can still influence; generalised advantage estimation with a "
        "critic; or the rewards of the sample's steps, normalised together (adv_norm) and summed from the token on",
    )
    discount: float = key(1.0, "reward_to_go, gae: weight of a reward one token later", gt=0, le=1)
    gae_lambda: float = key(1.0, "gae: 1 trusts the outcome, 0 the critic", ge=0, le=1)
    bootstrap_truncated: bool = key(False, "gae: a truncated sample is worth the critic's value of its last state")
    value_eps_clip: float | None = key(
        None, "gae: range of the value clip around the old value, in units of the return; null: no clip", gt=0
    )
    value_loss_half: bool = key(True, "gae: half the squared error of the critic, as most do, or the whole of it")
    adv_norm: NormConfig | None = key(None, "statistics over advantages, after any KL is subtracted")
    truncation: Truncation = key(
        "none",
        "samples cut at the length limit: treat as others, leave out of the loss, or give advantage 0 with statistics "
        "taken without (before) or with (after) them",
    )
    max_staleness: int | None = key(
        None, "leave samples out that hold a token of weights older than this many versions", ge=0
    )
    balance: BalanceConfig | None = key(None, "positive against negative advantages")
    importance_sampling_level: Literal["token", "sequence", "sequence_token", "sequence_product", "none"] = key(
        "token",
        "ratio of new to old policy: per token; the geometric mean of a sequence (GSPO); that value with a gradient per "
        "token (GSPO-token); the product over a sequence; or none: the REINFORCE loss, without clipping",
    )
    gate: str = key(
        "min_clip",
        "what holds the ratio: PPO's clip, the clip without its min, SAPO's sigmoid, CISPO's held weight, or nothing",
        choices=tuple(GATES),
    )
    eps_clip: float = key(
        0.2, "ratios below 1 - this are clipped; the upper side too unless eps_clip_higher is set", gt=0
    )
    eps_clip_higher: float | None = key(None, "ratios above 1 + this are clipped", gt=0)
    eps_clip_rule: ClipRuleConfig | None = key(None, "a clip range that follows training")
    c_clip: float | None = key(None, "dual clip: an advantage below 0 counts at most this many times", gt=1)
    use_sapo_loss: bool = key(False, "another word for gate: soft")
    sapo_tau_pos: float = key(1.0, "soft: temperature for positive advantages", gt=0)
    sapo_tau_neg: float = key(1.05, "soft: temperature for negative advantages", gt=0)
    recompute_logprob: bool = key(
        True, "clip around the trainer's own old log-probs; false: around the sampler's (one coupled ratio)"
    )
    prox_logp_method: Literal["recompute", "loglinear"] = key(
        "recompute", "how the trainer's old log-probs are found: a scoring pass, or interpolated by weight versions"
    )
    use_decoupled_loss: bool = key(
        False, "weigh tokens by old policy over sampler; bounded as `correction` says, else masked above 5"
    )
    correction: CorrectionConfig | None = key(None, "what is done about tokens that another policy sampled")
    loss_agg_mode: Aggregation = key("token_mean", "how the losses of tokens become one number")
    loss_agg_constant: float | None = key(
        None, "seq_mean_token_sum_norm: the constant length C; null: max_new_tokens, the largest of all stages", gt=0
    )
    count_empty_rows: bool = key(True, "sequence and prompt means count samples without any token in the loss")
    kl_penalty_coef: float = key(0.0, "coefficient of KL(old policy || new) in the loss: PPO's penalty", ge=0)
    kl_penalty_estimator: Literal["k1", "k2", "k3", "abs", "full"] = key(
        "k3", "estimator of that KL; full: the whole vocabulary, against a frozen copy of the policy"
    )
    kl_loss_coef: float = key(0.0, "coefficient of the KL to the reference in the loss", ge=0)
    kl_loss_estimator: Literal["k1", "k2", "k3", "abs", "k3_value_k2_grad", "full"] = key(
        "k3",
        "estimator of the KL in the loss; full: the whole vocabulary (a reference in bfloat16 is never quite the policy)",
    )
    kl_loss_importance_corrected: bool = key(
        False, "multiply the KL in the loss by the token ratio: right on tokens of the old policy too"
    )
    kl_controller: KlControllerConfig | None = key(None, "a rule that moves the KL coefficient")
    entropy_coef: float = key(0.0, "weight of the entropy bonus")
    adaptive_entropy: AdaptiveEntropyConfig | None = key(None, "an entropy bonus that follows a target")
    dynamic_sampling: DynamicSampling | None = key(None, "filter groups and refill the batch")
    mixed_group_retry: int | None = key(
        None, "sample a prompt's whole group again, at most this often, until it has a right and a wrong sample", ge=1
    )
