"""What is read from a dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from partita.config.schema import all_keys, describe, is_text, key, key_factory, keys_of, plain, required, takes_float


@dataclass(frozen=True)
class Leaf:
    x: int = key(1, "A number.", ge=0, lt=5)


@dataclass(frozen=True)
class Tree:
    must: str = required("Needed.")
    leaf: Leaf = key_factory(lambda: Leaf(2), "One.")
    maybe: Leaf | None = key(None, "Perhaps one.")
    many: tuple[Leaf, ...] = key((Leaf(3),), "Several.")
    named: dict[str, Leaf] = key_factory(dict, "Named.")
    open: Mapping[str, Any] = key_factory(dict, "Free.")
    mode: str = key("a", "Mode.", choices=("a", "b"))
    derived: int = field(init=False, default=0)
    again: Tree | None = None


@dataclass(frozen=True)
class Ambiguous:
    part: Leaf | str = "x"


def test_shapes_defaults_and_docs() -> None:
    keys = keys_of(Tree)
    shapes = {name: item.shape for name, item in keys.items()}
    assert shapes == {
        "must": "leaf",
        "leaf": "section",
        "maybe": "section",
        "many": "list",
        "named": "map",
        "open": "open",
        "mode": "leaf",
        "again": "section",
    }
    assert keys["must"].default is MISSING and keys["must"].needed and keys["must"].doc == "Needed."
    assert keys["leaf"].default == {"x": 2} and keys["many"].default == [{"x": 3}]
    assert keys["mode"].kind == "one of a, b"
    assert keys_of(Leaf)["x"].limits == ">= 0, < 5" and keys_of(Leaf)["x"].summary == "int, default 1"
    assert Tree("m").leaf == Leaf(2)


def test_all_paths_name_absent_sections_and_stop_at_recursion() -> None:
    assert list(all_keys(Tree)) == [
        "must",
        "leaf",
        "leaf.x",
        "maybe",
        "maybe.x",
        "many",
        "many.*.x",
        "named",
        "named.*.x",
        "open",
        "mode",
        "again",
    ]


def test_a_union_of_a_section_and_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="part: a section may be optional"):
        keys_of(Ambiguous)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (float | None, "float or null"),
        (Literal["a", "b"] | None, "one of a, b or null"),
        (list[int], "list of int"),
        (tuple[float, ...], "list of float"),
        (tuple[float, int], "list [float, int]"),
        (dict[str, Any], "mapping"),
        (dict[str, float], "mapping of float"),
        (Path, "path"),
        (Annotated[int, "note"], "int"),
        (Leaf, "section"),
    ],
)
def test_types_in_words(hint: Any, words: str) -> None:
    assert describe(hint) == words


def test_text_and_floats_are_told_apart() -> None:
    assert is_text(str | None) and is_text(Literal["a"]) and is_text(Path)
    assert not is_text(str | int) and not is_text(Literal["a", 1]) and not is_text(Any)
    assert takes_float(dict[str, list[float]] | None) and not takes_float(list[int])


def test_plain_data() -> None:
    assert plain({"a": (1, Path("x")), "b": Leaf(), "c": {"z", "y"}}) == {"a": [1, "x"], "b": {"x": 1}, "c": ["y", "z"]}
