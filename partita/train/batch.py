"""From groups to what a train step works on: model-input rows beside the packed batch of trained tokens.

Shapes: T packed trained tokens, S samples, R reward functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, compress

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

    def split(self, parts: Sequence[Sequence[int]]) -> Iterator[RolloutBatch]:
        """What `select` gives for each of the parts, as views of one reordered copy: a token is moved once, whatever the
        number of parts.
        """
        whole = self.select([s for part in parts for s in part])
        ends_S = torch.cumsum(whole.batch.length_S, 0).tolist()
        first = 0
        for part in parts:
            samples = slice(first, first + len(part))
            tokens = slice(ends_S[first - 1] if first else 0, ends_S[samples.stop - 1] if samples.stop else 0)
            yield replace(
                self,
                rows=whole.rows[samples],
                group_of_sample=whole.group_of_sample[samples],
                batch=_slice(whole.batch, samples, tokens),
            )
            first = samples.stop


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
    lengths = [member.sample.length for member in members]
    rows = [row for member in members for row in member.sample.rows]
    rewards = [NAN if member.sample.reward is None else member.sample.reward for member in members]
    names = _part_names(members)
    batch = Batch(
        seq_T=torch.as_tensor(np.repeat(np.arange(len(members)), lengths)),
        prompt_S=torch.tensor([member.group.serial for member in members], dtype=torch.long),
        reward_S=torch.tensor(rewards, dtype=torch.float64),
        truncated_S=torch.tensor([member.sample.stop_reason == "length" for member in members], dtype=torch.bool),
        valid_S=torch.tensor([member.valid for member in members], dtype=torch.bool),
        behaviour_T=_of_trained(rows, [row.behaviour_logprobs for row in rows], np.float32),
        version_T=_of_trained(rows, [row.versions for row in rows], np.int64),
        step_rewards_T=_step_rewards(members),
        parts_SR=_parts(members, names) if names else None,
        lot_S=torch.tensor([_lot(seed, member.group.serial, member.index) for member in members], dtype=torch.float64),
        train_version=version + 1,
    )
    rows_of_sample = tuple(tuple(member.sample.rows) for member in members)
    return RolloutBatch(rows_of_sample, tuple(member.group.serial for member in members), batch, names)


def _of_trained(rows: Sequence[Row], values: Sequence[Sequence[float]], dtype: type[np.generic]) -> Tensor:
    """[T]: what is said of the trained tokens of all rows. Raises ValueError for a row that does not say it of each token."""
    if any(len(row.trained) != len(of_row) for row, of_row in zip(rows, values, strict=True)):
        raise ValueError("a row needs one mark, one log-prob and one version for each of its tokens")
    trained = chain.from_iterable(row.trained for row in rows)
    return torch.as_tensor(np.fromiter(compress(chain.from_iterable(values), trained), dtype))


def _slice(batch: Batch, samples: slice, tokens: slice) -> Batch:
    """Samples that stand next to each other, and the tokens that are theirs."""
    cut = dict[str, Tensor]()
    for item in fields(Batch):
        value = getattr(batch, item.name)
        if isinstance(value, Tensor):
            cut[item.name] = value[tokens if item.name.endswith("_T") else samples]
    return batch.with_(**cut | {"seq_T": cut["seq_T"] - samples.start})


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
    """Parts that valid samples have, sorted; a function may apply to some of them only. `f/x` is what function f told beside
    its value, which is a part itself.
    """
    known = {name for member in members if member.valid for name in member.sample.parts}
    return tuple(sorted(name for name in known if name.split("/")[0] not in known - {name}))


def _parts(members: Sequence[_Member], names: Sequence[str]) -> Tensor:
    """[S, R] float64, NaN where a sample lacks a part."""
    return torch.tensor([[m.sample.parts.get(name, NAN) for name in names] for m in members], dtype=torch.float64)


def _lot(seed: int, serial: int, index: int) -> float:
    """A number in [0, 1) that only (seed, serial, index) decide: 53 bits of Philox under that key and counter."""
    words = np.random.Philox(key=np.array([seed, LOTS], np.uint64), counter=np.array([0, 0, index, serial], np.uint64))
    return (int(words.random_raw()) >> 11) * 2.0**-53
