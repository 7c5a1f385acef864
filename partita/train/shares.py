"""What each rank computes of a sum over micro-batches, and how it comes together again.

All ranks know the whole plan: micro-batch i of it is that of rank i modulo their number, and each goes through as many, for a
pass through a sharded model is a step that all of them take. A rank whose micro-batch is empty passes a stand-in through and
adds nothing. What is read of a pass, as losses and streams, is put in the order of the plan: the same numbers on every rank.

Left out: the plan (`ops.packing`), and gradients, which the backward passes of sharded models add up (`models.parallel`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from partita.ops.packing import Packed, micro_batches, pack, stand_in
from partita.ops.ranks import Ranks
from partita.train.batch import RolloutBatch

T = TypeVar("T")


MicroBatch = tuple[list[int], RolloutBatch | None, Packed]
"""Its samples, what is known of them, and the model input; a stand-in has no samples, and None is known of it."""


def own_share(rollout: RolloutBatch, budget: int, ranks: Ranks, *, whole: bool = False) -> Iterator[MicroBatch]:
    """This rank's micro-batches of at most `budget` tokens, rows packed whole if so."""
    plan = micro_batches(rollout.rows, rollout.group_of_sample, budget, whole=whole, ranks=ranks.size)
    chosen = plan[ranks.rank :: ranks.size]
    for samples, micro in zip(chosen, rollout.split(chosen), strict=True):
        if not samples:
            yield samples, None, pack([stand_in(rollout.rows)], [0], whole=whole)
            continue
        rows = micro.rows
        if not any(rows):  # a workflow may have nothing to show of a sample, and a model reads at least one token
            rows = (tuple(replace(row, trained=[False, False]) for row in stand_in(rollout.rows)), *rows[1:])
        yield samples, micro, pack(rows, micro.group_of_sample, whole=whole)


def in_order(found: Sequence[T | None], ranks: Ranks) -> list[T]:
    """What all ranks found in their micro-batches, in the order of the plan; None, of an empty one, is left out."""
    of_ranks = ranks.gathered(list(found))
    return [one for turn in zip(*of_ranks, strict=True) for one in turn if one is not None]


def nothing(*streams: Tensor | None) -> Tensor:
    """A loss of 0, whose gradient by each of the streams is 0 too, whatever is in them: 0 times infinity would not be."""
    return cast(Tensor, _Nothing.apply(*streams))  # pyright: ignore[reportUnknownMemberType]


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *streams: Tensor | None) -> Tensor:
        ctx.save_for_backward(*streams)
        return next(s for s in streams if s is not None).new_zeros(())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(None if s is None else torch.zeros_like(s) for s in ctx.saved_tensors)
