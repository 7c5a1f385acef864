"""Random ragged batches, padded as the peers take them, and the way from there to packed tokens and back.

Shapes: B rows (samples), W padded width, T packed trained tokens.
Left out: what is computed on them. Padded places hold numbers like any other: whoever reads them is found out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from partita.records import Batch

WIDTH = 12
LONGEST = 9
SPREAD = 0.7


@dataclass(frozen=True)
class Draw:
    """What a batch is like.

    holes: masked tokens between trained ones, as tool output is. even: groups of this size, each row beside its group;
    None draws sizes from 2 to 5 and shuffles the rows. singles: one group of one. empty: one row without any trained
    token. cut: some rows end at the length limit. per_token: the advantage varies along a row. unmoved: the policy is
    still the old one. Log-ratios lie within ±0.7.
    """

    holes: bool = True
    even: int | None = None
    singles: bool = False
    empty: bool = False
    cut: bool = False
    per_token: bool = False
    unmoved: bool = False


@dataclass(frozen=True)
class Hand:
    """A batch small enough to be checked by hand, each number for a whole row.

    ratio: policy over old policy. sampled: old policy over sampler. from_ref: log policy - log reference. An entropy
    stands for the values. Rows are one group unless `groups` says otherwise, and as wide as the longest.
    """

    lengths: tuple[int, ...]
    groups: tuple[int, ...] = ()
    rewards: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    ratio: tuple[float, ...] = ()
    sampled: tuple[float, ...] = ()
    from_ref: tuple[float, ...] = ()
    entropy: tuple[float, ...] = ()


@dataclass(frozen=True)
class Ragged:
    """A batch of padded rows. `mask_BW` is True on trained tokens; all streams are float32, log-probs in nats."""

    mask_BW: Tensor
    group_B: Tensor
    reward_B: Tensor
    truncated_B: Tensor
    parts_BR: Tensor
    advantages_BW: Tensor
    logprobs_BW: Tensor
    old_BW: Tensor
    behaviour_BW: Tensor
    ref_BW: Tensor
    values_BW: Tensor
    old_values_BW: Tensor
    returns_BW: Tensor

    @property
    def rows(self) -> int:
        """B."""
        return self.mask_BW.shape[0]

    @property
    def group_size(self) -> int:
        """K, of groups of one size."""
        return int(self.group_B.bincount().max())

    def pack(self, padded_BW: Tensor) -> Tensor:
        """The trained tokens, row after row."""
        return padded_BW[self.mask_BW]

    def unpack(self, packed_T: Tensor) -> Tensor:
        """Back to rows, with 0 where nothing is trained."""
        padded_BW = torch.zeros(self.mask_BW.shape, dtype=packed_T.dtype)
        padded_BW[self.mask_BW] = packed_T
        return padded_BW

    def batch(self) -> Batch:
        """The packed record, before credit: no advantages and no weights yet."""
        rows = torch.ones(self.rows, dtype=torch.bool)
        return Batch(
            seq_T=self.mask_BW.nonzero()[:, 0],
            prompt_S=self.group_B,
            reward_S=self.reward_B,
            truncated_S=self.truncated_B,
            valid_S=rows,
            prox_T=self.pack(self.old_BW),
            behaviour_T=self.pack(self.behaviour_BW),
            ref_T=self.pack(self.ref_BW),
            values_T=self.pack(self.old_values_BW),
            parts_SR=self.parts_BR,
            lot_S=torch.linspace(0, 0.9, self.rows, dtype=torch.float64),
        )


def lay(hand: Hand) -> Ragged:
    """The batch of a description; what it does not name is 0, a ratio 1, an advantage 1."""
    rows, width = len(hand.lengths), max(hand.lengths)

    def column(numbers: tuple[float, ...], default: float) -> Tensor:
        return torch.tensor(numbers or (default,) * rows, dtype=torch.float64)[:, None].expand(rows, width)

    old_BW = torch.full((rows, width), -2.0)
    logprobs_BW = old_BW + column(hand.ratio, 1.0).log().float()
    value_BW = column(hand.entropy, 0.0).float()
    return Ragged(
        mask_BW=torch.arange(width) < torch.tensor(hand.lengths)[:, None],
        group_B=torch.tensor(hand.groups or (0,) * rows),
        reward_B=column(hand.rewards, 0.0)[:, 0].float(),
        truncated_B=torch.zeros(rows, dtype=torch.bool),
        parts_BR=torch.zeros(rows, 1),
        advantages_BW=column(hand.advantages, 1.0).float().clone(),
        logprobs_BW=logprobs_BW,
        old_BW=old_BW,
        behaviour_BW=old_BW - column(hand.sampled, 1.0).log().float(),
        ref_BW=logprobs_BW - column(hand.from_ref, 0.0).float(),
        values_BW=value_BW,
        old_values_BW=value_BW,
        returns_BW=torch.zeros(rows, width),
    )


def draw(seed: int, like: Draw) -> Ragged:
    """A batch of a dozen rows or so; the same seed and description give the same numbers."""
    rng = torch.Generator().manual_seed(seed)

    def uniform(*shape: int, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=rng)

    sizes = [like.even] * 4 if like.even else torch.randint(2, 6, (4,), generator=rng).tolist() + [1] * like.singles
    group_B = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    if not like.even:
        group_B = group_B[torch.randperm(len(group_B), generator=rng)] * 3 + 7
    rows = len(group_B)
    old_BW = uniform(rows, WIDTH, low=-3.0, high=-0.2)
    old_values_BW = uniform(rows, WIDTH, low=-1.0, high=1.0)
    parts_BR = uniform(rows, 2, low=-1.0, high=1.0)
    return Ragged(
        mask_BW=_mask(rng, rows, like),
        group_B=group_B,
        reward_B=uniform(rows, low=-1.0, high=1.0),
        truncated_B=torch.rand(rows, generator=rng) < (0.3 if like.cut else 0.0),
        parts_BR=parts_BR,
        advantages_BW=uniform(rows, WIDTH if like.per_token else 1, low=-2.0, high=2.0).expand(rows, WIDTH).clone(),
        logprobs_BW=old_BW if like.unmoved else old_BW + uniform(rows, WIDTH, low=-SPREAD, high=SPREAD),
        old_BW=old_BW,
        behaviour_BW=old_BW + uniform(rows, WIDTH, low=-SPREAD, high=SPREAD),
        ref_BW=old_BW + uniform(rows, WIDTH, low=-SPREAD, high=SPREAD),
        values_BW=old_values_BW + uniform(rows, WIDTH, low=-0.5, high=0.5),
        old_values_BW=old_values_BW,
        returns_BW=uniform(rows, WIDTH, low=-1.5, high=1.5),
    )


def _mask(rng: torch.Generator, rows: int, like: Draw) -> Tensor:
    length_B = torch.randint(1, LONGEST + 1, (rows,), generator=rng)
    if like.empty:
        length_B[rows // 2] = 0
    if not like.holes:
        return torch.arange(WIDTH) < length_B[:, None]
    order_BW = torch.rand(rows, WIDTH, generator=rng).argsort(-1).argsort(-1)  # any `length` places of the row
    return order_BW < length_B[:, None]
