"""Which samples make up which optimizer step: a function of (seed, step, epoch) and the groups, of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np


def minibatches(
    group_of_sample: Sequence[int], count: int, split: Literal["groups", "spread"], key: tuple[int, int, int]
) -> list[list[int]]:
    """Sample indices of each minibatch of one epoch, reshuffled by the counter-based key (seed, train step, epoch).

    `groups` deals whole groups, `spread` deals samples. Minibatches differ in size by at most one group (or sample);
    none is empty unless there are fewer groups (samples) than minibatches.
    """
    members: dict[int, list[int]] = {}
    for sample, group in enumerate(group_of_sample):
        members.setdefault(group if split == "groups" else sample, []).append(sample)
    units = list(members.values())
    if count > 1:
        seed, step, epoch = key
        random = np.random.Generator(np.random.Philox(key=[seed % 2**64, (step << 16) + epoch]))
        units = [units[i] for i in random.permutation(len(units))]
    bounds = [round(len(units) * i / count) for i in range(count + 1)]
    dealt = [units[low:high] for low, high in pairwise(bounds)]
    return [sorted(sample for unit in part for sample in unit) for part in dealt if part]
