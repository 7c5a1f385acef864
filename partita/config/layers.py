"""The tree of given values: the schema's defaults, then each layer's algorithm preset and keys, the last one winning.

The tree is complete from the start: every declared key that has a default is there, marked as `default`.
Left out: interpolation (`load`) and judgement (`validate`). Unknown keys are kept: all are reported together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from partita.config.document import Branch, Given, grow
from partita.config.errors import Problem
from partita.config.schema import Key, keys_of, plain, section_key

DEFAULT = "default"
_LINK = re.compile(r"\$\{([\w-]+(?:\.[\w-]+)*)\}")


class Expand(Protocol):
    """Turns a preset's name into its keys, dotted or nested; ValueError or KeyError for an unknown name."""

    @property
    def reset_keys(self) -> frozenset[str]:
        """The dotted keys that belong to algorithms: put back to their defaults before a preset's keys are set."""
        ...

    def __call__(self, name: str, /) -> Mapping[str, Any]: ...


class Tree:
    """Values with their sources, below the section `root`."""

    def __init__(self, root: type[Any], expand: Expand | None, problems: list[Problem]) -> None:
        self.root = section_key(root)
        self.expand = expand
        self.problems = problems
        self.branch = defaults(root)
        algorithm = self.branch.get("algorithm")
        if isinstance(algorithm, Given):
            self.preset(algorithm)

    def apply(self, layer: Branch) -> None:
        """Put one layer over the tree: first its own `algorithm`, then its keys."""
        algorithm = layer.get("algorithm")
        if isinstance(algorithm, Given):
            self.preset(algorithm)
        for name, node in layer.items():
            self.put((name,), node)

    def preset(self, algorithm: Given) -> None:
        """Reset all algorithm keys, then set those of the named preset; null names none."""
        if self.expand is None or not isinstance(algorithm.value, str):
            return
        try:
            keys = self.expand(algorithm.value)
        except (KeyError, ValueError) as error:
            self.problems.append(Problem("algorithm", str(error.args[0] if error.args else error), algorithm.source))
            return
        for path in sorted(self.expand.reset_keys):
            self.drop(path.split("."))
        for path, value in keys.items():
            self.put(path.split("."), grow(plain(value), f"preset {algorithm.value} ({algorithm.source})"))

    def put(self, parts: Sequence[str], node: Given | Branch) -> None:
        """Set one path. A mapping is merged into a section, anything else replaces what is there."""
        branch, key = self.branch, cast("Key | None", self.root)
        for depth, name in enumerate(parts[:-1], 1):
            key = key.child(name) if key else None
            branch = self._enter(branch, key, parts[:depth])
        self._merge(branch, key.child(parts[-1]) if key else None, parts, node)

    def drop(self, parts: Sequence[str]) -> None:
        """Put one path back to its default; a key of an open section goes away. Below an absent section: nothing."""
        branch, key = self.branch, cast("Key | None", self.root)
        for depth, name in enumerate(parts[:-1], 1):
            key = key.child(name) if key else None
            node = branch.get(name)
            if isinstance(node, Given) and not _is_link(node):
                return
            branch = self._enter(branch, key, parts[:depth])
        key = key.child(parts[-1]) if key else None
        branch.pop(parts[-1], None)
        original = find(defaults(self.root.hint), parts)
        if key and original is not None:  # the default that the enclosing sections give it
            branch[parts[-1]] = original
        elif key and not key.needed:
            branch[parts[-1]] = grow(key.default, DEFAULT)

    def source(self, parts: Sequence[str]) -> str:
        """Where the value at a path came from (of a section, its first value); `default` where nobody set it."""
        node: Given | Branch | None = self.branch
        for name in parts:
            if isinstance(node, Given):  # a list, or an interpolation of a whole section
                break
            node = node.get(name) if node else None
        while isinstance(node, dict):
            node = next(iter(node.values()), None)
        return node.source if isinstance(node, Given) else DEFAULT

    def _merge(self, branch: Branch, key: Key | None, path: Sequence[str], node: Given | Branch) -> None:
        name = path[-1]
        if isinstance(node, Given) and node.value != {}:
            branch[name] = node
            return
        if key and key.shape == "open" and _untouched(branch.get(name)):  # a mapping given for it replaces its default
            branch.pop(name, None)
        below = self._enter(branch, key, path)
        for part, item in ({} if isinstance(node, Given) else node).items():
            self._merge(below, key.child(part) if key else None, (*path, part), item)
        if not below and isinstance(node, Given):
            branch[name] = node

    def _enter(self, branch: Branch, key: Key | None, path: Sequence[str]) -> Branch:
        """The branch at the end of `path`, grown where there was null, nothing, or an interpolation of a section."""
        name = path[-1]
        current = branch.get(name)
        if isinstance(current, dict):
            return current
        below: Branch = {}
        section = key.section if key and key.shape == "section" else None
        if isinstance(current, Given) and _is_link(current):
            link = _LINK.fullmatch(current.value)
            if section is None or link is None:
                message = f"keys below it cannot be set, because it is the interpolation {current.value}"
                self.problems.append(Problem(".".join(path), message, current.source))
            else:  # the same section key by key, so that single keys can differ
                below = {part: Given(f"${{{link[1]}.{part}}}", current.source) for part in keys_of(section)}
        elif section is not None:
            below = defaults(section)
        branch[name] = below
        return below


def defaults(section: type[Any]) -> Branch:
    """A section in which every key that has a default is given by it."""
    return {name: grow(key.default, DEFAULT) for name, key in keys_of(section).items() if not key.needed}


def find(branch: Branch, parts: Sequence[str]) -> Given | Branch | None:
    """What stands at a path, None if nothing does."""
    node: Given | Branch | None = branch
    for name in parts:
        node = node.get(name) if isinstance(node, dict) else None
    return node


def _is_link(node: Given) -> bool:
    return isinstance(node.value, str) and "${" in node.value


def _untouched(node: Given | Branch | None) -> bool:
    if isinstance(node, dict):
        return all(_untouched(item) for item in node.values())
    return node is None or node.source == DEFAULT
