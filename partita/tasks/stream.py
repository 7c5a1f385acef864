"""Prompts of a source that is too large for memory: read, shuffled and rendered a block of rows at a time.

The order within a block depends on (seed, epoch, block) and nothing else, so a resumed run opens the source at its block and
goes on at the very prompt. Left out: reading (`tasks.dataset.Blocks`), and what needs all rows at once: a curriculum, equal
rows merged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.records import Prompt
from partita.tasks.cursor import epoch_order
from partita.tasks.dataset import Blocks, of_source
from partita.tasks.files import DataError
from partita.tasks.order import Mixed, seed_of
from partita.tasks.prompt import PromptError, Sieve
from partita.tasks.settings import DatasetConfig


def stream_of(config: DatasetConfig, sieve: Sieve, seed: int) -> Stream | Mixed[Prompt]:
    """The endless source of a section's prompts; of several sources each is read as it goes, and drawn from by its weight.

    Raises DataError for a source that cannot be streamed or read.
    """
    if not config.mix:
        return Stream(config, sieve, seed)
    sources = dict[str, tuple[Stream, float]]()
    for name, source in config.mix.items():
        try:
            sources[name] = Stream(config.source(name), sieve, seed_of(seed, name), name), source.weight
        except DataError as error:
            raise DataError(f"mix.{name}: {error}") from error.__cause__
    return Mixed(sources)


class Stream:
    """An endless source of prompts; its state is a place. left_out: rows so far that could not be used, and prompts of the wrong
    length. name: of the source, where there are several.
    """

    def __init__(self, config: DatasetConfig, sieve: Sieve, seed: int, name: str | None = None) -> None:
        self._config, self._sieve, self._seed, self._name = config, sieve, seed, name
        self._blocks = Blocks(config)
        self.epoch, self.block, self.position, self.left_out = 0, 0, 0, 0
        self._prompts = list[Prompt]()
        self._order: Sequence[int] = ()
        self._fill()
        self._first = hashlib.blake2b("\n".join(p.uid for p in self._prompts).encode(), digest_size=8).hexdigest()

    def next(self) -> Prompt:
        """The next prompt; after the last one of the source comes its first block again, in another order.

        Raises DataError for a row that cannot be used and for a pass without any prompt, PromptError for one that is too
        long where that is an error.
        """
        empty = 0
        while self.position == len(self._prompts):
            self.block, self.position = self.block + 1, 0
            if not self._fill():
                self.epoch, self.block = self.epoch + 1, 0
                self._fill()
                empty += 1
            if empty > 1:
                raise DataError(f"{self._config.path}: not one of its rows became a prompt")
        self.position += 1
        return self._prompts[self._order[self.position - 1]]

    def _fill(self) -> bool:
        """Render the block; False behind the end."""
        before, rows = self._blocks.bad, self._blocks.block(self.block)
        named = rows or [] if self._name is None else [of_source(row, self._name) for row in rows or []]
        self._prompts = self._sieve.prompts(named)
        if self._sieve.long and self._config.too_long == "error":
            length, uid = self._sieve.long[0]
            raise PromptError(
                f"row {uid} has {length} tokens, at most {self._sieve.limit} are allowed ({self._sieve.why})"
            )
        self.left_out += self._blocks.bad - before + len(self._sieve.long) + len(self._sieve.short)
        self._sieve.long.clear()
        self._sieve.short.clear()
        size = len(self._prompts)
        order = epoch_order(size, self._seed, self.epoch, self.block) if self._config.shuffle else np.arange(size)
        self._order = [int(one) for one in order]
        return rows is not None

    def state_dict(self) -> dict[str, Any]:
        """The place, and what it belongs to."""
        place = {"epoch": self.epoch, "block": self.block, "position": self.position, "left_out": self.left_out}
        return place | self._identity()

    def _identity(self) -> dict[str, Any]:
        return {
            "path": self._config.path, "first_block": self._first, "buffer_rows": self._config.buffer_rows, "seed": self._seed,
            "shuffle": self._config.shuffle,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved place. Raises ValueError when it was saved for other data or another order."""
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ValueError(
                    f"the saved data position is for {name}={state.get(name)}, this run has {name}={value}"
                )
        self.epoch, self.block, self.position = int(state["epoch"]), int(state["block"]), int(state["position"])
        self._fill()
        self.left_out = int(state["left_out"])  # with those of this block, which was counted before
