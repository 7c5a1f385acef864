"""Named algorithms as data: the keys of `actor` that each sets, and where it was published.

A preset is the paper's algorithm. What a paper leaves open (epsilons, the exact length constant) keeps its usual value.
Left out: batch sizes, learning rates and lengths. They belong to a model and its data, not to an algorithm.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from partita.algo.keys import AlgorithmKeys

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

PRESETS: dict[str, dict[str, Any]] = {
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
}


@dataclass(frozen=True)
class Source:
    """Where an algorithm was published, and what it maximises, in its own symbols."""

    title: str
    url: str
    formula: tuple[str, ...]


SOURCES: dict[str, Source] = {
    "grpo": Source(
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models (GRPO)",
        "https://arxiv.org/abs/2402.03300",
        (
            "J = 1/G Σ_i 1/|o_i| Σ_t [ min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i) - β (π_ref/π - log(π_ref/π) - 1) ]",
            "A_i = (r_i - mean(r)) / std(r), over the G samples of a prompt",
        ),
    ),
    "drgrpo": Source(
        "Understanding R1-Zero-Like Training: A Critical Perspective (Dr.GRPO)",
        "https://arxiv.org/abs/2503.20783",
        (
            "J = 1/(G·C) Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i), C the generation budget",
            "A_i = r_i - mean(r)",
        ),
    ),
    "rloo": Source(
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs (RLOO)",
        "https://arxiv.org/abs/2402.14740",
        (
            "∇J = 1/G Σ_i A_i Σ_t ∇ log π(o_it)",
            "A_i = R_i - 1/(G-1) Σ_(j≠i) R_j, with R_i = r_i - β Σ_t log(π/π_ref)",
        ),
    ),
    "dapo": Source(
        "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
        "https://arxiv.org/abs/2503.14476",
        (
            "J = 1/Σ_i |o_i| Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 1-ε_low, 1+ε_high) A_i), on groups with 0 < #right < G",
            "A_i = (r_i - mean(r)) / std(r), r_i the task's reward plus the soft overlong penalty",
        ),
    ),
}


def preset(name: str) -> dict[str, Any]:
    """A copy of the keys that the named preset sets. Raises ValueError, with the choices, for an unknown name."""
    if name not in PRESETS:
        near = get_close_matches(name.lower().replace(".", "").replace("_", ""), PRESETS, n=1)
        hint = f" Near: {near[0]}." if near else ""
        raise ValueError(f"{name!r} is not a preset.{hint} Choices: {', '.join(PRESETS)}")
    return deepcopy(PRESETS[name])


@dataclass(frozen=True)
class PresetExpansion:
    """Expands `algorithm: name` for the config loader: `reset_keys` go back to defaults, then the keys apply."""

    reset_keys: frozenset[str]

    def __call__(self, name: str) -> dict[str, Any]:
        """Dotted path to value. Raises ValueError for an unknown name."""
        return {f"actor.{key}": value for key, value in preset(name).items()}


expand_preset = PresetExpansion(frozenset(f"actor.{item.name}" for item in fields(AlgorithmKeys)))
