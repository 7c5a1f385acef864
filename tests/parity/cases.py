"""One table of everything that is compared with a peer: the tests run it, the page is made from it.

Left out: how either side is called; see `ours`, `trl_peer` and `verl_peer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from parity.ragged import WIDTH, Draw, Hand

Peer = Literal["trl", "verl"]
Topic = Literal["loss", "aggregation", "advantage", "kl", "correction", "critic", "controller", "reward", "pairs"]


@dataclass(frozen=True)
class Text:
    """One sentence in the two languages of the page."""

    en: str
    zh: str


@dataclass(frozen=True)
class Difference:
    """What the peer and we give for a batch that is laid by hand, and why.

    The number is the value or the gradient, at a place where it has several.
    """

    peer: float
    ours: float
    why: Text
    of: Literal["value", "gradient"] = "value"
    at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """One function of a peer under one setting, and the keys that say the same here.

    compared names what of ours is compared (`ours.COMPARED`), call what of the peer (its `CALLS`). Agreement is tested on
    several random batches like `like`, or on one that it lays by hand; a difference on one laid by hand. budget is our
    `max_new_tokens`; rows: the samples of the optimizer step, all of them if empty.
    """

    what: Text
    topic: Topic
    peer: Peer
    call: str
    setting: Mapping[str, Any]
    keys: Mapping[str, Any]
    compared: str = "loss"
    like: Draw | Hand = field(default_factory=Draw)
    differs: Difference | None = None
    budget: int = WIDTH
    rows: tuple[int, ...] = ()
    part_weights: tuple[float, ...] = ()


FUNCTIONS: dict[tuple[Peer, str], str] = {
    ("trl", "advantages"): "GRPOTrainer._generate_and_score_completions",
    ("trl", "rollout_correction"): "GRPOTrainer._generate_and_score_completions",
    ("trl", "policy_loss"): "GRPOTrainer._compute_loss",
    ("trl", "step"): "GRPOTrainer._prepare_inputs, _compute_loss",
    ("trl", "entropy_bonus"): "GRPOTrainer._compute_loss",
    ("trl", "entropy_coefficient"): "GRPOTrainer._compute_loss",
    ("trl", "rloo_advantages"): "RLOOTrainer._generate_and_score_completions",
    ("trl", "rloo_loss"): "RLOOTrainer._compute_loss",
    ("trl", "dpo_loss"): "DPOTrainer._compute_loss",
    ("trl", "overlong"): "get_soft_overlong_punishment",
    ("verl", "policy_loss"): "get_policy_loss_fn",
    ("verl", "agg_loss"): "agg_loss",
    ("verl", "advantages"): "get_adv_estimator_fn",
    ("verl", "returns"): "get_adv_estimator_fn",
    ("verl", "kl_penalty"): "kl_penalty",
    ("verl", "rollout_correction"): "compute_rollout_correction_and_add_to_batch",
    ("verl", "value_loss"): "compute_value_loss",
    ("verl", "entropy_bonus"): "agg_loss",
    ("verl", "kl_coefficient"): "AdaptiveKLController",
}
"""The peer's own function behind each call."""


@dataclass(frozen=True)
class Absent:
    """What a peer has and we do not, by the peer's names."""

    topic: Topic
    peer: Peer
    names: tuple[str, ...]
    what: Text
