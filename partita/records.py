"""The typed records that travel between floors: prompts, samples and groups going up, packed batches going into the maths.

Shapes: T packed trained tokens, S samples (sequences), P prompts (groups).
Left out: model input. Prompt and tool tokens reach the model through `ops.packing`; the algorithm floor never sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

StopReason = Literal["stop", "length", "abort"]
Status = Literal["ok", "reward_error", "not_applicable"]


@dataclass(frozen=True)
class Prompt:
    """One rendered prompt: the exact ids that are sampled from and trained on, and the dataset row they came from.

    `messages` are the chat messages that were rendered. `answer` is the gold answer as text, None for data without one.
    """

    uid: str
    ids: tuple[int, ...]
    text: str
    row: Mapping[str, Any]
    messages: tuple[Mapping[str, Any], ...] = ()
    answer: str | None = None


@dataclass
class Row:
    """One contiguous token sequence as the model saw it.

    `trained` marks tokens the policy generated (its EOS included). `behaviour_logprobs` and `versions` hold 0.0 and -1
    where a token was not generated. All four lists have the same length.
    """

    ids: list[int]
    trained: list[bool]
    behaviour_logprobs: list[float]
    versions: list[int]


@dataclass
class Sample:
    """One trajectory. Statistics count samples, never rows. `reward` is None exactly when `status` is not "ok".

    `step_rewards`: (trained token, counted from 0 over all rows; reward). `notes`: texts that reward functions told. `metrics`:
    numbers that the workflow tells about the sample, by the name of the metric; the mean over the samples that have it is shown.
    """

    rows: list[Row]
    stop_reason: StopReason
    text: str
    reward: float | None = None
    parts: dict[str, float] = field(default_factory=dict[str, float])
    step_rewards: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    status: Status = "ok"
    error: str = ""
    notes: dict[str, str] = field(default_factory=dict[str, str])
    metrics: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def length(self) -> int:
        """Number of trained tokens, EOS included."""
        return sum(sum(row.trained) for row in self.rows)


@dataclass
class Group:
    """One prompt and its samples. `serial` counts started groups over the whole run; retries and refills draw anew."""

    serial: int
    prompt: Prompt
    samples: list[Sample]

    @property
    def rewards(self) -> list[float]:
        """Raw task rewards of the samples that have one."""
        return [sample.reward for sample in self.samples if sample.reward is not None]


@dataclass(frozen=True)
class Batch:
    """Packed trained tokens of whole samples. Streams that no part needs are None.

    seq_T: which sample a token belongs to, non-decreasing. prompt_S: which group a sample belongs to (any ids, in any
    order; groups may differ in size). reward_S: task reward before shaping, NaN where the sample has none. valid_S: False
    excludes a sample from statistics and from the loss (reward error, non-finite log-prob). truncated_S comes from the
    stop reason. `behaviour_T`, `prox_T`, `ref_T` are log-probs in nats at the sampling temperature; with `entropy_T` and
    `kl_full_T`, KL(policy ‖ reference) over the vocabulary, they are from before any optimizer step. step_rewards_T is NaN
    where no step ends. parts_SR are the raw values of the R reward functions, NaN where a sample has none. lot_S is one
    uniform number per sample, for random choices that do not depend on order. correction_T is the behaviour weight, 0
    where a token is masked, and scale_T what kept denominators make of the objective. train_version is the version of the
    weights that are being trained: one more than that of the newest samples.
    """

    seq_T: Tensor
    prompt_S: Tensor
    reward_S: Tensor
    truncated_S: Tensor
    valid_S: Tensor
    prox_T: Tensor | None = None
    behaviour_T: Tensor | None = None
    ref_T: Tensor | None = None
    values_T: Tensor | None = None
    bootstrap_value_S: Tensor | None = None
    token_rewards_T: Tensor | None = None
    version_T: Tensor | None = None
    entropy_T: Tensor | None = None
    score_S: Tensor | None = None
    advantages_T: Tensor | None = None
    returns_T: Tensor | None = None
    weight_T: Tensor | None = None
    step_rewards_T: Tensor | None = None
    parts_SR: Tensor | None = None
    lot_S: Tensor | None = None
    kl_full_T: Tensor | None = None
    correction_T: Tensor | None = None
    scale_T: Tensor | None = None
    train_version: int | None = None

    @property
    def samples(self) -> int:
        """S, counting samples without any trained token."""
        return self.prompt_S.shape[0]

    @property
    def length_S(self) -> Tensor:
        """Trained tokens per sample, int64."""
        return torch.bincount(self.seq_T, minlength=self.samples)

    def with_(self, **streams: Any) -> Batch:
        """A copy with some streams replaced."""
        return replace(self, **streams)

    def select(self, samples: Sequence[int]) -> Batch:
        """The samples with these indices, in this order, tokens renumbered; denominators in `weight_T` are kept as they are."""
        index_S = torch.as_tensor(samples, dtype=torch.long, device=self.seq_T.device)
        starts_S = torch.cumsum(self.length_S, 0) - self.length_S
        length_S = self.length_S[index_S]
        total = int(length_S.sum())
        seq_T = torch.repeat_interleave(torch.arange(len(samples), device=self.seq_T.device), length_S)
        first_T = torch.repeat_interleave(starts_S[index_S] - (torch.cumsum(length_S, 0) - length_S), length_S)
        token_T = torch.arange(total, device=self.seq_T.device) + first_T
        picked: dict[str, Any] = {"seq_T": seq_T}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "seq_T" or not isinstance(value, Tensor):
                continue
            picked[f.name] = value[token_T] if f.name.endswith("_T") else value[index_S]
        return replace(self, **picked)
