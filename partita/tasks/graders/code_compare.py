"""Whether what a program printed or returned is what was expected.

Left out: several right outputs, as "any order" or "any of the shortest paths".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_FRACTIONAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_LONGEST_NUMBER = 400
_LONGER = 16  # how many times as long as expected an output may be to be read at all


def same_output(expected: str, printed: str, tolerance: float) -> bool:
    """Line by line the same words; spaces within and after lines, and empty lines at the end, aside.

    Where a number with a decimal point is expected, any way to write a number within `tolerance` of it (relative above
    1, else absolute) is right.
    """
    expected, printed = expected.rstrip(), printed.rstrip()
    if expected == printed:
        return True
    if len(printed) > _LONGER * len(expected) + 1000 or expected.count("\n") != printed.count("\n"):
        return False
    pairs = zip(expected.split("\n"), printed.split("\n"), strict=True)
    return all(_same_words(wanted.split(), given.split(), tolerance) for wanted, given in pairs)


def _same_words(expected: list[str], printed: list[str], tolerance: float) -> bool:
    if len(expected) != len(printed):
        return False
    return all(a == b or _near_words(a, b, tolerance) for a, b in zip(expected, printed, strict=True))


def _near_words(expected: str, printed: str, tolerance: float) -> bool:
    if len(expected) > _LONGEST_NUMBER or len(printed) > _LONGEST_NUMBER:
        return False
    if not _FRACTIONAL.fullmatch(expected) or not _NUMBER.fullmatch(printed):
        return False
    return _near(float(expected), float(printed), tolerance)


def _near(a: float, b: float, tolerance: float) -> bool:
    return a == b or (math.isfinite(a) and abs(a - b) <= tolerance * max(1.0, abs(a)))


def same_value(expected: Any, given: Any, tolerance: float) -> bool:
    """Whether a value is the expected JSON value: tuples are lists, keys of dicts are text, floats have a tolerance."""
    if isinstance(expected, list):
        return (
            isinstance(given, list | tuple)
            and len(given) == len(expected)
            and all(same_value(a, b, tolerance) for a, b in zip(expected, given, strict=True))
        )
    if isinstance(expected, Mapping):
        named = {_key(key): value for key, value in given.items()} if isinstance(given, Mapping) else None
        return (
            named is not None
            and named.keys() == expected.keys()
            and all(same_value(value, named[key], tolerance) for key, value in expected.items())
        )
    if isinstance(expected, float) and isinstance(given, int | float):
        return _near(expected, float(given), tolerance) if abs(given) < 1e300 else expected == given
    return (type(expected) is type(given) and expected == given) or _same_number(expected, given)


def _same_number(a: Any, b: Any) -> bool:
    """1, 1.0 and True are one value for Python, so they are here."""
    return isinstance(a, int | float) and isinstance(b, int | float) and a == b


def _key(key: Any) -> str:
    """A key as JSON writes it."""
    if isinstance(key, bool) or key is None:
        return {True: "true", False: "false", None: "null"}[key]
    return str(key)
