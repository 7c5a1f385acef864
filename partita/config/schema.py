"""What a config section declares: one `Key` per dataclass field, read from its type hint, default and documentation.

Shapes of a key: `section` (a dataclass), `list` and `map` (of sections), `open` (a dict whose keys are free), `leaf`.
Left out: values. Nothing here reads YAML or judges a value; `layers` collects values and `validate` judges them.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypedDict,
    TypeGuard,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")
Shape = Literal["section", "list", "map", "open", "leaf"]

_LISTS = (list, tuple, Sequence)
_MAPS = (dict, Mapping)
_WORDS: dict[Any, str] = {type(None): "null", str: "str", Path: "path", Any: "any value"}


class Bounds(TypedDict, total=False):
    """Limits of a number, or of every number in a list."""

    ge: float
    gt: float
    le: float
    lt: float


def key(default: T, doc: str, *, choices: Collection[Any] | None = None, **bounds: Unpack[Bounds]) -> T:
    """A documented field with a default; `choices` is for sets of values that a `Literal` cannot spell."""
    return dataclasses.field(default=default, metadata=_metadata(doc, choices, bounds))


def key_factory(
    factory: Callable[[], T], doc: str, *, choices: Collection[Any] | None = None, **bounds: Unpack[Bounds]
) -> T:
    """A documented field whose default is made anew each time: lists, dicts and sections."""
    return dataclasses.field(default_factory=factory, metadata=_metadata(doc, choices, bounds))


def required(doc: str, *, choices: Collection[Any] | None = None, **bounds: Unpack[Bounds]) -> Any:
    """A documented field that has no default: loading fails until it is set."""
    return dataclasses.field(metadata=_metadata(doc, choices, bounds))


def _metadata(doc: str, choices: Collection[Any] | None, bounds: Bounds) -> dict[str, Any]:
    return {"doc": doc, "choices": None if choices is None else tuple(choices), "bounds": bounds}


@dataclass(frozen=True, eq=False)
class Key:
    """One declared key. `section` is the dataclass below it (or of its items); `default` is plain data or `MISSING`."""

    name: str
    hint: Any
    shape: Shape
    section: type[Any] | None
    optional: bool
    default: Any
    doc: str
    choices: tuple[Any, ...] | None
    bounds: Bounds

    def child(self, name: str) -> Key | None:
        """The key below this one; None where nothing of that name is declared."""
        if self.section is None:
            return None
        if self.shape == "section":
            return keys_of(self.section).get(name)
        return section_key(self.section, name) if self.shape == "map" else None

    @property
    def needed(self) -> bool:
        """Whether the key must be set."""
        return self.default is MISSING

    @property
    def kind(self) -> str:
        """The type and its choices in words, as messages and the reference print them."""
        return describe(self.hint) if self.choices is None else "one of " + ", ".join(map(str, self.choices))

    @property
    def limits(self) -> str:
        """The bounds in words: `> 0, <= 1`."""
        signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
        return ", ".join(f"{signs[name]} {show(limit)}" for name, limit in self.bounds.items())

    @property
    def summary(self) -> str:
        """Type and default in words, for near matches."""
        if self.shape == "section":
            return "section, absent by default" if self.default is None else "section"
        return f"{self.kind}, " + ("required" if self.needed else f"default {show(self.default)}")


@cache
def keys_of(cls: type[Any]) -> dict[str, Key]:
    """The keys of a section in declared order; fields with `init=False` are not keys."""
    hints = get_type_hints(cls, include_extras=True)
    return {item.name: _key_of(item, hints[item.name]) for item in fields(cls) if item.init}


def section_key(cls: type[Any], name: str = "") -> Key:
    """A key that holds the section `cls`: the root of a config, or one entry of a map of sections."""
    return Key(name, cls, "section", cls, False, MISSING, "", None, {})


def all_keys(cls: type[Any]) -> dict[str, Key]:
    """Every declared dotted path below `cls`, absent sections included; `*` stands for an item of a list or map."""
    return dict(_paths(cls, "", ()))


def _paths(cls: type[Any], prefix: str, above: tuple[type[Any], ...]) -> list[tuple[str, Key]]:
    found: list[tuple[str, Key]] = []
    for name, item in keys_of(cls).items():
        found.append((prefix + name, item))
        if item.section is not None and item.section not in (*above, cls):  # a section may contain its own kind
            step = "." if item.shape == "section" else ".*."
            found += _paths(item.section, prefix + name + step, (*above, cls))
    return found


def _key_of(item: dataclasses.Field[Any], hint: Any) -> Key:
    shape, section = _shape_of(item.name, hint)
    default = item.default if item.default_factory is MISSING else item.default_factory()
    meta = item.metadata
    return Key(
        name=item.name,
        hint=hint,
        shape=shape,
        section=section,
        optional=any(arm in (type(None), Any) for arm in arms(hint)),
        default=default if default is MISSING else plain(default),
        doc=meta.get("doc", ""),
        choices=meta.get("choices"),
        bounds=meta.get("bounds", {}),
    )


def _shape_of(name: str, hint: Any) -> tuple[Shape, type[Any] | None]:
    solid = [arm for arm in arms(hint) if arm is not type(None)]
    arm = solid[0]
    items = [part for part in get_args(arm) if part is not Ellipsis]
    section = next((part for part in (arm, *items[-1:]) if isinstance(part, type) and is_dataclass(part)), None)
    origin = get_origin(arm) or arm
    if len(solid) > 1:
        if any(is_dataclass(part) for part in solid):
            raise TypeError(f"{name}: a section may be optional, but not a union with other types ({hint})")
        return "leaf", None
    if section is arm and section is not None:
        return "section", section
    if origin in _MAPS:
        return ("open", None) if section is None else ("map", section)
    return ("list", section) if section is not None and origin in _LISTS else ("leaf", None)


def arms(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union; any other hint is its own single alternative. Annotations are looked through."""
    if get_origin(hint) is Annotated:
        return arms(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def describe(hint: Any) -> str:
    """A type in words: `float or null`, `one of token, sequence`, `list of int`."""
    return " or ".join(_word(arm) for arm in arms(hint))


def _word(arm: Any) -> str:
    origin, items = get_origin(arm) or arm, get_args(arm)
    if arm in _WORDS:
        return _WORDS[arm]
    if origin is Literal:
        return ("one of " if len(items) > 1 else "") + ", ".join(map(str, items))
    if origin is tuple and items and Ellipsis not in items:
        return "list [" + ", ".join(describe(part) for part in items) + "]"
    if origin in (*_LISTS, set, frozenset):
        return "list" + (f" of {describe(items[0])}" if items else "")
    if origin in _MAPS:
        return "mapping" + (f" of {describe(items[-1])}" if items and items[-1] is not Any else "")
    if is_dataclass(arm):
        return "section"
    if not isinstance(arm, type):
        return str(arm)
    if issubclass(arm, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in arm)
    return cast("type[Any]", arm).__name__


def is_text(hint: Any) -> bool:
    """Whether the only values of a type are text and null, so that unquoted digits can only mean text."""
    return all(
        arm in (str, Path, type(None))
        or (get_origin(arm) is Literal and all(isinstance(choice, str) for choice in get_args(arm)))
        for arm in arms(hint)
    )


def takes_float(hint: Any) -> bool:
    """Whether a float may stand somewhere inside a value of this type."""
    return any(arm is float or any(takes_float(part) for part in get_args(arm)) for arm in arms(hint))


def plain(value: Any) -> Any:
    """Config values as plain data: sections become dicts, tuples and sets lists, paths and enums their text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in keys_of(type(value))}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in cast(Collection[Any], value))
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast(Sequence[Any], value)]
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def is_map(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether plain data is a mapping."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether plain data is a list."""
    return isinstance(value, list)


def show(value: Any) -> str:
    """A plain value as messages print it, shortened to 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
