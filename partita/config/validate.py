"""Judge a resolved tree against the schema and build the frozen dataclasses; problems are collected, none is raised.

Every leaf is validated by pydantic in its strict mode: no text or truth value becomes a number, no fraction an integer.
The one exception is text that spells a number (`"1e-6"`, an environment variable), where a float is wanted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Any, Final, Literal, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from partita.config.document import NUMBER
from partita.config.errors import Names, Problem, near_value
from partita.config.schema import Key, arms, is_list, is_map, is_text, keys_of, plain, show, takes_float


class _Failed:
    """Stands where no valid value is known and the reason is already reported."""


FAILED: Final = _Failed()
_SPELT = re.compile(rf"[-+]?[0-9]+|{NUMBER.pattern}")


@dataclass(frozen=True)
class Validator:
    """Walks values and schema side by side. `source` names where the value of a path came from."""

    names: Names
    source: Callable[[str], str]
    problems: list[Problem]

    def section(self, cls: type[Any], tree: Mapping[str, Any], path: str) -> Any:
        """The dataclass, or `FAILED`. Cross-checks (`__post_init__`) run only on a section whose keys are all valid."""
        keys = keys_of(cls)
        failed = [self.unknown(_join(path, name), value) for name, value in tree.items() if name not in keys]
        values = {name: self.value(key, tree.get(name, key.default), _join(path, name)) for name, key in keys.items()}
        if failed or _has_failed(values):
            return FAILED
        try:
            return cls(**values)
        except ValueError as error:
            return self.fail(path or "(root)", str(error), "")

    def value(self, key: Key, value: Any, path: str) -> Any:
        """One key's value: a section, a list or map of sections, or a leaf."""
        if value is MISSING or value == "???":
            source = "" if value is MISSING else self.source(path)
            return self.fail(path, f"must be set ({key.kind}). {key.doc}".rstrip(), source)
        if value is None and key.optional:
            return None
        if key.shape in ("leaf", "open"):
            return self.leaf(key, value, path)
        if key.shape == "section":
            return self.below(key, value, path)
        if key.shape == "map" and is_map(value):
            entries = {name: self.below(key, item, _join(path, name)) for name, item in value.items()}
            return FAILED if _has_failed(entries) else entries
        if key.shape == "list" and is_list(value):
            items = [self.below(key, item, _join(path, str(i))) for i, item in enumerate(value)]
            return FAILED if _has_failed(items) else _container(key)(items)
        return FAILED if value is FAILED else self.fail(path, f"expected {key.kind}, got {show(value)}")

    def below(self, key: Key, value: Any, path: str) -> Any:
        """The section of a key, or one entry of its list or map of sections."""
        if key.section is None or value is FAILED:
            return FAILED
        if is_map(value):
            return self.section(key.section, value, path)
        names = ", ".join(keys_of(key.section))
        return self.fail(path, f"expected a section, got {show(value)}. Its keys: {names}")

    def leaf(self, key: Key, value: Any, path: str) -> Any:
        """One value, checked by pydantic, then against the key's bounds and choices."""
        if _has_failed(value):
            return FAILED
        try:
            result = _checked(key, value)
        except ValidationError as error:
            return self.fail(path, _mismatch(key, value, error))
        several = isinstance(result, (list, tuple, set, frozenset))
        for one in cast("Iterable[Any]", result if several else (result,)):
            if isinstance(one, float) and math.isnan(one):
                return self.fail(path, f"expected {key.kind}, got nan")
            if not _within(one, cast("Mapping[str, float]", key.bounds)):
                return self.fail(path, f"must be {key.limits}, got {show(plain(one))}")
            if key.choices is not None and one is not None and one not in key.choices:
                return self.fail(path, f"expected {key.kind}, got {show(plain(one))}.{near_value(one, key.choices)}")
        return result

    def unknown(self, path: str, value: Any) -> Any:
        """Report a key that is not declared; of an unknown section each key, since each may belong elsewhere."""
        for name, item in value.items() if is_map(value) else ():
            self.unknown(_join(path, name), item)
        return self.fail(path, "unknown key." + self.names.near(path))

    def fail(self, path: str, message: str, source: str | None = None) -> Any:
        """Collect one problem."""
        self.problems.append(Problem(path, message, self.source(path) if source is None else source))
        return FAILED


@cache
def _adapter(key: Key) -> TypeAdapter[Any]:
    return TypeAdapter(key.hint)


def _checked(key: Key, value: Any) -> Any:
    # Strict JSON mode: a list may fill a tuple and text a path, yet nothing is coerced between text and numbers.
    try:
        return _adapter(key).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        numbers = _numbers(value) if takes_float(key.hint) else value
        if numbers == value:
            raise
        return _adapter(key).validate_json(json.dumps(numbers), strict=True)


def _numbers(value: Any) -> Any:
    """The same value with text that spells a number as a float."""
    if isinstance(value, str):
        return float(value) if _SPELT.fullmatch(value) else value
    if is_list(value):
        return [_numbers(item) for item in value]
    if is_map(value):
        return {name: _numbers(item) for name, item in value.items()}
    return value


def _mismatch(key: Key, value: Any, error: ValidationError) -> str:
    text = f"expected {key.kind}, got {show(value)}"
    place = ".".join(str(part) for part in error.errors()[0]["loc"] if isinstance(part, int))
    if place:
        text += f" (item {place})"
    if is_text(key.hint) and isinstance(value, (bool, int, float)):
        return text + ". Put text that looks like something else in quotes."
    choices = [one for arm in arms(key.hint) if get_origin(arm) is Literal for one in get_args(arm)]
    return text + near_value(value, choices).replace(" Near", ". Near")


def _within(value: Any, bounds: Mapping[str, float]) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    tests: dict[str, Callable[[float], bool]] = {
        "ge": lambda limit: value >= limit,
        "gt": lambda limit: value > limit,
        "le": lambda limit: value <= limit,
        "lt": lambda limit: value < limit,
    }
    return all(tests[name](limit) for name, limit in bounds.items())


def _container(key: Key) -> Callable[[Any], Any]:
    solid = next(arm for arm in arms(key.hint) if arm is not type(None))
    return list if (get_origin(solid) or solid) is list else tuple


def _has_failed(value: Any) -> bool:
    """Whether `FAILED` is the value or stands somewhere in it."""
    if is_map(value):
        return any(_has_failed(item) for item in value.values())
    if is_list(value):
        return any(_has_failed(item) for item in value)
    return value is FAILED


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
