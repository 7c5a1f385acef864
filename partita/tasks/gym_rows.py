"""Rows of reasoning-gym's tasks, made as they are asked for. Needs the extra `tasks`.

Left out: judging them (`tasks.graders.gym`), and how hard they are: every task is made with its own defaults.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count, islice
from typing import Any

from partita.tasks.functions import LoadError

_TRIES = 50  # entries that are made at most for each row that is wanted
_CHUNK = 200  # entries that a task is asked for at once
_APART = 1_000_000  # entries between two seeds: entry i of seed s is reasoning-gym's own of seed s + i


def check_name(name: str) -> None:
    """Raises LoadError for a name that reasoning-gym does not know, and where it is not installed."""
    known = sorted(_known())
    if name not in known:
        near = difflib.get_close_matches(name, known, 3)
        more = f"near: {', '.join(near)}" if near else f"it has {', '.join(known[:6])} and {len(known) - 6} more"
        raise LoadError(f"reasoning_gym/{name}: reasoning-gym has no such task; {more}")


@cache
def has_gold(name: str) -> bool:
    """Whether entries of a task have a gold answer: of some only the scorer knows what is right. Raises LoadError."""
    return next(_entries(name, 0))["answer"] is not None


def rows_of(name: str, keep: Callable[[str], bool], size: int, seed: int) -> list[dict[str, Any]]:
    """The first `size` entries with different questions that are to be kept. Raises ValueError where there are not so many,
    LoadError where the task needs more than its name.
    """
    found = dict[str, dict[str, Any]]()
    for entry in islice(_entries(name, seed * _APART), _TRIES * size):
        if keep(entry["question"]):
            found.setdefault(entry["question"], entry)
        if len(found) == size:
            return list(found.values())
    tried = f"gave {len(found)} different rows of this split in {_TRIES * size} tries"
    raise ValueError(f"size={size}: reasoning_gym/{name} {tried}")


def _entries(name: str, seed: int) -> Iterator[dict[str, Any]]:
    """Entry after entry, without end; made by and by, as some tasks make all that they are asked for at once."""
    for start in count(seed, _CHUNK):
        try:
            made = _gym().create_dataset(name, seed=start, size=_CHUNK)
        except Exception as error:  # whatever a task's own checks raise
            raise LoadError(f"reasoning_gym/{name}: cannot be made of its name alone: {error}") from error
        yield from (dict(made[index]) for index in range(_CHUNK))


def _known() -> dict[str, Any]:
    _gym()
    return dict(importlib.import_module("reasoning_gym.factory").DATASETS)


def _gym() -> Any:
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        told = f"tasks of reasoning-gym need it, and it cannot be imported ({error})"
        raise LoadError(f"{told}. Install it: pip install 'partita[tasks]'") from error
