"""Gold answers as text: the cell as it stands, what follows the last ####, or what the last \\boxed{} holds.

Left out: judging by them; see `tasks.graders`.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Literal

from partita.tasks.files import DataError
from partita.tasks.graders.final import last_box

Format = Literal["gsm8k", "boxed", "plain"]


def gold_of(value: object, column: str, form: Format) -> str:
    """The gold answer in a cell. Raises DataError where there is none: it is never the whole of a worked solution."""
    text = gold_text(value, column)
    if form == "plain":
        return text
    return after_hashes(text, column) if form == "gsm8k" else in_box(text, column)


def gold_text(value: object, column: str) -> str:
    """A gold answer as text; numbers in their shortest form, 42.0 as "42". Raises DataError for anything else."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return str(int(value)) if value == int(value) else str(value)
    what = "null" if value is None else "empty" if value == "" else f"{value!r} ({type(value).__name__})"
    raise DataError(f"{column!r} is {what[:120]}; a gold answer must be text or a number")


def after_hashes(text: str, column: str) -> str:
    """What follows the last ####, without commas. Raises DataError where nothing does, or several lines do."""
    _, hashes, gold = text.rpartition("####")
    gold = gold.strip().replace(",", "")
    if hashes and "\n" in gold:
        what = f"{column!r} has {gold[:60]!r} after its last ####, which is a heading and no answer"
        raise DataError(f"{what}; set columns.answer to the column with the answer alone, or answer_format")
    if hashes and gold:
        return gold
    if not hashes and len(text) < 40 and text.replace(",", "").lstrip("-").replace(".", "", 1).isdigit():
        raise DataError(
            f"{column!r} has no '#### answer', only {text!r}; set answer_format=plain if that is the whole answer"
        )
    raise DataError(f"{column!r} has no '#### answer' at its end: {text[-60:]!r}")


def in_box(text: str, column: str) -> str:
    """What the last \\boxed{} holds. Raises DataError where there is none, or an empty one."""
    gold = last_box(text) if "\\boxed" in text else None
    if gold is None:
        raise DataError(f"{column!r} has no \\boxed{{answer}}: {text[-60:]!r}")
    return gold
