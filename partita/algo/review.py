"""What is without effect, assumed or unwise in a set of algorithm keys that go together.

Left out: what is wrong. `conflicts` refuses that, and the config loader has judged single keys.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from partita.algo.conflicts import (
    DECOUPLED_CAP,
    MASKS_ONLY,
    PER_TOKEN,
    correction_bounds,
    gate_of,
    kl_target,
    norms,
    overlong_window,
)
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

Section = (
    AlgorithmKeys | NormConfig | EmaConfig | DynamicSampling | BalanceConfig | ClipRuleConfig | KlControllerConfig
    | AdaptiveEntropyConfig | CorrectionConfig
)  # fmt: skip


@dataclass(frozen=True)
class Review:
    """Lines to show at the start: values without effect, values that were filled in, and advice."""

    inactive: tuple[str, ...]
    assumed: tuple[str, ...]
    advice: tuple[str, ...]


def review(keys: AlgorithmKeys, *, n_samples: int, max_new_tokens: int) -> Review:
    """Look over keys that `compose` accepts.

    `inactive` lists keys whose value was changed from its default and does nothing, and names the switch that is
    missing.
    """
    assumed: list[str] = []
    if keys.overlong_reward_penalty and keys.overlong_tokens is None:
        window = overlong_window(keys, max_new_tokens)
        assumed.append(f"actor.overlong_tokens {window}: a fifth of gconfig.max_new_tokens {max_new_tokens}")
    if keys.loss_agg_mode == "seq_mean_token_sum_norm" and keys.loss_agg_constant is None:
        assumed.append(f"actor.loss_agg_constant {max_new_tokens}: gconfig.max_new_tokens")
    assumed += _assumed_correction(keys)
    rule = keys.kl_controller
    if rule is not None and rule.type in ("ziegler", "penalty") and rule.target is None:
        assumed.append(f"actor.kl_controller.target {kl_target(rule):g}")
    return Review(tuple(_inactive(keys)), tuple(assumed), tuple(_advice(keys)))


def of_starting_samples(keys: AlgorithmKeys) -> tuple[str, ...]:
    """A warning where samples of the starting policy (`rollout.policy: starting`) are learned from as if they were the
    policy's own; nothing for RFT, and where the ratio or a weight is against the sampler.
    """
    weighed = keys.use_decoupled_loss or (keys.correction is not None and keys.correction.kind not in MASKS_ONLY)
    level, begin = keys.importance_sampling_level, "rollout.policy starting: samples are of the starting policy"
    if weighed or (level != "none" and not keys.recompute_logprob):
        return ()
    if level != "none":
        return (
            f"{begin}, and actor.importance_sampling_level {level} takes them for samples of the policy before the step. Set "
            "actor.use_decoupled_loss=true or actor.recompute_logprob=false, or algorithm=rft",
        )
    if keys.reward_threshold is None or keys.adv_norm is not None:
        return (
            f"{begin}, and nothing weighs them (actor.importance_sampling_level none): those with advantages below 0 are pushed "
            "down ever further, however rare they have become. algorithm=rft learns from right ones only",
        )
    return ()


def _assumed_correction(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    named = keys.correction
    if keys.use_decoupled_loss and (named is None or named.kind in MASKS_ONLY):
        found.append(f"actor.use_decoupled_loss true: behaviour weights above {DECOUPLED_CAP:g} are masked")
    if named is None:
        return found
    limits = correction_bounds(named)
    if named.kind in MASKS_ONLY and named.threshold is None:
        found.append(f"actor.correction.threshold {limits.threshold:g}")
    if named.kind == "tis" and named.high is None:
        found.append(f"actor.correction.high {limits.cap:g}")
    if named.kind in ("icepop", "mis") and (named.low is None or named.high is None):
        found.append(f"actor.correction: ratios ({limits.level}) inside {limits.low:g} to {limits.high:g}")
    return found


def _inactive(keys: AlgorithmKeys) -> list[str]:
    found = _changed(keys, "actor", _sleeping_keys(keys), AlgorithmKeys())
    if keys.correction is not None:
        found += _changed(
            keys.correction, "actor.correction", _sleeping_correction(keys.correction), CorrectionConfig()
        )
    if keys.eps_clip_rule is not None and keys.eps_clip_rule.type == "iqr":
        sleeping: dict[str, str] = dict.fromkeys(("up", "down", "factor"), "needs type: clip_fraction")
        found += _changed(keys.eps_clip_rule, "actor.eps_clip_rule", sleeping, ClipRuleConfig())
    if keys.kl_controller is not None:
        default = KlControllerConfig()
        found += _changed(keys.kl_controller, "actor.kl_controller", _sleeping_kl_rule(keys.kl_controller), default)
    for path, norm in norms(keys):
        found += _changed(norm, path, _sleeping_norm(norm), NormConfig())
        if norm.mean_level is None and norm.std_level is None:
            found.append(f"{path}: neither mean_level nor std_level is set, so it does nothing")
    filtered = keys.dynamic_sampling
    if filtered is not None and filtered.filter != "mixed_outcomes" and keys.mixed_group_retry is None:
        sleeping = {"correct_threshold": "needs filter: mixed_outcomes"}
        found += _changed(filtered, "actor.dynamic_sampling", sleeping, DynamicSampling())
    return found


def _sleeping_keys(keys: AlgorithmKeys) -> dict[str, str]:
    """Keys that have no effect beside the others, with the reason."""
    return _sleeping_shape(keys) | _sleeping_credit(keys) | _sleeping_objective(keys)


def _sleeping_shape(keys: AlgorithmKeys) -> dict[str, str]:
    sleeping: dict[str, str] = {}
    if not keys.overlong_reward_penalty:
        for name in ("overlong_tokens", "overlong_penalty_factor"):
            sleeping[name] = "needs actor.overlong_reward_penalty: true"
    if keys.kl_ctl == 0:
        sleeping["kl_estimator"] = "needs actor.kl_ctl above 0"
    if keys.credit == "process":
        shaping = (
            "reward_threshold", "overlong_reward_penalty",
            "reward_bias", "reward_scaling", "reward_clip", "reward_norm", "reward_norm_per_part",
        )  # fmt: skip
        sleeping |= dict.fromkeys(shaping, "actor.credit process sums step rewards only")
    return sleeping


def _sleeping_credit(keys: AlgorithmKeys) -> dict[str, str]:
    if keys.credit == "gae":
        return {}
    return dict.fromkeys(
        ("gae_lambda", "bootstrap_truncated", "value_eps_clip", "value_loss_half"), "needs actor.credit: gae"
    )


def _sleeping_objective(keys: AlgorithmKeys) -> dict[str, str]:
    sleeping: dict[str, str] = {}
    gate = gate_of(keys)
    if keys.importance_sampling_level == "none":
        held = ("eps_clip", "eps_clip_higher", "c_clip", "gate")
        sleeping |= dict.fromkeys(held, "needs actor.importance_sampling_level: token")
    else:
        fields_of = set(GATES[gate].__dataclass_fields__)
        filled = {"eps_clip": "low", "eps_clip_higher": "high", "c_clip": "dual"}
        for name, part in filled.items():
            if part not in fields_of:
                sleeping[name] = f"actor.gate {gate} does not have it"
    if keys.importance_sampling_level == "none" and not _reads_center(keys):
        sleeping |= dict.fromkeys(("recompute_logprob", "prox_logp_method"), "no ratio is taken against the old policy")
    rule = keys.eps_clip_rule
    if rule is not None and rule.type == "iqr" and keys.eps_clip_higher is None:
        sleeping["eps_clip"] = "actor.eps_clip_rule sets the range"
    if keys.correction is not None and keys.correction.kind not in MASKS_ONLY:
        sleeping["use_decoupled_loss"] = f"actor.correction.kind {keys.correction.kind} is the weight"
    if gate != "soft":
        sleeping |= dict.fromkeys(("sapo_tau_pos", "sapo_tau_neg"), "needs actor.use_sapo_loss: true")
    if not keys.recompute_logprob:
        sleeping["prox_logp_method"] = "needs actor.recompute_logprob: true"
    if keys.kl_loss_estimator == "full":
        sleeping["kl_loss_importance_corrected"] = "the whole vocabulary needs no weight for the sampled token"
    if keys.kl_penalty_coef == 0:
        sleeping["kl_penalty_estimator"] = "needs actor.kl_penalty_coef above 0"
    if keys.kl_loss_coef == 0:
        sleeping |= dict.fromkeys(
            ("kl_loss_estimator", "kl_loss_importance_corrected"), "needs actor.kl_loss_coef above 0"
        )
    if keys.loss_agg_mode != "seq_mean_token_sum_norm":
        sleeping["loss_agg_constant"] = "needs actor.loss_agg_mode: seq_mean_token_sum_norm"
    if keys.loss_agg_mode == "token_mean":
        sleeping["count_empty_rows"] = "token_mean has no sequences to count"
    return sleeping


def _reads_center(keys: AlgorithmKeys) -> bool:
    """Whether something beside the ratio is taken against the old policy."""
    leash = keys.kl_loss_coef > 0 and keys.kl_loss_importance_corrected and keys.kl_loss_estimator != "full"
    step = keys.kl_penalty_coef > 0 and keys.kl_penalty_estimator != "full"
    return leash or step or keys.use_decoupled_loss or keys.correction is not None


def _sleeping_correction(named: CorrectionConfig) -> dict[str, str]:
    sleeping: dict[str, str] = {}
    if named.kind in MASKS_ONLY:
        sleeping |= dict.fromkeys(("level", "low", "high"), f"kind {named.kind} has a threshold only")
    else:
        sleeping["threshold"] = "needs kind: opsm or m2po"
    if named.kind not in ("icepop", "mis"):
        sleeping["low"] = "needs kind: icepop or mis"
    if named.kind != "decoupled":
        sleeping["action"] = "needs kind: decoupled"
    elif named.high is None:
        sleeping["action"] = "needs high: the weight is not capped"
    if named.kind == "tis" or (named.kind == "decoupled" and (named.action == "clamp" or named.high is None)):
        sleeping["denominator"] = f"kind {named.kind} masks nothing"
    return sleeping


def _sleeping_kl_rule(rule: KlControllerConfig) -> dict[str, str]:
    used = {
        "fixed": set[str](),
        "ziegler": {"target", "horizon"},
        "penalty": {"target", "min", "max"},
        "trend": {"min", "max", "window", "kl_slope", "reward_slope", "factor"},
    }[rule.type]
    idle = [item.name for item in fields(rule) if item.name != "type" and item.name not in used]
    return dict.fromkeys(idle, f"type {rule.type} does not use it")


def _sleeping_norm(norm: NormConfig) -> dict[str, str]:
    sleeping: dict[str, str] = {}
    if norm.mean_level is None:
        sleeping["mean_leave1out"] = "needs mean_level"
    if norm.mean_level == "ema":
        sleeping["mean_leave1out"] = "a running mean leaves nothing out"
    if norm.std_level is None:
        sleeping |= dict.fromkeys(("std_unbiased", "eps", "eps_mode", "std_of"), "needs std_level")
    elif norm.std_level == "ema":
        sleeping |= dict.fromkeys(("std_unbiased", "std_of"), "a running variance is over all values, by n")
    elif norm.mean_level is None or (
        not norm.mean_leave1out and (norm.mean_level, norm.std_level) != ("group", "batch")
    ):
        sleeping["std_of"] = "what is subtracted is the same for all values of a deviation, so it changes none"
    if "ema" not in (norm.mean_level, norm.std_level):
        sleeping["ema"] = "needs mean_level or std_level: ema"
    if not {"batch", "group"} & {norm.mean_level, norm.std_level}:
        sleeping["singleton"] = "needs mean_level or std_level: group or batch"
    return sleeping


def _changed(section: Section, path: str, sleeping: dict[str, str], default: Section) -> list[str]:
    found: list[str] = []
    for item in fields(section):
        value = getattr(section, item.name)
        if item.name in sleeping and value != getattr(default, item.name):
            found.append(f"{path}.{item.name} {value}: no effect, {sleeping[item.name]}")
    return found


def _advice(keys: AlgorithmKeys) -> list[str]:
    return [*_on_statistics(keys), *_on_kl(keys), *_on_ratios(keys), *_on_clip_rule(keys)]


def _on_statistics(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    if keys.reward_norm is not None and keys.adv_norm is not None and not keys.reward_norm_per_part:
        found.append(
            "actor.reward_norm and actor.adv_norm both normalise: the second undoes part of what the first is for"
        )
    norm = keys.adv_norm
    by_group = norm is not None and ("group" in (norm.mean_level, norm.std_level) or norm.mean_leave1out)
    if keys.credit in PER_TOKEN and norm is not None and by_group:
        found.append(
            f"actor.adv_norm of a group with actor.credit {keys.credit}: credit varies by token, so the statistics are of the "
            "group's tokens, and long samples count for more; a group's baseline is for credit: outcome"
        )
    if keys.adv_norm is not None and keys.adv_norm.unit == "token" and keys.adv_norm.mean_leave1out:
        found.append(
            "actor.adv_norm.mean_leave1out with unit token leaves out one token, not one sample: this is not RLOO"
        )
    found += _on_threshold(keys)
    if keys.overlong_reward_penalty:
        found.append(
            f"actor.overlong_penalty_factor {keys.overlong_penalty_factor} is in units of the task's reward: the paper "
            "takes 1 for rewards of -1 and 1, which is 0.5 for rewards of 0 and 1"
        )
    return found


def _on_threshold(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    right, sampling = keys.reward_threshold, keys.dynamic_sampling
    if right is None or keys.credit == "process":
        return found
    if sampling is not None and sampling.filter == "mixed_outcomes" and sampling.correct_threshold != right:
        found.append(
            f"actor.reward_threshold {right:g} with actor.dynamic_sampling.correct_threshold {sampling.correct_threshold:g}: "
            "groups are filtered by another idea of right than samples are learned by"
        )
    if sampling is not None and sampling.filter == "mixed_rewards":
        found.append(
            f"actor.reward_threshold {right:g} with actor.dynamic_sampling.filter mixed_rewards: raw rewards may differ in a "
            "group whose samples are all right or all wrong; mixed_outcomes looks at the threshold"
        )
    return found


def _on_kl(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    if keys.kl_loss_coef > 0 and keys.kl_loss_estimator == "k1":
        found.append(
            "actor.kl_loss_estimator k1 has no gradient in expectation as a loss: it adds noise and holds nothing. "
            "k2 and k3_value_k2_grad descend KL(policy || reference), k3 descends KL(reference || policy)"
        )
    if keys.kl_ctl > 0 and keys.kl_estimator != "k1":
        found.append(f"actor.kl_estimator {keys.kl_estimator} in the reward is not the gradient of a KL; only k1 is")
    if keys.kl_ctl > 0 and keys.adv_norm is not None and keys.adv_norm.std_level is not None:
        found.append(
            f"actor.kl_ctl {keys.kl_ctl} with actor.adv_norm.std_level {keys.adv_norm.std_level}: the KL is part of "
            "the deviation it is divided by, so the coefficient has no fixed meaning"
        )
    return found


def _on_ratios(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    by_sequence = keys.importance_sampling_level in ("sequence", "sequence_token") and gate_of(keys) == "min_clip"
    if by_sequence and keys.eps_clip >= 0.05 and keys.eps_clip_rule is None:
        found.append(
            f"actor.eps_clip {keys.eps_clip} with actor.importance_sampling_level {keys.importance_sampling_level}: a "
            "mean over a response moves far less than a token; GSPO's range is 3e-4 to 4e-4, this one never clips"
        )
    if keys.importance_sampling_level == "sequence_product" and gate_of(keys) != "open":
        found.append(
            "actor.importance_sampling_level sequence_product: a product over a response leaves the clip range within a few "
            "dozen tokens; the geometric mean is `sequence`"
        )
    if not keys.recompute_logprob and keys.importance_sampling_level != "none":
        found.append(
            "actor.recompute_logprob false: the ratio holds the sampler's arithmetic too, and is not 1 on the first step"
        )
    return found


def _on_clip_rule(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    rule = keys.eps_clip_rule
    if rule is not None and rule.type == "iqr" and not rule.min <= keys.eps_clip <= rule.max:
        found.append(
            f"actor.eps_clip_rule {rule.min:g} to {rule.max:g} takes the place of actor.eps_clip {keys.eps_clip:g}: another "
            "order of size; set min and max around it"
        )
    if rule is not None and rule.type == "iqr" and keys.adv_norm is not None and keys.adv_norm.std_level == "group":
        found.append(
            "actor.eps_clip_rule.type iqr with actor.adv_norm.std_level group: divided by their own deviation, advantages "
            "have nearly the same spread in every step; std_level null lets it show"
        )
    return found
