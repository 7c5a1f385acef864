"""Which property holds for which preset, and for the others why not: data, which the tests beside it hold to.

A preset stands in `fails` where the property is false for it, with the reason, and in `moot` where there is nothing that
could be true or false. For all others it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from partita.algo.presets import PRESETS

Why = Mapping[str, str]


def each(names: Iterable[str], why: str) -> dict[str, str]:
    """The same reason for several presets."""
    return dict.fromkeys(names, why)


def others(names: Iterable[str], why: str) -> dict[str, str]:
    """The same reason for every preset that is not named."""
    kept = set(names)
    return {name: why for name in PRESETS if name not in kept}


CRITIC = ("ppo", "ppo_penalty", "areal_ppo")
RIGHT_ONLY = ("rft", "online_rft")
BATCH = ("reinforce", "areal_grpo", "areal_gspo", "areal_dapo", "areal_sapo")
UNDIVIDED = ("reinforce", "drgrpo", "rloo", "sapo_selfadaptive", "areal_drgrpo", "areal_rloo")
LEAVE_ONE_OUT = ("rloo", "areal_rloo")
NO_RATIO = ("reinforce", "rloo", *RIGHT_ONLY)
SOFT = ("sapo", "areal_sapo")
HELD_ON_BOTH_SIDES = ("decoupled_clip", "cispo")
"""Gates with a band but without the min."""


@dataclass(frozen=True)
class Property:
    """One sentence about an algorithm, and the presets it is not true of."""

    name: str
    says: str
    fails: Why = field(default_factory=dict[str, str])
    moot: Why = field(default_factory=dict[str, str])

    def cell(self, preset: str) -> str:
        """`yes`, `no` or `-`."""
        return "no" if preset in self.fails else "-" if preset in self.moot else "yes"

    @property
    def holds(self) -> tuple[str, ...]:
        """The presets it is true of."""
        return tuple(name for name in PRESETS if self.cell(name) == "yes")


PROPERTIES = (
    Property("sample_order", "The order of the samples and the ids of the prompts do not matter."),
    Property("micro_batches", "Any split into micro-batches gives the same gradient, loss and metrics."),
    Property("ranks", "Any split over ranks, each with its own micro-batches, sums to the same gradient."),
    Property("finite", "Rewards, log-probs and values that are not finite cost their own sample and nothing else."),
    Property("credit_twice", "Credit given to a batch that has credit changes nothing."),
    Property(
        "finite_differences", "The gradient is the derivative of the loss.",
        fails={"cispo": "its weight is held constant while it is differentiated"},
    ),
    Property(
        "ratio_one", "Where policy, old policy and sampler agree, the gradient of a token is -w·A.",
        fails={"grpo": "the KL in the loss pulls towards the reference from the first step on"},
    ),
    Property(
        "reward_offset", "A constant added to all rewards leaves the advantages.",
        fails=each(("ppo", "ppo_penalty"), "a token's share of the reward decays with λ < 1, the critic's values do not move along")
        | each(RIGHT_ONLY, "right is what reaches the threshold")
        | {"gspo_smoothed": "the running mean remembers other steps"},
    ),
    Property(
        "reward_scale", "All rewards times a positive number leave the advantages.",
        fails=each(UNDIVIDED, "nothing is divided by a deviation")
        | each(CRITIC, "the critic's values do not grow along")
        | each(RIGHT_ONLY, "right is what reaches the threshold")
        | {"gspo_smoothed": "the running deviation remembers other steps",
           "dapo": "the soft overlong penalty is in units of the reward"},
    ),
    Property(
        "constant_group", "A group of equal rewards has advantages of exactly 0, also for 0.7 in single precision.",
        fails=each(BATCH, "compared with the batch, an easy group is good and a hard one bad")
        | each(CRITIC, "the critic's values differ from token to token")
        | each(RIGHT_ONLY, "there is no baseline: an all-right group is learned like any right sample")
        | {"gspo_smoothed": "compared with the running mean, an all-wrong group is pushed down",
           "rloo": "the KL in the reward differs from sample to sample",
           "dapo": "the soft overlong penalty differs with the length"},
    ),
    Property(
        "group_sum", "The advantages of a group's samples sum to 0.",
        fails=each(BATCH, "they do over the batch, not in each group")
        | each(CRITIC, "the baseline is the critic's") | each(RIGHT_ONLY, "there is no baseline")
        | {"gspo_smoothed": "the baseline is the running mean"},
    ),
    Property(
        "leave_one_out", "The advantage is G/(G-1) times the reward minus the group's mean.",
        moot=others(LEAVE_ONE_OUT, "the baseline leaves no sample out"),
    ),
    Property(
        "dual_clip", "c_clip does not touch tokens with advantages from 0 up.",
        moot=each(NO_RATIO, "there is no ratio") | each(SOFT, "the soft gate has no dual clip")
        | each(HELD_ON_BOTH_SIDES, "the weight is held above already")
        | {"ppo_penalty": "the gate is open"},
    ),
    Property(
        "wide_band", "With eps_clip towards infinity the gradient is that of ρA.",
        moot=each(NO_RATIO, "there is no ratio") | each(SOFT, "the soft gate has no band")
        | {"ppo_penalty": "the gate is open"},
    ),
    Property(
        "soft_limit", "With temperatures towards 0 the gradient is that of ρA.",
        moot=others(SOFT, "there is no temperature"),
    ),
    Property(
        "one_token", "For responses of one token every kind of ratio is the token ratio.",
        moot=each(NO_RATIO, "there is no ratio"),
    ),
    Property(
        "same_sampler", "Where the sampler agrees with the old policy, the decoupled loss is the plain one.",
        moot=each(SOFT, "the soft gate refuses the decoupled loss"),
    ),
    Property("no_cap", "TIS with C towards infinity and IcePop from 0 to infinity are the decoupled loss without a cap."),
    Property(
        "discounted_return", "With λ = 1 and values of 0, GAE is the discounted sum of what is still paid.",
        moot=others(CRITIC, "there is no critic"),
    ),
    Property(
        "padding", "Padding does not matter.",
        moot=others((), "batches are packed: padding does not exist on this floor"),
    ),
)  # fmt: skip


def rows() -> list[list[str]]:
    """The table as text: a line for each preset, a column for each property, the names first."""
    head = ["", *(item.name for item in PROPERTIES)]
    return [head, *([name, *(item.cell(name) for item in PROPERTIES)] for name in PRESETS)]
