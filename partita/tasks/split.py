"""Which rows are held out: those whose question has a low hash, so that it never depends on what other rows there are.

Left out: what a question is. For prompts it is what the row asks, before `system`, `instruction` and `examples` are added;
for rows to learn from it is what stands before the last learned answer. So a question is on the same side in both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TypeVar

from partita.tasks.files import DataError

Row = TypeVar("Row")


def digest(content: object) -> str:
    """32 hex digits that stand for plain data, the same in every run and on every machine."""
    return hashlib.blake2b(json.dumps(content, default=str).encode(), digest_size=16).hexdigest()


def is_held_out(question: str, share: float) -> bool:
    """Whether a question with this digest is held out. share: of all questions, 0 to 1."""
    return int(question[:12], 16) / 16**12 < share


def divided(rows: Sequence[Row], questions: Sequence[str], share: float) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Rows to train on and rows held out. Rows with one question stay together.

    Raises DataError where a share above 0 puts all of them on one side.
    """
    held = [is_held_out(question, share) for question in questions]
    if share and (all(held) or not any(held)):
        what = "all" if all(held) else "none"
        raise DataError(f"held_out={share} holds out {what} of {len(rows)} rows; change it, or set a valid_dataset")
    parts = [tuple(row for row, out in zip(rows, held, strict=True) if out == side) for side in (False, True)]
    return parts[0], parts[1]
