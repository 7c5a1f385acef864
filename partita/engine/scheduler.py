"""Which request starts in which slot: first come, first served; slots stay dense; equal prompts are computed once.

Rows 0 .. n-1 are the live slots. A decision depends only on what was submitted and retired, never on time, so equal
rounds give equal batches. Plain Python: no tensors, no threads, no clocks.

Left out: what a request is. Anything with `prompt_ids` can be scheduled.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Schedulable(Protocol):
    """What the scheduler needs to know of a request."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Requests with equal ids share their prefill."""
        ...


T = TypeVar("T", bound=Schedulable)


@dataclass(frozen=True)
class Start:
    """`count` live rows from `first` that start with the same prompt."""

    prompt_ids: tuple[int, ...]
    first: int
    count: int


@dataclass(frozen=True)
class Admission:
    """What to do for the rows that start now.

    prefill: distinct prompts to compute, together in one forward. starts: which rows start from which prompt (from
    `prefill` or from an earlier one that was kept). keep: prompts whose keys and values must be kept, because more
    requests wait for them; everything else that was kept can go.
    """

    prefill: tuple[tuple[int, ...], ...]
    starts: tuple[Start, ...]
    keep: frozenset[tuple[int, ...]]


@dataclass(frozen=True)
class Moves:
    """Rows to copy so that the live rows are 0 .. `live`-1 again; sources and targets are disjoint."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    live: int


class Scheduler(Generic[T]):
    """Waiting and running requests. `running[row]` is the request of a live row."""

    def __init__(self, slots: int, prefill_tokens: int) -> None:
        """At most `slots` live rows; a prefill computes one prompt, or at most `prefill_tokens` tokens with padding."""
        if slots < 1 or prefill_tokens < 1:
            raise ValueError(f"slots={slots} and prefill_tokens={prefill_tokens} must be at least 1")
        self.slots, self.prefill_tokens = slots, prefill_tokens
        self.running: list[T] = []
        self._waiting: deque[T] = deque()
        self._waiting_for: Counter[tuple[int, ...]] = Counter()
        self._kept: frozenset[tuple[int, ...]] = frozenset()

    @property
    def open(self) -> list[T]:
        """Every request that has not been retired, running ones first."""
        return [*self.running, *self._waiting]

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self.running and not self._waiting

    def submit(self, requests: Iterable[T]) -> None:
        """Queue a round behind everything that waits."""
        for request in requests:
            self._waiting.append(request)
            self._waiting_for[request.prompt_ids] += 1

    def admit(self) -> Admission | None:
        """Start waiting requests until the slots or the prefill budget are used up; None when none can start.

        Start order is submit order: a request that needs no prefill never overtakes one that does.
        """
        first = len(self.running)
        prefill: dict[tuple[int, ...], None] = {}
        widest = 0
        while self._waiting and len(self.running) < self.slots:
            prompt = self._waiting[0].prompt_ids
            if prompt not in self._kept and prompt not in prefill:
                padded = (len(prefill) + 1) * max(widest, len(prompt))
                if prefill and padded > self.prefill_tokens:
                    break
                prefill[prompt] = None
                widest = max(widest, len(prompt))
            self.running.append(self._waiting.popleft())
            self._waiting_for[prompt] -= 1
        if len(self.running) == first:
            return None
        self._kept = frozenset(p for p in (*self._kept, *prefill) if self._waiting_for[p])
        self._waiting_for = +self._waiting_for  # drops zero counts
        return Admission(tuple(prefill), self._starts(first), self._kept)

    def retire(self, rows: Sequence[int]) -> Moves:
        """Take rows out of the batch and fill their places with the last live rows."""
        gone = set(rows)
        live = len(self.running) - len(gone)
        targets = sorted(row for row in gone if row < live)
        sources = [row for row in range(live, len(self.running)) if row not in gone]
        for source, target in zip(sources, targets, strict=True):
            self.running[target] = self.running[source]
        del self.running[live:]
        return Moves(tuple(sources), tuple(targets), live)

    def forget_prefixes(self) -> None:
        """The weights changed: what was computed for a prompt no longer holds."""
        self._kept = frozenset()

    def _starts(self, first: int) -> tuple[Start, ...]:
        starts: list[Start] = []
        for row in range(first, len(self.running)):
            prompt = self.running[row].prompt_ids
            if starts and starts[-1].prompt_ids == prompt:
                starts[-1] = Start(prompt, starts[-1].first, starts[-1].count + 1)
            else:
                starts.append(Start(prompt, row, 1))
        return tuple(starts)
