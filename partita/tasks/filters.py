"""Chooses rows by the values of their columns: equal to one value, one of several, or within a range.

Left out: lengths in tokens (`tasks.prompt`) and pass rates (`tasks.rates`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partita.tasks.cells import MISSING, cell, near_column
from partita.tasks.files import DataError, RawRow

_RANGE = frozenset({"min", "max"})
_SHOWN = 6  # values named where none is the wanted one


def checked_tests(rows: Sequence[RawRow], where: Mapping[str, Any], *, whole: bool = True) -> dict[str, Any]:
    """What is asked of each column, those inside others by their dotted names. whole: these are all rows there are.

    Raises DataError for a column that none of the rows has, with the nearest name, and for a value that none of all has, with
    some that there are.
    """
    tests = dict(_flat(where, ""))
    for column, test in tests.items():
        values = [found for row in rows if (found := cell(row.values, column)) is not MISSING]
        if not values or (whole and not any(_holds(value, test) for value in values)):
            raise DataError(_nothing(column, test, values, rows[0]))
    return tests


def fits(row: RawRow, tests: Mapping[str, Any]) -> bool:
    """Whether a row has all that is asked; one without the column has it not. A row that could not be read stays: it is for
    others to count.
    """
    return bool(row.fault) or all(_holds(cell(row.values, column), test) for column, test in tests.items())


def _flat(where: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    """`{extra_info: {level: 3}}`, as the command line makes it of dots, as `extra_info.level`."""
    for name, test in where.items():
        if isinstance(test, Mapping) and not set(test) <= _RANGE:
            yield from _flat(test, f"{before}{name}.")
        else:
            yield f"{before}{name}", test


def _holds(value: Any, test: Any) -> bool:
    if value is MISSING:
        return False
    if isinstance(test, Mapping):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and test.get("min", value) <= value <= test.get("max", value)
    wanted = test if isinstance(test, list) else [test]
    return any((type(value) is type(one) and value == one) or _equal_numbers(value, one) for one in wanted)


def _equal_numbers(value: Any, wanted: Any) -> bool:
    """3 is 3.0, but 1 is not true."""
    kinds = (int, float)
    return type(value) in kinds and type(wanted) in kinds and value == wanted


def _nothing(column: str, test: Any, values: Sequence[Any], first: RawRow) -> str:
    if not values:
        columns = first.values
        return f"where: no column {column!r}{near_column(column, columns)}; the columns are {', '.join(columns)}"
    found = list(dict.fromkeys(repr(value)[:40] for value in values))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"where: no row has {column} {_words(test)}; its values are {', '.join(found[:_SHOWN])}{more}"


def _words(test: Any) -> str:
    if isinstance(test, Mapping):
        return " and ".join(f"{'at least' if name == 'min' else 'at most'} {limit}" for name, limit in test.items())
    return " or ".join(map(repr, test if isinstance(test, list) else [test]))
