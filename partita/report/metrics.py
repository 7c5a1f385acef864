"""Metrics of one step: sums and counts merged over micro-batches, minibatches and ranks, divided once at the very end.

A mean of means weighs a short micro-batch like a long one; here a mean is always (sum of sums) / (sum of counts).
Left out: who computes the values, and the transport between ranks. A `Metrics` pickles; gather them and `merge`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

Scalar = float | Tensor
Stats = Mapping[str, tuple[Scalar, Scalar | None]]

WORK = ("generate", "forward_backward", "optimizer")
"""`time/<name>` of what a step is for: seconds of models and optimizer, which lie within its phases."""


@dataclass
class Tally:
    """One metric. `count` weighs the mean; `low` and `high` are None until single values were seen.

    `nan_count` counts contributions that were NaN or infinite; they are in neither the sum nor the count.
    """

    total: float = 0.0
    count: float = 0.0
    low: float | None = None
    high: float | None = None
    nan_count: int = 0

    @property
    def mean(self) -> float | None:
        """total / count, or None when nothing finite was seen."""
        return self.total / self.count if self.count else None

    def add(self, total: float, count: float) -> None:
        """Add a sum over `count` items. A count of zero adds nothing, whatever the sum."""
        if count == 0:
            return
        if not (math.isfinite(total) and math.isfinite(count)):
            self.nan_count += 1
            return
        self.total += total
        self.count += count

    def observe(self, value: float) -> None:
        """Add one item, which also counts for the extremes."""
        self.add(value, 1.0)
        if math.isfinite(value):
            self.low = value if self.low is None else min(self.low, value)
            self.high = value if self.high is None else max(self.high, value)

    def merge(self, other: Tally) -> None:
        """Add what another micro-batch, minibatch or rank has seen."""
        self.total += other.total
        self.count += other.count
        self.nan_count += other.nan_count
        if other.low is not None and other.high is not None:
            self.low = other.low if self.low is None else min(self.low, other.low)
            self.high = other.high if self.high is None else max(self.high, other.high)


class Metrics:
    """Named means, extremes and counters of one step. A name that was never given a value is absent, not 0."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.counters: dict[str, float] = {}

    def __getitem__(self, name: str) -> Tally:
        return self.tallies[name]

    def add(self, stats: Stats) -> None:
        """Add (sum, count) pairs of floats or 0-d tensors, such as the statistics of a loss on one micro-batch.

        A count of None makes the name a counter, reported as its sum. The tensors of one call are read from their
        device together.
        """
        for name, (total, count) in _to_floats(stats).items():
            if count is None:
                self.count(name, total)
            else:
                self._tally(name).add(total, count)

    def observe(self, name: str, values: Iterable[float | None] | Tensor) -> None:
        """Add single values, each of weight one; None is absent. Reported with `min` and `max` beside the mean."""
        items = values.detach().flatten().tolist() if isinstance(values, Tensor) else values
        for value in items:
            if value is not None:
                self._tally(name).observe(float(value))

    def observe_rows(self, prefix: str, rows: Iterable[Mapping[str, float | None]]) -> None:
        """Add named parts of several samples as `prefix/<part>`; each averages over the samples that have it."""
        for row in rows:
            for part, value in row.items():
                self.observe(f"{prefix}/{part}", (value,))

    def put(self, name: str, value: float) -> None:
        """Add one value without extremes, such as a learning rate; several are averaged."""
        self._tally(name).add(float(value), 1.0)

    def count(self, name: str, amount: float = 1.0) -> None:
        """Add to a counter, which is reported as its sum (skipped steps, tokens, errors)."""
        if math.isfinite(amount):
            self.counters[name] = self.counters.get(name, 0.0) + amount
        else:
            self._tally(name).nan_count += 1

    def merge(self, other: Metrics) -> None:
        """Add what another micro-batch, minibatch or rank has seen; the order does not matter but for rounding."""
        for name, tally in other.tallies.items():
            self._tally(name).merge(tally)
        for name, amount in other.counters.items():
            self.count(name, amount)

    def as_dict(self) -> dict[str, float]:
        """Plain floats: `name` (mean), `name/min`, `name/max`, and `name/nan_count` where it is not zero; counters.

        For a name that ends in `/mean` the extremes stand beside it: `reward/mean`, `reward/min`, `reward/max`.
        """
        values: dict[str, float] = {}
        for name, tally in self.tallies.items():
            base = name.removesuffix("/mean")
            found = {
                name: tally.mean,
                f"{base}/min": tally.low,
                f"{base}/max": tally.high,
                f"{base}/nan_count": float(tally.nan_count) if tally.nan_count else None,
            }
            values |= {key: value for key, value in found.items() if value is not None}
        return values | self.counters

    def _tally(self, name: str) -> Tally:
        return self.tallies.setdefault(name, Tally())


def _to_floats(stats: Stats) -> dict[str, tuple[float, float | None]]:
    """The one place where tensors become floats: stacked per device and type, so that each is read once and exactly."""
    floats: list[float | None] = []
    waiting: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    for scalar in (scalar for pair in stats.values() for scalar in pair):
        if isinstance(scalar, Tensor):
            waiting.setdefault((scalar.device, scalar.dtype), []).append((len(floats), scalar.detach().reshape(())))
            floats.append(math.nan)
        else:
            floats.append(None if scalar is None else float(scalar))
    for entries in waiting.values():
        values = torch.stack([tensor for _, tensor in entries]).tolist()
        for (index, _), value in zip(entries, values, strict=True):
            floats[index] = float(value)
    totals, counts = floats[::2], floats[1::2]
    return {name: (float(t or 0.0), c) for name, t, c in zip(stats, totals, counts, strict=True)}


@dataclass
class Timer:
    """Wall seconds per phase of a step. A phase inside another counts in both; phases add up over a step."""

    clock: Callable[[], float] = time.perf_counter
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall time of the block to `phase`, also when the block raises."""
        start = self.clock()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self.clock() - start

    def take(self) -> dict[str, float]:
        """`time/<phase>` in seconds since the last `take`, and start anew."""
        taken = {f"time/{phase}": seconds for phase, seconds in self.seconds.items()}
        self.seconds = {}
        return taken
