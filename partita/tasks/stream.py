"""Prompts of a source that is too large for memory: read, shuffled and rendered a block of rows at a time.

The order within a block depends on (seed, epoch, block) and nothing else, so a resumed run opens the source at its block and
goes on at the very prompt. How a row is read is decided by the first block. Left out: what needs all rows at once (several
sources, a curriculum, rows held out, equal rows merged).
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from partita.records import Prompt
from partita.tasks.cursor import epoch_order
from partita.tasks.dataset import (
    Intake,
    TaskRow,
    TaskRows,
    is_wanted,
    judged_by,
    rates_of,
    readable_rows,
    rows_ahead,
)
from partita.tasks.files import DataError, RawRow
from partita.tasks.filters import checked_tests, fits
from partita.tasks.prompt import PromptError, Sieve
from partita.tasks.reading import Reader
from partita.tasks.settings import DatasetConfig


class Rows:
    """The task rows of a source, block by block. Raises DataError when made, for a source that cannot be streamed or read."""

    def __init__(self, config: DatasetConfig) -> None:
        self._config, self._rates = config, rates_of(config)
        self._open = rows_ahead(config)
        self._at, self._rest = 0, self._open(0)
        self._head = self._raw(0)
        readable = readable_rows(self._head, config)
        self._tests = checked_tests(readable, config.where, whole=False)
        self.reader = Reader.of([row for row in readable if fits(row, self._tests)] or readable, config)
        self.functions, self.bad = judged_by(self.reader, readable), 0

    def block(self, number: int) -> list[TaskRow] | None:
        """The usable rows of a block, counted from 0; None behind the end. Raises DataError for a bad row, unless
        on_bad_row=drop, which warns of the first.
        """
        raw = self._head if number == 0 else self._raw(number)
        if not raw:
            return None
        intake = Intake(self.reader)
        first = number * self._config.buffer_rows + 1
        for at, row in enumerate(raw, first):
            if fits(row, self._tests):
                intake.take(at, row)
        if intake.bad and self._config.on_bad_row == "error":
            intake.check()
        if intake.bad and not self.bad:
            warnings.warn(
                f"left out (on_bad_row=drop), the first of {self._config.path}: {intake.bad[0]}", stacklevel=2
            )
        self.bad += len(intake.bad)
        if not self._config.pass_rates.files:
            return intake.rows
        return [row for row in intake.rows if is_wanted(row, self._config.pass_rates, self._rates)]

    def _raw(self, number: int) -> list[RawRow]:
        """The rows of a block: those that come next, or behind a place further on."""
        if number != self._at:
            self._at, self._rest = number, self._open(number * self._config.buffer_rows)
        self._at += 1
        return list(islice(self._rest, self._config.buffer_rows))


def load_head(config: DatasetConfig, *, section: str = "train_dataset") -> TaskRows:
    """What the first block says of a source: its rows, for checks before anything is sampled. Raises DataError."""
    try:
        rows = Rows(config)
        head = rows.block(0) or []
    except DataError as error:
        raise DataError(f"{section}: {error}") from error.__cause__
    notes = (
        *rows.reader.notes(),
        f"{config.path}: read as it goes, {config.buffer_rows} rows at a time; these are the first",
    )
    return TaskRows(tuple(head), rows.functions, notes)


class Stream:
    """An endless source of prompts; its state is a place. left_out: prompts of the wrong length since the process began."""

    def __init__(self, config: DatasetConfig, sieve: Sieve, seed: int) -> None:
        self._config, self._sieve, self._seed = config, sieve, seed
        self._rows = Rows(config)
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
        rows = self._rows.block(self.block)
        self._prompts = [] if rows is None else self._sieve.prompts(rows)
        if self._sieve.long and self._config.too_long == "error":
            length, uid = self._sieve.long[0]
            raise PromptError(
                f"row {uid} has {length} tokens, at most {self._sieve.limit} are allowed ({self._sieve.why})"
            )
        self.left_out += len(self._sieve.long) + len(self._sieve.short)
        self._sieve.long.clear()
        self._sieve.short.clear()
        size = len(self._prompts)
        order = epoch_order(size, self._seed, self.epoch, self.block) if self._config.shuffle else np.arange(size)
        self._order = [int(one) for one in order]
        return rows is not None

    def state_dict(self) -> dict[str, Any]:
        """The place, and what it belongs to."""
        return {"epoch": self.epoch, "block": self.block, "position": self.position, **self._identity()}

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
