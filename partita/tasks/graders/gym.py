"""Judges answers to reasoning-gym's tasks by the scorer of the task itself, of which some give part of the points.

Left out: making such tasks (`tasks.gym_rows`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from partita.tasks.graders.final import final_text
from partita.tasks.graders.workers import call

LIMIT_SECONDS = 10.0


class GymError(ValueError):
    """A row that is no entry of reasoning-gym, or a scorer that failed on it."""


def reasoning_gym_score(
    response: str, row: Mapping[str, Any], dataset: str | None = None, limit_seconds: float = LIMIT_SECONDS
) -> float:
    """The score, 0.0 to 1.0, that reasoning-gym gives the final text of the response (`graders.final`).

    row: an entry as reasoning-gym makes it: question, answer and metadata, an object or JSON text. dataset: name of the
    data set, from the function's kwargs or a column; None reads `source_dataset` in the metadata. Lists that were tuples in
    the metadata stay lists. Needs the extra `tasks`.
    Raises GymError for rows without these, PoolError where reasoning-gym is not installed.
    """
    entry = _entry(row)
    name = dataset or entry["metadata"].get("source_dataset")
    if not name:
        raise GymError("the row does not say which data set it is from: no metadata.source_dataset; set `dataset`")
    asked = {"dataset": name, "given": final_text(response) or None, "entry": entry}
    outcome = call("partita.tasks.graders.gym_scores:score", asked, limit_seconds)
    if outcome.reward is None:
        raise GymError(f"{name}: {outcome.error}")
    return outcome.reward


def _entry(row: Mapping[str, Any]) -> dict[str, Any]:
    if missing := [name for name in ("question", "answer", "metadata") if name not in row]:
        raise GymError(f"the row has no {' and no '.join(missing)}; its columns are {', '.join(row)}")
    metadata = row["metadata"]
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except json.JSONDecodeError as error:
            raise GymError(f"metadata is text and not JSON: {error}") from error
    if not isinstance(metadata, Mapping):
        raise GymError(f"metadata is {metadata!r:.80}; expected an object")
    return {"question": row["question"], "answer": row["answer"], "metadata": dict(metadata)}
