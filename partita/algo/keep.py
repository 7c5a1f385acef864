"""Dynamic sampling: which groups are worth training on, judged by the raw task rewards.

Shapes: K valid samples of one prompt.
Left out: refilling. The rollouts draw more prompts, at most `max_batches` batches of them for one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from partita.ops.segments import segment_constant


class Keep(Protocol):
    """Judges one group. `max_batches` bounds how many prompt batches may be sampled to fill one step."""

    @property
    def max_batches(self) -> int:
        """Batches of prompts that one step may use, the first one included."""
        ...

    def __call__(self, reward_K: Tensor) -> bool:
        """Whether to train on the group with these raw rewards; rewards that are not finite have no say."""
        ...


@dataclass(frozen=True)
class KeepAll:
    """Every group is trained on."""

    max_batches: int = 1

    def __call__(self, reward_K: Tensor) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class MixedOutcomes:
    """0 < #correct < K (DAPO, arXiv 2503.14476, section 3.2). A reward at or above the threshold is correct.

    Raw rewards, because a length penalty makes an all-wrong group look informative.
    """

    max_batches: int
    correct_threshold: float = 1.0

    def __call__(self, reward_K: Tensor) -> bool:
        """False for all right, all wrong, and for a group without a valid sample."""
        correct_K = reward_K[torch.isfinite(reward_K)] >= self.correct_threshold
        return bool(correct_K.any()) and not bool(correct_K.all())


@dataclass(frozen=True)
class MixedRewards:
    """max r > min r: the same idea for graded rewards, where no threshold says what is correct."""

    max_batches: int

    def __call__(self, reward_K: Tensor) -> bool:
        """False for equal rewards, and for a group without a valid sample."""
        finite_K = reward_K[torch.isfinite(reward_K)]
        alike = segment_constant(finite_K, torch.zeros_like(finite_K, dtype=torch.long), 1)
        return finite_K.shape[0] > 0 and not bool(alike)
