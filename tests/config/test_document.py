"""YAML in and out: scalars, lines, duplicates, and text that must survive."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from partita.config.document import Given, dump, escape, grow, parse, ungrow
from partita.config.errors import Problem


def read(text: str) -> tuple[Any, list[str]]:
    problems: list[Problem] = []
    node = parse(text, lambda line: f"f:{line}", problems)
    return (None if node is None else ungrow(node)), [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.5E3", 1500.0),
        (".5", 0.5),
        ("-3", -3),
        ("1_000", 1000),
        ("0x10", 16),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2026-01-04", "2026-01-04"),
        ("1.2.3", "1.2.3"),
        ("'1e-6'", "1e-6"),
        ("yes", True),
        ("~", None),
        ("", None),
        ("-.inf", -math.inf),
        ("=", "="),
    ],
)
def test_scalars(text: str, value: object) -> None:
    found, problems = read(text)
    assert found == value and type(found) is type(value) and not problems


def test_each_value_knows_its_line_and_keys_are_read_as_written() -> None:
    node = parse("a: 1\nb:\n  on: x\n  1e3: [1,\n    {c: 2}]\n  e: {}\n", lambda line: f"f:{line}", [])
    assert node == {
        "a": Given(1, "f:1"),
        "b": {"on": Given("x", "f:3"), "1e3": Given([1, {"c": 2}], "f:4"), "e": Given({}, "f:6")},
    }


def test_duplicates_are_found_everywhere_and_all_named() -> None:
    _, problems = read("a: 1\nb:\n  - {x: 1, y: 2, x: 3}\na: 2\nc: {d: 1,\n  'd': 2}\n")
    assert problems == [
        "f:3: duplicate key b.0.x, first given in line 3; keep one of them",
        "f:4: duplicate key a, first given in line 1; keep one of them",
        "f:6: duplicate key c.d, first given in line 5; keep one of them",
    ]


def test_merge_keys_and_aliases_are_not_duplicates() -> None:
    value, problems = read("a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: *b\n")
    assert value["b"] == value["c"] == {"x": 3, "y": 2} and problems == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2", "f:2: not valid YAML"),
        ("a: 1\n---\na: 2", "f:2: not valid YAML"),
        ("a: !!python/object:os.system x", "f:1: not valid YAML"),
        ("a: !!int abc", "f:1: not valid YAML: a is no int: abc"),
        ("b:\n  a: !!int ''", "f:2: not valid YAML: b.a is no int: "),
        ("a: !!bool maybe", "f:1: not valid YAML: a is no bool: maybe"),
        ("a: !!timestamp x", "f:1: not valid YAML: a is no timestamp: x"),
        ("a: " + "1" * 5000, "f:1: not valid YAML: a is no int: 111"),
        ("a: &x [*x]", "f:1: not valid YAML: nested deeper than 50 levels"),
        (f"a: {'[' * 51}{']' * 51}", "f:1: not valid YAML: nested deeper than 50 levels"),
        ("a: \x00", "f:1: not valid YAML"),
        ("a: !!binary aGk=", "f:1: a has the unsupported YAML tag"),
        ("? [a, b]\n: 1", "f:1: a key below the root is not a plain name"),
    ],
)
def test_what_cannot_be_used_is_reported_with_its_line(text: str, message: str) -> None:
    assert read(text)[1][0].startswith(message)


def test_a_few_lines_of_aliases_do_not_become_a_billion_values() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    assert read("\n".join(lines))[1] == [
        "f:1: not valid YAML: more than 100000 values, aliases counted as often as they are used"
    ]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("aon1.-e:#'{$ ", min_size=1), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(PLAIN)
@example("\x85")
@example(["a\u2028b", "\n", "a\r\nb\u2029"])
def test_dumped_values_are_read_back(value: Any) -> None:
    found, problems = read(dump(value))
    assert found == value and problems == []


@given(st.text("${}\\a.:'\" ", max_size=12))
def test_escaped_text_is_no_interpolation(text: str) -> None:
    assert OmegaConf.to_container(OmegaConf.create({"x": escape(text)}), resolve=True) == {"x": text}


def test_grow_and_ungrow_are_inverse() -> None:
    tree = {"a": 1, "b": {"c": [{"d": 1}], "e": {}}}
    assert ungrow(grow(tree, "here")) == tree
    assert grow(tree, "here") == {"a": Given(1, "here"), "b": {"c": Given([{"d": 1}], "here"), "e": Given({}, "here")}}
