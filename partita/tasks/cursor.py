"""An endless pass over a list that remembers its place: the data order of a run.

Left out: what the items are. The order depends on (seed, epoch) and nothing else, so a resumed run continues exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np


class HasUid(Protocol):
    """Anything with a name of its own in the list."""

    @property
    def uid(self) -> str:
        """Different for every item of the list."""
        ...


Item = TypeVar("Item", bound=HasUid)


def epoch_order(n: int, seed: int, epoch: int, block: int = 0) -> np.ndarray:
    """The permutation of 0..n-1 for one epoch: the ranks of n raw 64-bit words of Philox under the key (seed, epoch). block:
    of an epoch that is shuffled in parts, the number of the part.

    Raw words, as NumPy keeps those the same between versions and does not promise that for its own shuffling.
    """
    key, counter = np.array([seed % 2**64, epoch], dtype=np.uint64), np.array([0, 0, 0, block], dtype=np.uint64)
    words = np.random.Philox(counter=counter, key=key).random_raw(n)
    return np.argsort(words, kind="stable")


@dataclass(frozen=True)
class Ranks:
    """An order of difficulty: lower values come first. epochs: only in the first so many; None for all.

    Equal values keep the order that they have without it.
    """

    values: np.ndarray
    epochs: int | None = None

    def sorted(self, order: np.ndarray, epoch: int) -> np.ndarray:
        """The order of an epoch, given the one it would have without ranks."""
        if self.epochs is not None and epoch >= self.epochs:
            return order
        return order[np.argsort(self.values[order], kind="stable")]

    def fingerprint(self) -> str:
        """What the order belongs to."""
        return hashlib.blake2b(self.values.tobytes() + repr(self.epochs).encode(), digest_size=8).hexdigest()


class Cursor(Generic[Item]):
    """Goes through `items` epoch after epoch, each time in a new order when `shuffle` is set, sorted by `ranks` if there are
    any. left_out: none, as all are known.
    """

    left_out = 0

    def __init__(self, items: Sequence[Item], seed: int, shuffle: bool, ranks: Ranks | None = None) -> None:
        if not items:
            raise ValueError("no items to go through")
        self._items = items
        self._seed = seed
        self._shuffle = shuffle
        self._ranks = ranks
        self._fingerprint = hashlib.blake2b("\n".join(i.uid for i in items).encode(), digest_size=8).hexdigest()
        self.epoch = 0
        self.position = 0
        self._order = self._order_of(0)

    def _order_of(self, epoch: int) -> np.ndarray:
        n = len(self._items)
        order = epoch_order(n, self._seed, epoch) if self._shuffle else np.arange(n)
        return order if self._ranks is None else self._ranks.sorted(order, epoch)

    def next(self) -> Item:
        """The next item; after the last one of an epoch comes the first of the next epoch."""
        if self.position == len(self._items):
            self.epoch, self.position = self.epoch + 1, 0
            self._order = self._order_of(self.epoch)
        item = self._items[int(self._order[self.position])]
        self.position += 1
        return item

    def state_dict(self) -> dict[str, Any]:
        """Epoch and position, and what they belong to: number of items, a hash of their uids, seed, shuffle."""
        return {"epoch": self.epoch, "position": self.position, **self._identity()}

    def _identity(self) -> dict[str, Any]:
        ranks = {} if self._ranks is None else {"ranks": self._ranks.fingerprint()}
        return {
            "items": len(self._items),
            "fingerprint": self._fingerprint,
            "seed": self._seed,
            "shuffle": self._shuffle,
            **ranks,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved place. Raises ValueError when it was saved for other data or another order."""
        here = self._identity()
        for name in dict.fromkeys((*here, *(set(state) - {"epoch", "position"}))):
            if state.get(name) != here.get(name):
                raise ValueError(
                    f"the saved data position is for {name}={state.get(name)}, this run has {name}={here.get(name)}"
                )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._order = self._order_of(self.epoch)
