"""Overrides from the command line: `a.b=c` sets a key, `+a.b=c` may also add one to an open dict, `~a.b` takes it back.

The value is YAML: `null`, `1e-6`, `[1, 2]`, `{mean_level: group}`, `${gconfig.n_samples}`. A key of text takes
what is written, digits included. A mapping is merged into a section, a list replaces a list; of two overrides the last
wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from partita.config.document import Branch, Given, parse
from partita.config.errors import Names, Problem
from partita.config.layers import Tree, find
from partita.config.schema import Key, is_text

SOURCE = "command line"
_SYNTAX = re.compile(r"(?P<sign>[+~]?)(?P<path>[^=\s]+?)(?P<equals>=)?(?(equals)(?P<value>.*))", re.DOTALL)


@dataclass(frozen=True)
class Override:
    """One override, read but not yet applied. `value` is empty for `~a.b`."""

    action: Literal["set", "add", "drop"]
    parts: tuple[str, ...]
    value: str

    @property
    def path(self) -> str:
        """The dotted path."""
        return ".".join(self.parts)


def read_override(text: str) -> Override:
    """Split one override. ValueError says how one is written."""
    found = _SYNTAX.fullmatch(text)
    how = "write key=value, +key=value or ~key"
    if found is None or not all(found["path"].split(".")) or not (found["sign"] == "~" or found["equals"]):
        raise ValueError(f"not an override; {how}")
    parts = tuple(found["path"].split("."))
    if found["sign"] == "~":
        if found["equals"]:
            raise ValueError("~ takes a key back to its default and has no value; " + how)
        return Override("drop", parts, "")
    if not found["value"]:
        raise ValueError("there is no value; write null for nothing and '\"\"' for empty text")
    return Override("add" if found["sign"] else "set", parts, found["value"])


def apply_overrides(tree: Tree, texts: Sequence[str], names: Names) -> None:
    """Put all overrides over the tree as one layer; what is wrong with them is added to the tree's problems."""
    overrides: list[Override] = []
    for text in texts:
        try:
            overrides.append(read_override(text))
        except ValueError as error:
            tree.problems.append(Problem(text, str(error), SOURCE))
    algorithm = next((one for one in reversed(overrides) if one.parts == ("algorithm",) and one.value), None)
    node = _value(algorithm, tree.root.child("algorithm"), tree.problems) if algorithm else None
    if isinstance(node, Given):
        tree.preset(node)
    for override in overrides:
        problem = _apply(tree, override, names)
        if problem is not None:
            tree.problems.append(Problem(override.path, problem, SOURCE))


def _apply(tree: Tree, override: Override, names: Names) -> str | None:
    """Apply one override, or say why it cannot be."""
    parts, dropping = override.parts, override.action == "drop"
    key, depth, entry = tree.root, 0, ()  # entry: the path whose name is free to choose
    while depth < len(parts) and (child := key.child(parts[depth])):
        key, depth, entry = child, depth + 1, parts[: depth + 1] if key.shape == "map" else entry
    rest, reached = parts[depth:], ".".join(parts[:depth])
    if rest and key.shape == "open":
        entry = parts
    if rest and key.shape == "list":
        return f"{reached} is a list; give it whole: {reached}=[...]"
    if rest and key.shape == "leaf":
        return f"unknown key: {reached} is {key.kind}, not a section"
    if rest and key.shape == "section" and dropping:
        return "unknown key." + names.near(override.path)
    if override.action != "add" and entry and find(tree.branch, entry) is None:
        advice = "" if dropping else f"; write +{override.path}={override.value} to add it"
        return f"there is no {'.'.join(entry)}{advice}"
    if dropping:
        tree.drop(parts)
        return None
    node = _value(override, None if rest else key, tree.problems)
    if node is not None:
        tree.put(parts, node)
    return None


def _value(override: Override, key: Key | None, problems: list[Problem]) -> Given | Branch | None:
    """The value as given; None if it is no YAML."""
    only_text = key is not None and key.shape == "leaf" and is_text(key.hint)
    complaints: list[Problem] = []
    node = parse(override.value, lambda _: SOURCE, complaints)
    is_plain = isinstance(node, Given) and (node.value is None or isinstance(node.value, str))
    if only_text and (complaints or not is_plain):
        return Given(override.value, SOURCE)
    problems += [Problem(override.path, one.message, SOURCE) for one in complaints]
    return node
