"""Finds values in rows: a column by its name, a dot reaching inside it, and the nearest name where there is none.

Left out: what the values mean.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from partita.tasks.files import DataError


class _Missing:
    """Stands where a row has no such column; null is a value."""


MISSING: Final = _Missing()


def cell(values: Mapping[str, Any], column: str) -> Any:
    """The value of a column, `reward_model.ground_truth` reaching inside; MISSING where there is none."""
    found: Any = values
    for part in [column] if column in values else column.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return MISSING
        found = found[part]
    return found


def required(values: Mapping[str, Any], column: str) -> Any:
    """The value of a column. Raises DataError with the nearest name where there is none."""
    value = cell(values, column)
    if value is MISSING:
        raise DataError(f"no {column!r}{near_column(column, values)}")
    return value


def near_column(name: str, columns: Iterable[str]) -> str:
    """` (near: answr)` for a message, empty where no column is called alike. Looks inside a column that is there."""
    near = _nearest(name, columns)
    return f" (near: {near})" if near else ""


def _nearest(name: str, columns: Iterable[str]) -> str | None:
    first, _, rest = name.partition(".")
    inner = columns.get(first) if isinstance(columns, Mapping) else None
    if rest and isinstance(inner, Mapping):
        near = _nearest(rest, inner)
        return f"{first}.{near}" if near else None
    near = difflib.get_close_matches(first, [one for one in columns if one != first], 1, 0.7)
    return near[0] if near else None
