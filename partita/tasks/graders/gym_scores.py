"""What `graders.gym` has done in a process that can be ended: reasoning-gym's own scorers. Needs the extra `tasks`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

try:
    _gym = importlib.import_module("reasoning_gym")
except ImportError as error:
    raise ImportError(
        f"reasoning_gym_score needs reasoning-gym, which cannot be imported ({error}). Install it: pip install 'partita[tasks]'"
    ) from error


def score(dataset: str, given: str | None, entry: Mapping[str, Any]) -> float:
    """What the data set's scorer says of an answer to an entry. Raises ValueError for a name that reasoning-gym does not
    know.
    """
    return float(_scorer(dataset)(given, dict(entry)))


@cache
def _scorer(dataset: str) -> Callable[[str | None, dict[str, Any]], float]:
    return _gym.get_score_answer_fn(dataset)
