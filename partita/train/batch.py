"""From groups to what a train step works on: model-input rows beside the packed batch of trained tokens.

Shapes: T packed trained tokens, S samples, R reward functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from partita.records import Batch, Group, Row, Sample

NAN = float("nan")
LOTS = 2**64 - 1  # second word of the key: the data order has (seed, epoch) there


@dataclass(frozen=True)
class RolloutBatch:
    """All samples of a step. rows[s] are the rows of sample s; group_of_sample[s] is the serial of its group.

    part_names are the columns of `batch.parts_SR`, empty where that is None.
    """

    rows: tuple[tuple[Row, ...], ...]
    group_of_sample: tuple[int, ...]
    batch: Batch
    part_names: tuple[str, ...] = ()

    def with_batch(self, batch: Batch) -> RolloutBatch:
        """The same rows with other streams."""
        return replace(self, batch=batch)

    def select(self, samples: Sequence[int]) -> RolloutBatch:
        """The samples with these indices, in this order; rows and streams are cut along the same order."""
        return replace(
            self,
            rows=tuple(self.rows[s] for s in samples),
            group_of_sample=tuple(self.group_of_sample[s] for s in samples),
            batch=self.batch.select(samples),
        )


@dataclass(frozen=True)
class _Member:
    """A sample with its place: `index` counts the samples of its group."""

    group: Group
    index: int
    sample: Sample

    @property
    def valid(self) -> bool:
        return self.sample.status == "ok" and self.sample.stop_reason != "abort"


def collate(groups: Sequence[Group], *, seed: int, version: int) -> RolloutBatch:
    """Pack groups. A sample without a reward stays in the batch, marked invalid: nothing is dropped silently.

    seed: of the run, for `lot_S`. version: of the newest weights that were published; the step trains the one after.
    Raises ValueError for a step reward that is not finite or not at one of its sample's trained tokens.
    """
    members = [_Member(group, k, sample) for group in groups for k, sample in enumerate(group.samples)]
    tokens = [
        (s, logprob, version_of_token)
        for s, member in enumerate(members)
        for row in member.sample.rows
        for trained, logprob, version_of_token in zip(row.trained, row.behaviour_logprobs, row.versions, strict=True)
        if trained
    ]
    seq, logprobs, versions = zip(*tokens, strict=True) if tokens else ((), (), ())
    rewards = [NAN if member.sample.reward is None else member.sample.reward for member in members]
    names = _part_names(members)
    batch = Batch(
        seq_T=torch.tensor(seq, dtype=torch.long),
        prompt_S=torch.tensor([member.group.serial for member in members], dtype=torch.long),
        reward_S=torch.tensor(rewards, dtype=torch.float64),
        truncated_S=torch.tensor([member.sample.stop_reason == "length" for member in members], dtype=torch.bool),
        valid_S=torch.tensor([member.valid for member in members], dtype=torch.bool),
        behaviour_T=torch.tensor(logprobs, dtype=torch.float32),
        version_T=torch.tensor(versions, dtype=torch.long),
        step_rewards_T=_step_rewards(members),
        parts_SR=_parts(members, names) if names else None,
        lot_S=torch.tensor([_lot(seed, member.group.serial, member.index) for member in members], dtype=torch.float64),
        train_version=version + 1,
    )
    rows = tuple(tuple(member.sample.rows) for member in members)
    return RolloutBatch(rows, tuple(member.group.serial for member in members), batch, names)


def _step_rewards(members: Sequence[_Member]) -> Tensor | None:
    """[T] float64, NaN where no step ends; several rewards at one token add up. None where no sample has any."""
    if not any(member.sample.step_rewards for member in members):
        return None
    reward_T: list[float] = []
    for member in members:
        start = len(reward_T)
        reward_T += [NAN] * member.sample.length
        for at, value in member.sample.step_rewards:
            if not (0 <= at < member.sample.length and math.isfinite(value)):
                raise ValueError(_bad_step(member, at, value))
            before = reward_T[start + at]
            reward_T[start + at] = value if math.isnan(before) else before + value
    return torch.tensor(reward_T, dtype=torch.float64)


def _bad_step(member: _Member, at: int, value: float) -> str:
    return (
        f"sample {member.index} of group {member.group.serial} (prompt {member.group.prompt.uid}): step reward {value} at "
        f"trained token {at}; expected a finite reward, and a token of 0 to {member.sample.length - 1}, counting the "
        f"{member.sample.length} tokens that the policy wrote in this sample"
    )


def _part_names(members: Sequence[_Member]) -> tuple[str, ...]:
    """Parts that all valid samples have, sorted. `f/x` is what function f told beside its value, which is a part itself."""
    of_valid = [set(member.sample.parts) for member in members if member.valid]
    common = set[str].intersection(*of_valid) if of_valid else set[str]()
    return tuple(sorted(name for name in common if name.split("/")[0] not in common - {name}))


def _parts(members: Sequence[_Member], names: Sequence[str]) -> Tensor:
    """[S, R] float64, NaN where a sample lacks a part."""
    return torch.tensor([[m.sample.parts.get(name, NAN) for name in names] for m in members], dtype=torch.float64)


def _lot(seed: int, serial: int, index: int) -> float:
    """A number in [0, 1) that only (seed, serial, index) decide: 53 bits of Philox under that key and counter."""
    words = np.random.Philox(key=np.array([seed, LOTS], np.uint64), counter=np.array([0, 0, index, serial], np.uint64))
    return (int(words.random_raw()) >> 11) * 2.0**-53
