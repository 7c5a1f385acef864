"""In which order prompts are drawn: at random or by difficulty, from one source or from several by their weights.

Everything depends on the seed and the number of prompts drawn so far, so a resumed run draws what it would have drawn.
Left out: which prompts there are (`tasks.dataset`, `tasks.prompt`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from partita.records import Prompt
from partita.tasks.cells import cell
from partita.tasks.cursor import Cursor, Ranks
from partita.tasks.dataset import MIX, rates_of
from partita.tasks.files import DataError
from partita.tasks.settings import DatasetConfig

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def in_order(prompts: Sequence[Prompt], config: DatasetConfig, seed: int) -> Cursor[Prompt] | Mixed[Prompt]:
    """The endless source of a section's prompts.

    Raises DataError for a curriculum by a column in which a prompt has no number, and for a source of `mix` of which no
    prompt is left.
    """
    if not config.mix:
        return Cursor(prompts, seed, config.shuffle, _ranks(prompts, config))
    sources = dict[str, tuple[Cursor[Prompt], float]]()
    for name, source in config.mix.items():
        own = [prompt for prompt in prompts if prompt.row[MIX] == name]
        if not own:
            raise DataError(f"mix.{name}: no prompt is left of it; take it out")
        sources[name] = Cursor(own, seed_of(seed, name), config.shuffle, _ranks(own, config)), source.weight
    return Mixed(sources)


def seed_of(seed: int, name: str) -> int:
    """The seed of a source: sources of equal size have different orders."""
    return seed + int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")


def _ranks(prompts: Sequence[Prompt], config: DatasetConfig) -> Ranks | None:
    curriculum = config.curriculum
    if curriculum is None:
        return None
    sign = 1.0 if curriculum.order == "easy_first" else -1.0
    if curriculum.by == "pass_rate":
        rates = rates_of(config)
        known = [rates.rate(prompt.messages) for prompt in prompts]
        if all(rate is None for rate in known):
            raise DataError("curriculum.by=pass_rate: none of these prompts is counted in pass_rates.files")
        # whatever is not known comes last
        values = [math.inf if rate is None else -sign * rate for rate in known]
    else:
        values = [sign * _difficulty(prompt, curriculum.by) for prompt in prompts]
    return Ranks(np.array(values), curriculum.epochs)


def _difficulty(prompt: Prompt, column: str) -> float:
    """A number, or the last one in a text: "Level 3" is 3."""
    value = cell(prompt.row, column)
    if isinstance(value, int | float | Decimal) and math.isfinite(value):
        return float(value)
    numbers = _NUMBER.findall(value) if isinstance(value, str) else []
    if not numbers:
        columns = ", ".join(map(str, prompt.row))
        raise DataError(
            f"curriculum.by={column}: prompt {prompt.uid} has no number there, but {value!r}; the columns are {columns}"
        )
    return float(numbers[-1])


class Endless(Protocol[Item_co]):
    """A source that never ends and goes on from a saved place. left_out: rows so far that became no item."""

    @property
    def left_out(self) -> int: ...

    def next(self) -> Item_co:
        """The next item."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The place."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        ...


class Mixed(Generic[Item]):
    """Several endless sources by their weights: after every draw each has given its share of all prompts to within one.

    The source of the next prompt is that of Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980): of
    those that may have a further prompt, the one whose turn would be over first.
    """

    def __init__(self, sources: Mapping[str, tuple[Endless[Item], float]]) -> None:
        self._sources = {name: source for name, (source, _) in sources.items()}
        weights = {name: Fraction(str(weight)) for name, (_, weight) in sources.items()}
        whole = sum(weights.values())
        self._shares = {name: weight / whole for name, weight in weights.items()}
        self.drawn = dict.fromkeys(self._sources, 0)

    def next(self) -> Item:
        """The next prompt of the source whose turn it is."""
        name = self._turn()
        self.drawn[name] += 1
        return self._sources[name].next()

    def _turn(self) -> str:
        number, margin = sum(self.drawn.values()) + 1, Fraction(1, max(2 * len(self._shares) - 2, 1))
        behind = {name: share * number - self.drawn[name] for name, share in self._shares.items()}
        allowed = [name for name, missing in behind.items() if missing >= margin]
        # one source alone is always allowed
        return min(allowed or list(behind), key=lambda name: (1 - margin - behind[name]) / self._shares[name])

    @property
    def left_out(self) -> int:
        """Of all sources."""
        return sum(source.left_out for source in self._sources.values())

    def state_dict(self) -> dict[str, Any]:
        """How many prompts each source has given, its place, and the shares that this belongs to."""
        return {
            "drawn": dict(self.drawn),
            "shares": {name: str(share) for name, share in self._shares.items()},
            "sources": {name: source.state_dict() for name, source in self._sources.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved place. Raises ValueError when it was saved for other sources, weights, data or orders."""
        shares = {name: str(share) for name, share in self._shares.items()}
        if state.get("shares") != shares:
            raise ValueError(f"the saved data position is for shares {state.get('shares')}, this run has {shares}")
        for name, source in self._sources.items():
            try:
                source.load_state_dict(state["sources"][name])
            except ValueError as error:
                raise ValueError(f"mix.{name}: {error}") from error
        self.drawn = {name: int(state["drawn"][name]) for name in self._sources}
