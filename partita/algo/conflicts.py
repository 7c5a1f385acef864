"""Keys that exclude each other, and the values that stand for a null.

Left out: types, choices and bounds of single keys, which the config loader has judged, and what is merely unwise
(`review`).
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.algo.correct import Bounded
from partita.algo.gate import GATES
from partita.algo.keys import AlgorithmKeys, CorrectionConfig, KlControllerConfig, NormConfig
from partita.algo.kl_control import Place

DECOUPLED_CAP = 5.0
"""Behaviour weights above this are masked by `use_decoupled_loss` alone (AReaL's default)."""
MASKS_ONLY = ("opsm", "m2po")
"""Corrections that drop tokens without weighing the others."""
LEVELS = {
    "decoupled": ("token", "sequence"), "tis": ("token", "sequence"), "icepop": ("token",), "mis": ("geometric", "sequence"),
}  # fmt: skip
"""What each correction can bound."""
PER_TOKEN = ("reward_to_go", "gae")
"""Credit that differs from token to token."""


@dataclass(frozen=True)
class Limits:
    """A correction's bounds with every null filled in; what its kind does not use is unused."""

    level: Bounded
    low: float
    high: float
    cap: float | None
    threshold: float


def norms(keys: AlgorithmKeys) -> list[tuple[str, NormConfig]]:
    """The normalisations that are configured, with the path of each."""
    named = (("actor.reward_norm", keys.reward_norm), ("actor.adv_norm", keys.adv_norm))
    return [(path, norm) for path, norm in named if norm is not None]


def overlong_window(keys: AlgorithmKeys, max_new_tokens: int) -> int:
    """The penalty's window in tokens, at least 1; unset, DAPO's proportion of 4096 in 20480."""
    return max(1, max_new_tokens // 5) if keys.overlong_tokens is None else keys.overlong_tokens


def correction_bounds(named: CorrectionConfig) -> Limits:
    """The bounds of a correction: as given, else as its paper or the released code has them."""
    level = named.level or ("geometric" if named.kind == "mis" else "token")
    low, high = {"token": (0.5, 5.0), "geometric": (0.99, 1.01), "sequence": (0.5, 2.0)}[level]
    cap = 2.0 if named.kind == "tis" and named.high is None else named.high
    threshold = 0.04 if named.kind == "m2po" else 0.1
    return Limits(
        level,
        low if named.low is None else named.low,
        high if named.high is None else named.high,
        cap,
        threshold if named.threshold is None else named.threshold,
    )


def gate_of(keys: AlgorithmKeys) -> str:
    """The gate by name; `use_sapo_loss` is another word for one."""
    return "soft" if keys.use_sapo_loss else keys.gate


@dataclass(frozen=True)
class KlPlace:
    """Where a KL stands: in the reward, in the loss, or from the old policy of the step; its key and coefficient."""

    place: Place
    key: str
    coef: float


def every_kl(keys: AlgorithmKeys) -> tuple[KlPlace, KlPlace, KlPlace]:
    """All three places."""
    return (
        KlPlace("reward", "kl_ctl", keys.kl_ctl),
        KlPlace("loss", "kl_loss_coef", keys.kl_loss_coef),
        KlPlace("step", "kl_penalty_coef", keys.kl_penalty_coef),
    )


def kl_places(keys: AlgorithmKeys, rule: str) -> list[KlPlace]:
    """The coefficients above 0 that a rule can move: Ziegler's holds a reference, PPO's first of all its own penalty."""
    used = [place for place in every_kl(keys) if place.coef > 0]
    steps = [place for place in used if place.place == "step"]
    references = [place for place in used if place.place != "step"]
    if rule == "ziegler":
        return references
    return (steps or references) if rule == "penalty" else used


def kl_target(rule: KlControllerConfig) -> float:
    """A rule's target: as given, else Ziegler's 6 nats per sequence or PPO's 0.01 per token."""
    return rule.target or (6.0 if rule.type == "ziegler" else 0.01)


def refuse_conflicts(keys: AlgorithmKeys, n_samples: int, max_new_tokens: int) -> None:
    """Raise ValueError with one line per pair of keys that exclude each other, naming both keys and values."""
    found = [
        *_norm_conflicts(keys, n_samples), *_credit_conflicts(keys), *_gate_conflicts(keys), *_off_policy_conflicts(keys),
        *_kl_conflicts(keys),
    ]  # fmt: skip
    window = overlong_window(keys, max_new_tokens)
    if keys.overlong_reward_penalty and window >= max_new_tokens:
        found.append(
            f"actor.overlong_tokens {window} must be below gconfig.max_new_tokens {max_new_tokens}: "
            "every response would be punished"
        )
    if keys.dynamic_sampling is not None and n_samples == 1:
        found.append(
            f"actor.dynamic_sampling.filter {keys.dynamic_sampling.filter} drops every group with gconfig.n_samples 1: "
            "raise n_samples or set dynamic_sampling: null"
        )
    if keys.mixed_group_retry is not None and n_samples == 1:
        found.append(
            f"actor.mixed_group_retry {keys.mixed_group_retry} with gconfig.n_samples 1: one sample is never right and wrong"
        )
    if found:
        raise ValueError("\n".join(found))


def _norm_conflicts(keys: AlgorithmKeys, n_samples: int) -> list[str]:
    found: list[str] = []
    for path, norm in norms(keys):
        if norm.group_size is not None and norm.group_size != n_samples:
            found.append(
                f"{path}.group_size {norm.group_size} must equal gconfig.n_samples {n_samples}; "
                "leave it out, groups are known by their prompt"
            )
        for name in ("mean_level", "std_level"):
            if getattr(norm, name) == "group" and n_samples == 1 and norm.singleton == "zero":
                found.append(
                    f"{path}.{name} group with gconfig.n_samples 1: a group of one has nothing to compare with, all "
                    f"advantages would be 0. Raise n_samples, set {path}.{name}: batch, or {path}.singleton: raw"
                )
    if keys.reward_norm is not None and keys.reward_norm.unit == "token":
        found.append(
            "actor.reward_norm.unit token: a reward is one number per sequence; token statistics are adv_norm's"
        )
    if sum(runs(norm) for _, norm in norms(keys)) == 2:
        found.append(
            "actor.reward_norm and actor.adv_norm both have a level ema: keep one of the two running statistics"
        )
    if keys.reward_norm_per_part and keys.reward_norm is None:
        found.append("actor.reward_norm_per_part true needs actor.reward_norm: the statistics of each part")
    elif keys.reward_norm_per_part and keys.reward_norm is not None and runs(keys.reward_norm):
        found.append("actor.reward_norm_per_part true with a level ema: running statistics are of one number only")
    if keys.reward_norm_per_part and keys.reward_threshold is not None:
        found.append(
            f"actor.reward_threshold {keys.reward_threshold:g} with actor.reward_norm_per_part true: the threshold is on the "
            "sum of the rewards, which the parts' statistics replace. Leave one of the two out"
        )
    return found


def runs(norm: NormConfig) -> bool:
    """Whether a level is a running statistic."""
    return "ema" in (norm.mean_level, norm.std_level)


def _credit_conflicts(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    unit = None if keys.adv_norm is None else keys.adv_norm.unit
    if keys.credit not in PER_TOKEN and keys.discount != 1:
        found.append(
            f"actor.discount {keys.discount} with actor.credit {keys.credit}: nothing is discounted. Set credit: "
            "reward_to_go or gae"
        )
    if keys.credit == "outcome" and keys.kl_ctl > 0 and unit == "token":
        found.append(
            f"actor.kl_ctl {keys.kl_ctl} with actor.adv_norm.unit token: outcome credit subtracts the KL summed over a "
            "sequence, which token statistics weigh by length once more. Set unit: sequence, or credit: reward_to_go"
        )
    if keys.credit in PER_TOKEN and unit == "sequence":
        found.append(
            f"actor.adv_norm.unit sequence with actor.credit {keys.credit}: a sequence has as many numbers as tokens. "
            "Leave unit out, or set credit: outcome"
        )
    if keys.credit == "process" and unit is not None:
        found.append(f"actor.adv_norm.unit {unit} with actor.credit process: statistics are of steps. Leave unit out")
    if keys.credit == "process" and keys.adv_norm is not None and runs(keys.adv_norm):
        found.append("actor.adv_norm has a level ema with actor.credit process: steps are compared within their group")
    if keys.credit == "process" and keys.kl_ctl > 0:
        found.append(
            f"actor.kl_ctl {keys.kl_ctl} with actor.credit process: only step rewards are summed. Use actor.kl_loss_coef"
        )
    return found


def _gate_conflicts(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    gate = gate_of(keys)
    if keys.use_sapo_loss and keys.gate not in ("min_clip", "soft"):
        found.append(f"actor.use_sapo_loss true with actor.gate {keys.gate}: two gates. Leave one of them out")
    if gate == "soft" and keys.use_decoupled_loss:
        key = "actor.use_sapo_loss true" if keys.use_sapo_loss else "actor.gate soft"
        found.append(
            f"{key} with actor.use_decoupled_loss true: the soft gate replaces the clip around the trainer's old policy that "
            "the decoupled loss weighs, and has no derivation with it. Set actor.use_decoupled_loss=false; a weight against "
            "the sampler alone is actor.correction"
        )
    if keys.importance_sampling_level == "none" and gate not in ("min_clip", "open"):
        found.append(
            f"actor.gate {gate} with actor.importance_sampling_level none: there is no ratio to hold. Set "
            "importance_sampling_level: token"
        )
    rule = keys.eps_clip_rule
    if rule is not None and (keys.importance_sampling_level == "none" or not _has_band(gate)):
        held = "importance_sampling_level none" if keys.importance_sampling_level == "none" else f"gate {gate}"
        found.append(f"actor.eps_clip_rule.type {rule.type} with actor.{held}: there is no clip range to move")
    elif rule is not None and rule.type == "clip_fraction" and gate == "cispo":
        found.append("actor.eps_clip_rule.type clip_fraction with actor.gate cispo: it never cuts a token's gradient")
    return found


def _has_band(gate: str) -> bool:
    return {"low", "high"} <= set(GATES[gate].__dataclass_fields__)


def _off_policy_conflicts(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    named = keys.correction
    what = "use_decoupled_loss true" if keys.use_decoupled_loss else f"correction.kind {named.kind if named else ''}"
    corrected = keys.use_decoupled_loss or (named is not None and named.kind != "opsm")
    if corrected and not keys.recompute_logprob:
        found.append(
            f"actor.{what} with actor.recompute_logprob false: the ratio is already taken against the sampler, the weight "
            "would count it twice. Set recompute_logprob: true"
        )
    if named is None:
        return found
    if named.kind == "m2po" and keys.prox_logp_method == "loglinear":
        found.append(
            "actor.correction.kind m2po with actor.prox_logp_method loglinear: its tokens are chosen before the loss, where "
            "this clip centre is not known yet. Set prox_logp_method: recompute"
        )
    if named.denominator == "kept" and (named.kind == "opsm" or keys.prox_logp_method == "loglinear"):
        why = "correction.kind opsm" if named.kind == "opsm" else "prox_logp_method loglinear"
        found.append(
            f"actor.correction.denominator kept with actor.{why}: what is kept is only known in the loss, when the "
            "denominators are fixed. Set denominator: original"
        )
    allowed = LEVELS.get(named.kind, ())
    if allowed and named.level is not None and named.level not in allowed:
        found.append(f"actor.correction.level {named.level} with kind {named.kind}: choices are {', '.join(allowed)}")
    limits = correction_bounds(named)
    if named.kind in ("icepop", "mis") and limits.low > limits.high:
        found.append(f"actor.correction.low {limits.low} is above actor.correction.high {limits.high}")
    return found


def _kl_conflicts(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    if keys.adaptive_entropy is not None and keys.entropy_coef != 0:
        found.append(
            f"actor.entropy_coef {keys.entropy_coef} with actor.adaptive_entropy: the rule sets the coefficient. Give "
            "adaptive_entropy.start instead"
        )
    rule = keys.kl_controller
    if rule is None or rule.type == "fixed":
        return found
    placed, given = kl_places(keys, rule.type), ", ".join(f"actor.{place.key} {place.coef}" for place in every_kl(keys))
    if not placed:
        right = "kl_ctl or kl_loss_coef" if rule.type == "ziegler" else "a KL coefficient"
        found.append(f"actor.kl_controller.type {rule.type} moves {right}, and none is above 0: {given}")
    elif len(placed) > 1:
        found.append(
            f"actor.kl_controller.type {rule.type} moves one coefficient, and more than one is above 0: {given}. Set one to 0"
        )
    return found
