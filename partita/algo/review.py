"""What is wrong, without effect, assumed or unwise in a set of algorithm keys.

Left out: types, choices and bounds of single keys. The config loader has judged those.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from partita.algo.keys import AlgorithmKeys, DynamicSampling, NormConfig

Section = AlgorithmKeys | NormConfig | DynamicSampling


@dataclass(frozen=True)
class Review:
    """Lines to show at the start: values without effect, values that were filled in, and advice."""

    inactive: tuple[str, ...]
    assumed: tuple[str, ...]
    advice: tuple[str, ...]


def norms(keys: AlgorithmKeys) -> list[tuple[str, NormConfig]]:
    """The normalisations that are configured, with the path of each."""
    named = (("actor.reward_norm", keys.reward_norm), ("actor.adv_norm", keys.adv_norm))
    return [(path, norm) for path, norm in named if norm is not None]


def overlong_window(keys: AlgorithmKeys, max_new_tokens: int) -> int:
    """The penalty's window in tokens, at least 1; unset, DAPO's proportion of 4096 in 20480."""
    return max(1, max_new_tokens // 5) if keys.overlong_tokens is None else keys.overlong_tokens


def refuse_conflicts(keys: AlgorithmKeys, n_samples: int, max_new_tokens: int) -> None:
    """Raise ValueError with one line per pair of keys that exclude each other, naming both keys and values."""
    found = _norm_conflicts(keys, n_samples) + _credit_conflicts(keys)
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
    return found


def _credit_conflicts(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    unit = None if keys.adv_norm is None else keys.adv_norm.unit
    if keys.credit == "outcome" and keys.discount != 1:
        found.append(
            f"actor.discount {keys.discount} with actor.credit outcome: every token gets the same number, nothing is "
            "discounted. Set credit: reward_to_go"
        )
    if keys.credit == "outcome" and keys.kl_ctl > 0 and unit == "token":
        found.append(
            f"actor.kl_ctl {keys.kl_ctl} with actor.adv_norm.unit token: outcome credit subtracts the KL summed over a "
            "sequence, which token statistics weigh by length once more. Set unit: sequence, or credit: reward_to_go"
        )
    if keys.credit == "reward_to_go" and unit == "sequence":
        found.append(
            "actor.adv_norm.unit sequence with actor.credit reward_to_go: a sequence has as many numbers as tokens. "
            "Leave unit out, or set credit: outcome"
        )
    return found


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
    return Review(tuple(_inactive(keys)), tuple(assumed), tuple(_advice(keys)))


def _inactive(keys: AlgorithmKeys) -> list[str]:
    found = _changed(keys, "actor", _sleeping_keys(keys), AlgorithmKeys())
    for path, norm in norms(keys):
        found += _changed(norm, path, _sleeping_norm(norm), NormConfig())
        if norm.mean_level is None and norm.std_level is None:
            found.append(f"{path}: neither mean_level nor std_level is set, so it does nothing")
    if keys.dynamic_sampling is not None and keys.dynamic_sampling.filter != "mixed_outcomes":
        sleeping = {"correct_threshold": "needs filter: mixed_outcomes"}
        found += _changed(keys.dynamic_sampling, "actor.dynamic_sampling", sleeping, DynamicSampling())
    return found


def _sleeping_keys(keys: AlgorithmKeys) -> dict[str, str]:
    """Keys that have no effect beside the others, with the reason."""
    sleeping: dict[str, str] = {}
    if not keys.overlong_reward_penalty:
        for name in ("overlong_tokens", "overlong_penalty_factor"):
            sleeping[name] = "needs actor.overlong_reward_penalty: true"
    if keys.importance_sampling_level == "none":
        for name in ("eps_clip", "eps_clip_higher", "c_clip"):
            sleeping[name] = "needs actor.importance_sampling_level: token"
    if keys.kl_ctl == 0:
        sleeping["kl_estimator"] = "needs actor.kl_ctl above 0"
    if keys.kl_loss_coef == 0:
        sleeping["kl_loss_estimator"] = "needs actor.kl_loss_coef above 0"
    if keys.loss_agg_mode != "seq_mean_token_sum_norm":
        sleeping["loss_agg_constant"] = "needs actor.loss_agg_mode: seq_mean_token_sum_norm"
    if keys.loss_agg_mode == "token_mean":
        sleeping["count_empty_rows"] = "token_mean has no sequences to count"
    return sleeping


def _sleeping_norm(norm: NormConfig) -> dict[str, str]:
    sleeping: dict[str, str] = {}
    if norm.mean_level is None:
        sleeping["mean_leave1out"] = "needs mean_level"
    if norm.std_level is None:
        sleeping |= dict.fromkeys(("std_unbiased", "eps", "eps_mode", "std_of"), "needs std_level")
    return sleeping


def _changed(section: Section, path: str, sleeping: dict[str, str], default: Section) -> list[str]:
    found: list[str] = []
    for item in fields(section):
        value = getattr(section, item.name)
        if item.name in sleeping and value != getattr(default, item.name):
            found.append(f"{path}.{item.name} {value}: no effect, {sleeping[item.name]}")
    return found


def _advice(keys: AlgorithmKeys) -> list[str]:
    found: list[str] = []
    if keys.reward_norm is not None and keys.adv_norm is not None:
        found.append(
            "actor.reward_norm and actor.adv_norm both normalise: the second undoes part of what the first is for"
        )
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
    if keys.adv_norm is not None and keys.adv_norm.unit == "token" and keys.adv_norm.mean_leave1out:
        found.append(
            "actor.adv_norm.mean_leave1out with unit token leaves out one token, not one sample: this is not RLOO"
        )
    if keys.overlong_reward_penalty:
        found.append(
            f"actor.overlong_penalty_factor {keys.overlong_penalty_factor} is in units of the task's reward: the paper "
            "takes 1 for rewards of -1 and 1, which is 0.5 for rewards of 0 and 1"
        )
    return found
