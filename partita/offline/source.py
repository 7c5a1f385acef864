"""Where the items of a step come from: rows that are there, gone through again and again.

Left out: pairs that the policy itself answers (`offline.online`), which have the same face.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from partita.report.metrics import Metrics
from partita.tasks.cursor import Cursor
from partita.train.offline import Item

Weights = Callable[[], Iterable[tuple[str, Tensor]]]


class Source(Protocol):
    """Gives each train step its items, and can go on after a kill as if nothing had happened."""

    @property
    def size(self) -> int:
        """Rows, or prompts, of an epoch."""
        ...

    @property
    def batch_size(self) -> int:
        """How many of them a train step takes."""
        ...

    @property
    def taken(self) -> int:
        """How many were taken so far, over all epochs."""
        ...

    def take(self) -> tuple[list[Item], Metrics]:
        """The next step's items, and what is to be told of them."""
        ...

    def learned(self, step: int, weights: Weights) -> None:
        """Train step `step`, counted from 1, has moved the weights, which `weights` gives."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. Raises ValueError where that was saved for other rows."""
        ...


@dataclass
class Rows:
    """Items in a new order in every epoch. limit: passes over them, whose last step has what is left; None for no end."""

    items: Sequence[Item]
    cursor: Cursor[Item]
    batch_size: int
    limit: int | None

    @property
    def size(self) -> int:
        """Items of an epoch."""
        return len(self.items)

    @property
    def taken(self) -> int:
        """Items so far, over all epochs."""
        return self.cursor.epoch * len(self.items) + self.cursor.position

    def take(self) -> tuple[list[Item], Metrics]:
        """The next items."""
        size = self.batch_size
        if self.limit is not None:
            size = min(size, self.limit * len(self.items) - self.taken)
        return [self.cursor.next() for _ in range(size)], Metrics()

    def learned(self, step: int, weights: Weights) -> None:
        """Rows do not change."""

    def state_dict(self) -> dict[str, Any]:
        """The place in the order of the data."""
        return self.cursor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved place. Raises ValueError where it was saved for other items or another order."""
        self.cursor.load_state_dict(state)
