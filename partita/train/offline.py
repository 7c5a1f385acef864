"""Learning from data that are there: what a train step of items costs, as a sum over micro-batches.

An item is what must not be split: a conversation, or both sides of a preference. Denominators, and the reference's numbers,
are fixed before the first backward pass of a step. On several ranks each gets all items and goes through its share of the
micro-batches; what it gives is the same on all of them.

Shapes: T packed trained tokens, S samples (a conversation, or one side of a pair), N items.
Left out: what an item costs (`train.objectives`), and where items come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from partita.algo.stats import Stats
from partita.models.packed import PackedModel
from partita.models.parallel import settle
from partita.ops.packing import Packed, micro_batches, pack, stand_in
from partita.ops.ranks import ALONE, Ranks
from partita.ops.segments import segment_sum
from partita.records import Row
from partita.report.metrics import Metrics, Timer
from partita.train.shares import in_order, nothing
from partita.train.stepper import Stepper, precision

Rows = tuple[Row, ...]
TOGETHER = 1024  # items whose micro-batches are balanced with each other


@dataclass(frozen=True)
class Item:
    """samples: what is learned, in the order of the objective (a pair: chosen, rejected). beside: what the policy says about
    it without gradient before the step, as KTO asks. good: of a judged answer. margin: of a pair that has one.
    """

    uid: str
    samples: tuple[Rows, ...]
    beside: tuple[Rows, ...] = ()
    good: bool = True
    margin: float | None = None


@dataclass(frozen=True)
class Said:
    """What the model says about the samples of a micro-batch, with gradient, and the reference without: log-probs of trained
    tokens and which sample each belongs to, the reference's log-prob of whole samples; or the value head's score of each.
    """

    seq_T: Tensor
    samples: int
    logprobs_T: Tensor | None = None
    ref_S: Tensor | None = None
    scores_S: Tensor | None = None


@dataclass(frozen=True)
class Share:
    """A micro-batch's part of the step's loss."""

    value: Tensor
    stats: Stats


StepLoss = Callable[[Sequence[int], Said], Share]
"""The loss of the items at these places of a step; shares of a step's micro-batches add up."""


class Objective(Protocol):
    """What items cost."""

    @property
    def scores(self) -> bool:
        """Whether it reads the value head at each sample's last token, instead of log-probs."""
        ...

    @property
    def reference(self) -> bool:
        """Whether it reads the reference's log-prob of each sample."""
        ...

    def of_step(self, items: Sequence[Item], ratio_B: Tensor) -> StepLoss:
        """The loss of a train step, with everything that needs all of its items in place. ratio_B: log π/π_ref of what stands
        beside the items, in their order.
        """
        ...


class Reference(Protocol):
    """Log-probs of whole samples under the frozen policy, [samples of the items, then what is beside them], float64."""

    def __call__(self, items: Sequence[Item]) -> tuple[Tensor, Tensor]:
        """Of the samples [S], and of what is beside them [B]."""
        ...


