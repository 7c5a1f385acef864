"""The columns of a rollout batch that only some algorithms read: rewards of single functions, and of single steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from partita.rollout.episodes import RolloutError
from partita.train.batch import RolloutBatch


def with_columns(rollout: RolloutBatch, needs: frozenset[str], part_names: Sequence[str]) -> RolloutBatch:
    """The batch with what `needs` names of them. part_names: the reward functions, in the order of their weights.

    Raises RolloutError for a sample that has no part of any of them.
    """
    if "parts" in needs:
        rollout = _with_parts(rollout, part_names)
    if "step_rewards" in needs and rollout.batch.step_rewards_T is None:  # no sample of the step has any
        rollout = rollout.with_batch(rollout.batch.with_(step_rewards_T=_nan(len(rollout.batch.seq_T))))
    return rollout


def _with_parts(rollout: RolloutBatch, names: Sequence[str]) -> RolloutBatch:
    """The batch with one column for each reward function; what else a workflow or a function reported is no part of it.

    NaN where a function does not apply to a sample. Raises RolloutError for a sample that has no part of any of them.
    """
    batch, known = rollout.batch, rollout.part_names
    missing = _nan(batch.samples)  # of a function that applies to no sample of the step
    columns = [
        missing if batch.parts_SR is None or name not in known else batch.parts_SR[:, known.index(name)]
        for name in names
    ]
    parts_SR = torch.stack(columns, 1)
    if bool((torch.isnan(parts_SR).all(1) & batch.valid_S).any()):
        raise RolloutError(
            f"actor.reward_norm_per_part=true normalises {', '.join(names)} one by one, and a sample's parts have none of "
            f"them (there are: {', '.join(known) or 'none'}). A workflow must keep the parts that episode.score gives"
        )
    return rollout.with_batch(batch.with_(parts_SR=parts_SR))


def _nan(*shape: int) -> torch.Tensor:
    return torch.full(shape, math.nan, dtype=torch.float64)
