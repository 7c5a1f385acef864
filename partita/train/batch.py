"""From groups to what a train step works on: model-input rows beside the packed batch of trained tokens.

Shapes: T packed trained tokens, S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from partita.records import Batch, Group, Row


@dataclass(frozen=True)
class RolloutBatch:
    """All samples of a step. rows[s] are the rows of sample s; group_of_sample[s] is the serial of its group."""

    rows: tuple[tuple[Row, ...], ...]
    group_of_sample: tuple[int, ...]
    batch: Batch

    def with_batch(self, batch: Batch) -> RolloutBatch:
        """The same rows with other streams."""
        return replace(self, batch=batch)

    def select(self, samples: Sequence[int]) -> RolloutBatch:
        """The samples with these indices, in this order; rows and streams are cut along the same order."""
        return RolloutBatch(
            tuple(self.rows[s] for s in samples),
            tuple(self.group_of_sample[s] for s in samples),
            self.batch.select(samples),
        )


def collate(groups: Sequence[Group]) -> RolloutBatch:
    """Pack groups. A sample without a reward stays in the batch, marked invalid: nothing is dropped silently."""
    samples = [(group.serial, sample) for group in groups for sample in group.samples]
    tokens = [
        (s, logprob, version)
        for s, (_, sample) in enumerate(samples)
        for row in sample.rows
        for trained, logprob, version in zip(row.trained, row.behaviour_logprobs, row.versions, strict=True)
        if trained
    ]
    seq, logprobs, versions = zip(*tokens, strict=True) if tokens else ((), (), ())
    rewards = [sample.reward if sample.reward is not None else float("nan") for _, sample in samples]
    batch = Batch(
        seq_T=torch.tensor(seq, dtype=torch.long),
        prompt_S=torch.tensor([serial for serial, _ in samples], dtype=torch.long),
        reward_S=torch.tensor(rewards, dtype=torch.float64),
        truncated_S=torch.tensor([sample.stop_reason == "length" for _, sample in samples], dtype=torch.bool),
        valid_S=torch.tensor([s.status == "ok" and s.stop_reason != "abort" for _, s in samples], dtype=torch.bool),
        behaviour_T=torch.tensor(logprobs, dtype=torch.float32),
        version_T=torch.tensor(versions, dtype=torch.long),
    )
    return RolloutBatch(
        tuple(tuple(sample.rows) for _, sample in samples), tuple(serial for serial, _ in samples), batch
    )
