"""The configuration of a case as keys of the product, and variants of a case by the names that expected fields have.

Left out: anything that is computed. A name that is not known is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from conforming.case import Case, Fields, Unknown

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.algo.keys import AlgorithmKeys, CorrectionConfig, NormConfig
from partita.algo.value import ClippedSquare

GROUP_MEAN: dict[str, Any] = {"mean_level": "group"}
LOO: dict[str, Any] = {"mean_level": "group", "mean_leave1out": True}
BASELINES: dict[str | None, dict[str, Any]] = {
    None: {"mean_level": None}, "none": {"mean_level": None}, "critic": {"mean_level": None},
    "batch_mean": {"mean_level": "batch"}, "group_mean": GROUP_MEAN, "process_group": GROUP_MEAN,
    "loo": LOO, "group_loo": LOO, "batch_loo": {"mean_level": "batch", "mean_leave1out": True},
    "ema": {"mean_level": "ema"},
}  # fmt: skip
SCALES: dict[str | None, str | None] = {
    None: None, "none": None, "group_std": "group", "batch_std": "batch", "ema_std": "ema", "whiten_tokens": "batch",
}  # fmt: skip
GATES: dict[str, dict[str, Any]] = {
    "reinforce": {"importance_sampling_level": "none"},
    "ppo_clip": {"gate": "min_clip"}, "ppo_min_clip": {"gate": "min_clip"}, "dual_clip": {"gate": "min_clip"},
    "clip_no_min": {"gate": "clip_without_min"},
    "sapo": {"gate": "soft"}, "soft_gate": {"gate": "soft"},
    "gspo": {"gate": "min_clip", "importance_sampling_level": "sequence"},
    "gspo_token": {"gate": "min_clip", "importance_sampling_level": "sequence_token"},
    "cispo": {"gate": "cispo"},
    "ppo_penalty": {"gate": "open"}, "kl_penalty": {"gate": "open"}, "none": {"gate": "open"}, "open": {"gate": "open"},
}  # fmt: skip
LEVELS = {
    "none": "none", "token": "token",
    "sequence": "sequence", "sequence_mean": "sequence",
    "sequence_token": "sequence_token", "sequence_mean_sg_token": "sequence_token",
    "sequence_product": "sequence_product", "product": "sequence_product",
}  # fmt: skip
AGGREGATIONS = {
    "token_mean": "token_mean", "seq_mean_token_mean": "seq_mean_token_mean", "seq_mean_token_sum": "seq_mean_token_sum",
    "seq_mean_token_sum_norm": "seq_mean_token_sum_norm", "prompt_token_mean": "prompt_token_mean",
    "seq_mean": "seq_mean_token_mean",  # one loss per sequence: the same on each of its tokens
}  # fmt: skip
TRUNCATION = {
    "none": "none", "overlong_filter": "mask_loss", "mask_loss": "mask_loss", "before": "adv_mask_before",
    "adv_mask_before": "adv_mask_before", "after": "adv_mask_after", "adv_mask_after": "adv_mask_after",
}  # fmt: skip
EPS_MODES = {"add_to_std": "add", "add": "add", "inside_sqrt": "inside_sqrt"}
UNITS = {None: None, "row": "sequence", "sequence": "sequence", "token": "token"}
YES_NO = {True: True, False: False}
NUMBER = r"(-?\d+(?:\.\d+)?(?:[eE]-?\d+)?)"
WHITEN = re.compile(rf"ddof(?P<ddof>[01])_(?P<mode>rsqrt|clamped|add_eps)(?:_{NUMBER})?")
REWARD = re.compile(
    r"(?:(?P<scale>-?[\d.]+) ?\* ?)?r(?: ?(?P<bias>[+-] ?[\d.]+))?"
    r"(?: ?\+ ?(?:(?P<factor>[\d.]+)\*)?soft_overlong\(L_max=(?P<limit>\d+), ?L_cache=(?P<window>\d+)\))?"
)


@dataclass(frozen=True)
class Shaping:
    """a·r + b + f·soft_overlong(limit, window); no penalty for a window of None."""

    scale: float
    bias: float
    factor: float
    limit: int
    window: int | None


@dataclass(frozen=True)
class Kl:
    """Which of the three places a KL coefficient is for, its value and estimator."""

    place: str
    coef: float
    estimator: str
    corrected: bool


def algorithm_of(case: Case, rows: int, width: int) -> Algorithm:
    """The product's parts for a case of so many rows, so many places wide."""
    keys = AlgorithmKeys(
        **_reward(case),
        **_norm(case),
        **_credit(case),
        **_ratio(case.config),
        **_correction(case),
        **_reduce(case.config),
        **_kl(case),
        truncation=case.config.choice("truncation", TRUNCATION, "none"),
        recompute_logprob=case.config.get("correction") != "coupled",
        prox_logp_method="loglinear" if interpolated(case) else "recompute",
    )
    longest = _shaping(case).limit if keys.overlong_reward_penalty else max(width, 1)
    algorithm = compose(keys, n_samples=max(2, rows), max_new_tokens=longest)
    if "returns" in case.inputs or algorithm.value is not None:
        half = case.config.choice("half", YES_NO, True)
        case.config.get("vf_coef")  # of a joint loss, which is never asked for: the value loss is before it
        algorithm = replace(algorithm, value=ClippedSquare(case.config.get("value_clip"), half))
    return algorithm


