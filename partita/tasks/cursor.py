"""An endless pass over a list that remembers its place: the data order of a run.

Left out: what the items are. The order depends on (seed, epoch) and nothing else, so a resumed run continues exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np


class HasUid(Protocol):
    """Anything with a name of its own in the list."""

    @property
    def uid(self) -> str:
        """Different for every item of the list."""
        ...


Item = TypeVar("Item", bound=HasUid)


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """The permutation of 0..n-1 for one epoch: the ranks of n raw 64-bit words of Philox under the key (seed, epoch).

    Raw words, as NumPy keeps those the same between versions and does not promise that for its own shuffling.
    """
    words = np.random.Philox(key=np.array([seed % 2**64, epoch], dtype=np.uint64)).random_raw(n)
    return np.argsort(words, kind="stable")


class Cursor(Generic[Item]):
    """Goes through `items` epoch after epoch, each time in a new order when `shuffle` is set."""

    def __init__(self, items: Sequence[Item], seed: int, shuffle: bool) -> None:
        if not items:
            raise ValueError("no items to go through")
        self._items = items
        self._seed = seed
        self._shuffle = shuffle
        self._fingerprint = hashlib.blake2b("\n".join(i.uid for i in items).encode(), digest_size=8).hexdigest()
        self.epoch = 0
        self.position = 0
        self._order = self._order_of(0)

    def _order_of(self, epoch: int) -> np.ndarray:
        n = len(self._items)
        return epoch_order(n, self._seed, epoch) if self._shuffle else np.arange(n)

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
        return {
            "items": len(self._items),
            "fingerprint": self._fingerprint,
            "seed": self._seed,
            "shuffle": self._shuffle,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved place. Raises ValueError when it was saved for other data or another order."""
        for name, value in self._identity().items():
            if state[name] != value:
                raise ValueError(f"the saved data position is for {name}={state[name]}, this run has {name}={value}")
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._order = self._order_of(self.epoch)