@dataclass
class OfflineLearner:
    """Owns the weights that are learned, and takes one optimizer step per train step. ranks: over which they are sharded."""

    model: PackedModel
    objective: Objective
    stepper: Stepper
    max_tokens_per_mb: int
    reference: Reference | None = None
    timer: Timer = field(default_factory=Timer)
    ranks: Ranks = ALONE

    def learn(self, items: Sequence[Item], step: int, total_steps: int) -> Metrics:
        """Train step `step` of so many, counted from 0. Raises LearnerError after too many non-finite steps in a row."""
        metrics, found = Metrics(), list[Share | None]()
        self.stepper.schedule(step, total_steps, metrics)
        for value, stats in self._shares(items) if items else ():
            with self.timer.timed("forward_backward"):
                value.backward()
            found.append(None if stats is None else Share(value.detach(), stats))
        loss = self._sum(found, metrics)
        metrics.count("items", float(len(items)))
        metrics.count("trained_tokens", float(sum(_trained(item) for item in items)))
        if items:
            self.stepper.move(loss, metrics, step)
        else:
            self.stepper.stay(metrics)
        return metrics

    @torch.no_grad()
    def evaluate(self, items: Sequence[Item]) -> dict[str, float]:
        """The loss and its numbers over held-out items, as of one train step of all of them: its denominators do not depend on
        how training is cut into steps.
        """
        metrics = Metrics()
        loss = self._sum(
            [None if stats is None else Share(value, stats) for value, stats in self._shares(items)], metrics
        )
        return metrics.as_dict() | {"loss": loss}

    def _sum(self, found: Sequence[Share | None], metrics: Metrics) -> float:
        """The loss of the micro-batches of all ranks, in the order in which one rank alone computes them."""
        settle(self.model)
        loss = 0.0
        for share in in_order(found, self.ranks):
            loss += float(share.value)
            metrics.add(share.stats)
        return loss

    def _shares(self, items: Sequence[Item]) -> Iterator[tuple[Tensor, Stats | None]]:
        """This rank's parts of the loss of a step, one micro-batch after another; of a stand-in a loss of 0 and no stats."""
        ref_S, ref_B = self.reference(items) if self.reference is not None else (None, None)
        beside = [(rows,) for item in items for rows in item.beside]
        ratio_B = torch.zeros(0, dtype=torch.float64)
        if beside:
            said_B = sums(self.model, self.stepper.compute_dtype, beside, self.max_tokens_per_mb, self.ranks)
            ratio_B = said_B - (ref_B if ref_B is not None else 0)
        loss = self.objective.of_step(items, ratio_B)
        first = _first_samples([item.samples for item in items])
        for places in self._micro_batches(items):
            own = [at for place in places for at in range(first[place], first[place + 1])]
            with self.timer.timed("forward_backward"):
                said = self._said(
                    [items[place] for place in places] or [_stand_in(items)], None if ref_S is None else ref_S[own]
                )
                if places:
                    share = loss(places, said)
                    made = share.value, share.stats
                else:
                    made = nothing(said.logprobs_T, said.scores_S), None
            yield made

    def _micro_batches(self, items: Sequence[Item]) -> list[list[int]]:
        """Places of items, each of them whole: of this rank's micro-batches, empty for a stand-in."""
        atoms = [_joined(item.samples) for item in items]
        return _cut(atoms, self.max_tokens_per_mb, self.ranks, whole=self.objective.scores)

    def _said(self, items: Sequence[Item], ref_S: Tensor | None) -> Said:
        packed, samples = packed_atoms([item.samples for item in items], whole=self.objective.scores)
        with self.stepper.precision():
            if self.objective.scores:
                _, scores_S = self.model.values(packed, ends=True)
                return Said(_seq(samples), len(samples), scores_S=scores_S)
            logprobs_T = self.model(packed, temperature=1.0).logprobs_T
        return Said(_seq(samples), len(samples), logprobs_T, ref_S)

    @torch.no_grad()
    def scores(self, items: Sequence[Item]) -> Tensor:
        """[S] float64: the value head's scores of all samples of the items, on the CPU."""
        found = list[tuple[list[int], Tensor] | None]()
        for places in self._micro_batches(items):
            said = self._said([items[place] for place in places] or [_stand_in(items)], None)
            assert said.scores_S is not None, "an objective that reads scores"
            found.append((places, said.scores_S.cpu().to(torch.float64)) if places else None)
        settle(self.model)
        by_item = dict[int, Tensor]()
        for places, scores_S in in_order(found, self.ranks):
            counts = [len(items[place].samples) for place in places]
            by_item |= dict(zip(places, scores_S.split(counts), strict=True))
        return torch.cat([by_item[place] for place in range(len(items))])

    def state_dict(self) -> Mapping[str, Any]:
        """Counters; weights and moments are saved as tensors by `train.checkpoint`."""
        return self.stepper.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved counters."""
        self.stepper.load_state_dict(state)


@torch.no_grad()
def sums(
    model: PackedModel, dtype: torch.dtype, atoms: Sequence[Sequence[Rows]], budget: int, ranks: Ranks = ALONE
) -> Tensor:
    """[S] float64: log-probs of whole samples, each summed over its trained tokens, on the CPU.

    atoms: the samples, those of one item together. They are packed as a train step packs them: the same model on the same
    items of one call says the same to the last bit, in half precision too; among other items it differs by rounding.
    """
    first, found = _first_samples(atoms), torch.zeros(sum(map(len, atoms)), dtype=torch.float64)
    parts = list[tuple[list[int], Tensor] | None]()
    for places in _cut([_joined(samples) for samples in atoms], budget, ranks):
        packed, samples = packed_atoms([atoms[place] for place in places] or [(stand_in(_flat(atoms)),)])
        with precision(model, dtype):
            logprobs_T = model(packed, temperature=1.0).logprobs_T
        own = [at for place in places for at in range(first[place], first[place + 1])]
        said_S = segment_sum(logprobs_T.cpu().to(torch.float64), _seq(samples), len(samples))
        parts.append((own, said_S) if places else None)
    settle(model)
    for own, said_S in in_order(parts, ranks):
        found[own] = said_S
    return found


def packed_atoms(atoms: Sequence[Sequence[Rows]], *, whole: bool = False) -> tuple[Packed, list[Rows]]:
    """A micro-batch in which the samples of an item share the longest prefix that they have in common, and its samples."""
    samples = [rows for one in atoms for rows in one]
    groups = [place for place, one in enumerate(atoms) for _ in one]
    return pack(samples, groups, whole=whole), samples


def _cut(atoms: Sequence[Rows], budget: int, ranks: Ranks, *, whole: bool = False) -> list[list[int]]:
    """This rank's micro-batches of items, of so many at a time: to fit all of a large data set at once takes the square of its
    size.
    """
    found = list[list[int]]()
    for start in range(0, len(atoms), TOGETHER):
        part = atoms[start : start + TOGETHER]
        cut = micro_batches(part, range(len(part)), budget, whole=whole, ranks=ranks.size)
        found += [[start + place for place in places] for places in cut]
    return found[ranks.rank :: ranks.size]


def _stand_in(items: Sequence[Item]) -> Item:
    """What passes through the model where this rank has nothing to compute and others have."""
    return Item("", (stand_in(_flat([item.samples for item in items])),))


def _flat(atoms: Sequence[Sequence[Rows]]) -> list[Rows]:
    return [rows for samples in atoms for rows in samples]


def _joined(samples: Sequence[Rows]) -> Rows:
    """All rows of an item, which are not split over micro-batches."""
    return tuple(row for rows in samples for row in rows)


def _first_samples(atoms: Sequence[Sequence[Rows]]) -> list[int]:
    """The number of each item's first sample, and how many there are."""
    return [0, *accumulate(map(len, atoms))]


def _seq(samples: Sequence[Rows]) -> Tensor:
    """[T]: which sample each trained token belongs to."""
    counts = [sum(sum(row.trained) for row in rows) for rows in samples]
    return torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(counts, dtype=torch.long))


def _trained(item: Item) -> int:
    return sum(sum(row.trained) for rows in item.samples for row in rows)