def interpolated(case: Case) -> bool:
    """Whether the clip centre is made of versions: there are no log-probs of the proximal policy."""
    return "versions" in case.inputs and "behaviour_logp" in case.inputs and "old_logp" not in case.inputs


def _shaping(case: Case) -> Shaping:
    """Read from words."""
    text = case.config.get("reward", "r")
    found = REWARD.fullmatch(str(text))
    if found is None:
        raise Unknown(f"config.reward {text!r} is not of the form a*r+b + soft_overlong(L_max=n,L_cache=n)")
    usual = (("scale", "1"), ("bias", "0"), ("factor", "1"))
    numbers = {name: float((found[name] or value).replace(" ", "")) for name, value in usual}
    if numbers["scale"] == 0:
        raise Unknown("config.reward does not depend on r")
    window = None if found["window"] is None else int(found["window"])
    return Shaping(**numbers, limit=int(found["limit"] or 0), window=window)


def _reward(case: Case) -> dict[str, Any]:
    """The product scales last: (r + f·p + b)·a."""
    of = _shaping(case)
    shape = {"reward_scaling": of.scale, "reward_bias": of.bias / of.scale}
    if of.window is None:
        return shape
    overlong = {"overlong_reward_penalty": True, "overlong_tokens": of.window}
    return shape | overlong | {"overlong_penalty_factor": of.factor / of.scale}


def _norm(case: Case) -> dict[str, Any]:
    config = case.config
    if "whiten" in config:
        return {"adv_norm": _whiten(config)}
    named = "baseline" in config or "scale" in config
    if not named and case.kind != "advantage" and "step_rewards" not in case.inputs:
        return {}
    running = "ema_var" in case.inputs or "ema" in str(config.values.get("baseline"))
    scale = config.choice("scale", SCALES, None if named else "ema_std" if running else "group_std")
    ddof = config.get("ddof", 1)
    if ddof not in (0, 1):
        raise Unknown(f"config.ddof {ddof} is not known; choices: 0, 1")
    of = config.choice("batch_std_of", {"raw": "raw", "centered": "centered"}, "raw")
    norm = NormConfig(
        **config.choice("baseline", BASELINES, None if named else "group_mean"),
        std_level=scale,
        std_unbiased=ddof == 1,
        eps=config.get("eps", 1e-6),
        eps_mode=config.choice("eps_mode", EPS_MODES, "inside_sqrt" if running else "add_to_std"),
        # a deviation within a group is not changed by what was subtracted, unless that left a value out of its mean
        std_of=of if scale == "batch" else "raw",
        singleton=config.choice("singleton", {"zero": "zero", "raw": "raw"}, "zero"),
        unit=config.choice("unit", UNITS, None),
    )
    return {"adv_norm": norm}


def _whiten(config: Fields) -> NormConfig:
    """Peers' whitenings: rsqrt(var + eps); rsqrt(max(var, eps)), which for any spread worth dividing by is eps = 0; std + eps."""
    text = config["whiten"]
    found = WHITEN.fullmatch(str(text))
    if found is None:
        raise Unknown(f"config.whiten {text!r} is not known, as ddof1_rsqrt_1e-8, ddof0_clamped or ddof1_add_eps are")
    usual = {"rsqrt": 1e-8, "clamped": 0.0, "add_eps": 1e-5}[found["mode"]]
    eps = 0.0 if found["mode"] == "clamped" else float(found[3] or config.get("eps", usual))
    mode = "inside_sqrt" if found["mode"] == "rsqrt" else "add"
    return NormConfig("batch", "batch", std_unbiased=found["ddof"] == "1", eps=eps, eps_mode=mode)


def _credit(case: Case) -> dict[str, Any]:
    config, inputs = case.config, case.inputs
    discount = config.get("gamma", 0.0 if "x" in inputs else 1.0)  # values to be whitened stand for themselves
    if "step_rewards" in inputs:
        return {"credit": "process"}
    outcome = config.get("credit") == "outcome" or config.get("baseline", "critic") != "critic"
    if not outcome and ("values" in inputs or "old_values" in inputs):
        bootstrap = "bootstrap_values" in inputs
        return {
            "credit": "gae", "discount": discount, "gae_lambda": config.get("lam", 1.0), "bootstrap_truncated": bootstrap,
        }  # fmt: skip
    if not outcome and ("token_rewards" in inputs or "x" in inputs or "gamma" in config or config.get("credit")):
        return {"credit": "reward_to_go", "discount": discount}
    return {}


