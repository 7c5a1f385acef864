"""How Python values travel between a program under test and who asks it: JSON, with marks for what JSON does not have.

What cannot be written down (functions, objects of the program's own classes) stays where it is and travels as a number.
Nothing that is read here can run anything.

Left out: NumPy arrays and other types from outside the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

Stay = Callable[[Any], int]
"""Keeps an object and gives the number that it travels as."""
Fetch = Callable[[int], Any]
"""The object, or something that stands for it, behind a number."""

_LISTED: Mapping[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "iterator": iter,
}
_WRITTEN: Mapping[str, Callable[[Any], Any]] = {
    "bytes": bytes.fromhex,
    "Decimal": Decimal,
    "Fraction": lambda parts: Fraction(*parts),  # not from text, of which a few characters can mean a huge number
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
}


class NotPlainError(TypeError):
    """A value that cannot be written down, where only such values are allowed."""


def no_objects(value: Any) -> int:
    """The `Stay` and `Fetch` of a place where no object may travel. Raises NotPlainError."""
    raise NotPlainError(f"{type(value).__name__} is not plain data")


def to_wire(value: Any, stay: Stay = no_objects) -> Any:
    """What stands for a value in JSON: itself where JSON has it, lists for lists, `{mark: ...}` for anything else."""
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, list):
        return [to_wire(item, stay) for item in value]
    if isinstance(value, dict):
        return {"dict": [[to_wire(key, stay), to_wire(item, stay)] for key, item in value.items()]}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [to_wire(item, stay) for item in value]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, Decimal):
        return {"Decimal": str(value)}
    if isinstance(value, Fraction):
        return {"Fraction": [value.numerator, value.denominator]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, Iterator):
        return {"iterator": [to_wire(item, stay) for item in value]}
    return {"object": stay(value)}


def from_wire(data: Any, fetch: Fetch = no_objects) -> Any:
    """The value that `to_wire` wrote. Raises ValueError for data that it cannot have written, NotPlainError for an
    object without `fetch`.
    """
    if isinstance(data, list):
        return [from_wire(item, fetch) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError("not a value: one mark is expected")
    ((mark, inside),) = data.items()
    if mark == "dict":
        return {from_wire(key, fetch): from_wire(item, fetch) for key, item in inside}
    if mark in _LISTED:
        return _LISTED[mark]([from_wire(item, fetch) for item in inside])
    if mark in _WRITTEN:
        return _WRITTEN[mark](inside)
    if mark == "object":
        return fetch(inside)
    raise ValueError(f"not a value: unknown mark {mark!r}")
