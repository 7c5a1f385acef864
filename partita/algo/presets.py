"""Named algorithms as data: the keys of `actor` that each sets.

A preset is the paper's algorithm. What a paper leaves open (epsilons, the exact length constant) keeps its usual value.
`areal_<name>` are the rows of the algorithm matrix in AReaL's documentation, which differ from the papers.
Left out: batch sizes, learning rates and lengths, which belong to a model and its data; and where an algorithm was
published (`sources`).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

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

# A = (r - mean of the group) / std of the group
GROUP_Z_SCORE: dict[str, Any] = {
    "adv_norm": {"mean_level": "group", "std_level": "group", "eps": 1e-6},
}
# A = r - mean of the group
GROUP_MEAN: dict[str, Any] = {
    "adv_norm": {"mean_level": "group", "std_level": None},
}
# A = r - mean of the other samples of the group
LEAVE_ONE_OUT: dict[str, Any] = {
    "adv_norm": {"mean_level": "group", "mean_leave1out": True, "std_level": None},
}
# the log-likelihood of right samples, wrong ones are left out: no baseline, no ratio, no leash
RIGHT_ONLY: dict[str, Any] = {
    "adv_norm": None,
    "importance_sampling_level": "none",
    "loss_agg_mode": "seq_mean_token_mean",
    "reward_threshold": 1.0,
}
# a critic's advantages, whitened over the tokens after the returns are taken
CRITIC: dict[str, Any] = {
    "credit": "gae",
    "discount": 1.0,
    "gae_lambda": 0.95,
    "value_eps_clip": 0.2,
    "adv_norm": {"mean_level": "batch", "std_level": "batch", "eps": 1e-8, "eps_mode": "inside_sqrt"},
    "loss_agg_mode": "token_mean",
}
# one ratio per token, held on the side where it would go on, statistics of the whole batch: the first lines of every row
# of the algorithm matrix in AReaL's documentation
AREAL: dict[str, Any] = {
    "adv_norm": {"mean_level": "batch", "std_level": "batch"},
    "eps_clip": 0.2,
    "loss_agg_mode": "token_mean",
    "kl_ctl": 0.0,
    "use_decoupled_loss": True,
}

PRESETS: dict[str, dict[str, Any]] = {
    "reinforce": {
        "adv_norm": {"mean_level": "batch", "std_level": None},  # the simplest baseline
        "importance_sampling_level": "none",
        "loss_agg_mode": "seq_mean_token_sum",
    },
    "rft": {
        **RIGHT_ONLY,
        "rollout.policy": "starting",  # samples of the model that training started from
    },
    "online_rft": {**RIGHT_ONLY},  # samples of the policy of now
    "ppo": {
        **CRITIC,
        "eps_clip": 0.2,
        "kl_ctl": 0.05,  # token by token in the reward, as RLHF adds it
    },
    "ppo_penalty": {
        **CRITIC,
        "gate": "open",  # the penalty takes the clip's place
        "kl_penalty_coef": 1.0,
        "kl_penalty_estimator": "k3",
        "kl_controller": {"type": "penalty", "target": 0.01},
    },
    "grpo": {
        **GROUP_Z_SCORE,
        "eps_clip": 0.2,
        "loss_agg_mode": "seq_mean_token_mean",  # every response counts the same, however long
        "kl_loss_coef": 0.04,  # a leash in the loss, not in the reward
        "kl_loss_estimator": "k3",
    },
    "drgrpo": {
        **GROUP_MEAN,  # no std: an easy or hard prompt is not blown up
        "eps_clip": 0.2,
        "loss_agg_mode": "seq_mean_token_sum_norm",  # over a constant: a long wrong answer is not let off
    },
    "liteppo": {
        # the group's mean, but one scale for all prompts: a nearly solved one is not blown up
        "adv_norm": {"mean_level": "group", "std_level": "batch", "std_of": "raw", "eps": 1e-4},
        "eps_clip": 0.2,
        "loss_agg_mode": "token_mean",
    },
    "rloo": {
        **LEAVE_ONE_OUT,
        "importance_sampling_level": "none",  # REINFORCE on the whole response, no clipping
        "loss_agg_mode": "seq_mean_token_sum",
        "kl_ctl": 0.03,  # summed over the response and taken off its reward before the baseline
        "kl_estimator": "k1",
    },
    "dapo": {
        **GROUP_Z_SCORE,  # advantages as in grpo
        "eps_clip": 0.2,
        "eps_clip_higher": 0.28,  # clip-higher: rare tokens may still grow
        "loss_agg_mode": "token_mean",  # every token of the step counts the same
        "dynamic_sampling": {"filter": "mixed_outcomes"},  # all-right and all-wrong groups teach nothing
        "overlong_reward_penalty": True,  # a soft edge before the length limit
        "overlong_penalty_factor": 0.5,  # half the gap between right and wrong: the paper's 1 for rewards of -1 and 1
    },
    "gspo": {
        **GROUP_Z_SCORE,
        "importance_sampling_level": "sequence",  # the reward is of a response, and so is the ratio
        "eps_clip": 3e-4,  # a mean of log-ratios moves three orders less than one of them
        "eps_clip_higher": 4e-4,
        "loss_agg_mode": "seq_mean_token_mean",
    },
    "sapo": {
        **GROUP_Z_SCORE,
        "use_sapo_loss": True,  # nothing is cut, far tokens count less and less
        "sapo_tau_pos": 1.0,
        "sapo_tau_neg": 1.05,  # faster for negative ones: they raise many tokens nobody sampled
        "loss_agg_mode": "seq_mean_token_mean",
    },
    "skywork_or1": {
        **GROUP_Z_SCORE,
        "eps_clip": 0.2,
        "loss_agg_mode": "token_mean",
        "dynamic_sampling": {"filter": "mixed_outcomes"},
        "adaptive_entropy": {"target": 0.2, "delta": 0.005},  # entropy is held up where it would collapse
    },
    "cispo": {
        **GROUP_Z_SCORE,
        "gate": "cispo",  # the weight is held, no token loses its gradient
        "eps_clip": 1.0,  # no lower bound
        "eps_clip_higher": 0.28,
        "loss_agg_mode": "token_mean",
    },
    "decoupled_clip": {
        **GROUP_Z_SCORE,
        "gate": "clip_without_min",  # the clip limits the ratio, the advantage only gives the direction
        "eps_clip": 0.2,
        "eps_clip_higher": 0.28,
        "loss_agg_mode": "seq_mean_token_mean",
        "balance": {"mode": "reweight", "positive_fraction": 0.5},
    },
    "gspo_smoothed": {
        # running statistics in place of the group's: steadier where groups are small
        "adv_norm": {
            "mean_level": "ema", "std_level": "ema", "eps": 1e-6, "eps_mode": "inside_sqrt", "ema": {"beta": 0.9},
        },
        "eps_clip": 0.2,
        "loss_agg_mode": "seq_mean_token_mean",
    },
    "sapo_selfadaptive": {
        **GROUP_MEAN,  # undivided: the rule below needs to see their spread
        "eps_clip": 0.2,
        "eps_clip_rule": {"type": "iqr", "min": 0.1, "max": 0.3},  # room while samples differ, little at the end
        "loss_agg_mode": "seq_mean_token_mean",
        "gconfig.adaptive_n": {"score": "entropy"},  # more samples where the policy is unsure
    },
    "areal_ppo": {**AREAL, "credit": "gae"},
    "areal_grpo": {**AREAL},
    "areal_drgrpo": {**AREAL, **GROUP_MEAN},
    "areal_liteppo": {**AREAL, "adv_norm": {"mean_level": "group", "std_level": "batch"}},
    "areal_rloo": {**AREAL, **LEAVE_ONE_OUT},
    "areal_gspo": {**AREAL, "importance_sampling_level": "sequence"},
    "areal_dapo": {**AREAL, "eps_clip_higher": 0.28, "dynamic_sampling": {"filter": "mixed_outcomes"}},
    "areal_sapo": {
        **AREAL,
        "use_sapo_loss": True,
        "sapo_tau_pos": 1.0,
        "sapo_tau_neg": 1.05,
        "use_decoupled_loss": False,
    },
}  # fmt: skip


def preset(name: str) -> dict[str, Any]:
    """A copy of the keys that the named preset sets. Raises ValueError, with the choices, for an unknown name."""
    if name not in PRESETS:
        near = get_close_matches(name.lower().replace(".", "").replace("_", ""), PRESETS, n=1)
        hint = f" Near: {near[0]}." if near else ""
        raise ValueError(f"{name!r} is not a preset.{hint} Choices: {', '.join(PRESETS)}")
    return deepcopy(PRESETS[name])


SECTIONS: dict[str, type[Any]] = {
    "adv_norm": NormConfig,
    "reward_norm": NormConfig,
    "ema": EmaConfig,
    "dynamic_sampling": DynamicSampling,
    "balance": BalanceConfig,
    "eps_clip_rule": ClipRuleConfig,
    "kl_controller": KlControllerConfig,
    "adaptive_entropy": AdaptiveEntropyConfig,
    "correction": CorrectionConfig,
}
"""The keys whose value is a section."""


def keys_of(name: str) -> AlgorithmKeys:
    """A preset as typed keys; what it sets outside `actor` is left out. Raises ValueError for an unknown name."""
    return AlgorithmKeys(**_typed({key: value for key, value in preset(name).items() if "." not in key}))


def _typed(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: SECTIONS[key](**_typed(value)) if key in SECTIONS and value is not None else value
        for key, value in values.items()
    }


@dataclass(frozen=True)
class PresetExpansion:
    """Expands `algorithm: name` for the config loader: `reset_keys` go back to defaults, then the keys apply."""

    reset_keys: frozenset[str]

    def __call__(self, name: str) -> dict[str, Any]:
        """Dotted path to value. Raises ValueError for an unknown name."""
        return {key if "." in key else f"actor.{key}": value for key, value in preset(name).items()}


expand_preset = PresetExpansion(
    frozenset(f"actor.{item.name}" for item in fields(AlgorithmKeys)) | {"gconfig.adaptive_n", "rollout.policy"}
)