def _ratio(config: Fields) -> dict[str, Any]:
    found = dict(config.choice("loss", GATES, "ppo_clip"))
    if "ratio_level" in config:
        found["importance_sampling_level"] = config.choice("ratio_level", LEVELS, "token")
    if found.get("importance_sampling_level") == "none":
        found["gate"] = "open"
    return found | {
        "eps_clip": config.get("eps_low", 0.2),
        "eps_clip_higher": config.get("eps_high", config.get("eps_low", 0.2)),
        "c_clip": config.get("dual_clip_c"),
        "sapo_tau_pos": config.get("tau_pos", 1.0),
        "sapo_tau_neg": config.get("tau_neg", 1.05),
    }


def _correction(case: Case) -> dict[str, Any]:
    config = case.config
    kinds: dict[str | None, dict[str, Any] | None] = {
        None: None, "none": None, "coupled": None,
        "decoupled": {"kind": "decoupled", "level": "token"},
        "tis": {"kind": "tis", "level": "token"}, "tis_token": {"kind": "tis", "level": "token"},
        "tis_sequence": {"kind": "tis", "level": "sequence"},
        "decoupled_sequence": {"kind": "decoupled", "level": "sequence"},
        "icepop": {"kind": "icepop"},
        "mis_geo": {"kind": "mis", "level": "geometric"}, "mis_product": {"kind": "mis", "level": "sequence"},
        "opsm": {"kind": "opsm"}, "m2po": {"kind": "m2po"},
    }  # fmt: skip
    found = config.choice("correction", kinds, "m2po" if "threshold" in config else None)
    if found is None:
        return {}
    denominator = config.choice("denominator", {"original": "original", "kept": "kept"}, "original")
    given: dict[str, Any] = {"denominator": denominator}
    if found["kind"] in ("decoupled", "tis"):
        cap = config.get("cap", config.get("high"))
        given |= {"high": float("inf") if cap is None else cap}
        given |= {"action": config.choice("cap_action", {"clamp": "clamp", "mask": "mask"}, "clamp")}
        if given["action"] == "mask":
            found = found | {"kind": "decoupled"}
    elif found["kind"] in ("icepop", "mis"):
        given |= {"low": config.get("low", 0.0), "high": config.get("high", float("inf"))}
    else:
        given |= {"threshold": config[{"opsm": "delta", "m2po": "threshold"}[found["kind"]]]}
    return {"correction": CorrectionConfig(**(found | given))}


def _reduce(config: Fields) -> dict[str, Any]:
    return {
        "loss_agg_mode": config.choice("aggregation", AGGREGATIONS, "token_mean"),
        "loss_agg_constant": config.get("C"),
        "count_empty_rows": config.choice("count_empty", YES_NO, config.choice("count_empty_rows", YES_NO, True)),
    }


def kl_of(case: Case) -> Kl | None:
    """The KL term of a case; None without one."""
    config, inputs = case.config, case.inputs
    if "kl_coef" not in config and "beta" not in config:
        return None
    directions = {None: None, "old||new": "step", "old||pi": "step", "pi||ref": "loss", "new||ref": "loss"}
    places = {None: None, "none": "none", "loss": "loss", "reward": "reward"}
    penalty = config.get("loss") in ("ppo_penalty", "kl_penalty")
    named = config.choice("kl_placement", places, None)
    place = config.choice("kl_direction", directions, None) or ("step" if penalty else None)
    if place != "step":
        place = named or ("reward" if "rewards" in inputs and "kl_coef" not in config else "loss")
    usual = "k1" if place == "reward" else "k3"
    names = ("k1", "k2", "k3", "abs", "k3_value_k2_grad", "full")
    estimator = config.choice("kl_estimator", {name: name for name in names}, usual)
    corrected = config.choice("kl_is_correction", YES_NO, False)
    return Kl(place, config.get("kl_coef", config.get("beta")), estimator, corrected)


def _kl(case: Case) -> dict[str, Any]:
    kl = kl_of(case)
    if kl is None or kl.place == "none":
        return {}
    if kl.place == "reward":
        return {"kl_ctl": kl.coef, "kl_estimator": kl.estimator}
    if kl.place == "step":
        return {"kl_penalty_coef": kl.coef, "kl_penalty_estimator": kl.estimator}
    return {
        "kl_loss_coef": kl.coef, "kl_loss_estimator": kl.estimator, "kl_loss_importance_corrected": kl.corrected,
    }  # fmt: skip
