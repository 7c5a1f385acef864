"""Load a configuration: defaults, base files, files, presets and overrides become one tree of frozen dataclasses.

Order: every layer (a file named by `base:`, the file itself, the command line) first expands its own `algorithm`, then
sets its keys; `${...}` is resolved after the last layer; then all is validated, and all problems are raised at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from partita.config.document import Branch, Given, dump, escape, grow, parse, ungrow
from partita.config.errors import ConfigError, Names, Problem
from partita.config.layers import Expand, Tree
from partita.config.overrides import apply_overrides
from partita.config.resolve import resolve
from partita.config.schema import all_keys, is_map, plain
from partita.config.validate import Validator

T = TypeVar("T")


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """A valid configuration: as dataclasses, as a resolved plain tree, and the source of each of its values.

    Sources by dotted path: `default`, `run.yaml:12`, `preset dapo (run.yaml:3)`, `command line`, `given in code`.
    """

    value: T
    tree: dict[str, Any]
    sources: dict[str, str]

    def to_yaml(self, with_sources: bool = False) -> str:
        """The resolved tree as YAML that loads to the same value again; optionally each line names its source."""
        lines = _lines(self.tree, "", 0)
        if not with_sources:
            return "".join(f"{line}\n" for line, _ in lines)
        width = min(60, max((len(line) for line, path in lines if path in self.sources), default=0))
        return "".join(
            f"{line:<{width}}  # {self.sources[path]}\n" if path in self.sources else f"{line}\n"
            for line, path in lines
        )


def load_config(
    cls: type[T],
    *,
    files: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    base_tree: Mapping[str, Any] | None = None,
    expand: Expand | None = None,
    hints: Mapping[str, str] | None = None,
) -> Loaded[T]:
    """Load a `cls` from `base_tree` (values given in code), then `files` in order, then `overrides`.

    `expand` turns a layer's `algorithm` into keys; `hints` maps foreign key names to the path (or advice) to name.
    Raises ConfigError with all problems: files, duplicate or unknown keys, interpolations, types, bounds, cross-checks.
    """
    problems: list[Problem] = []
    tree = Tree(cls, expand, problems)
    names = Names(all_keys(cls), hints or {})
    layers = [cast(Branch, grow(plain(base_tree), "given in code"))] if base_tree else []
    readable = True
    for file in files:
        readable = _read(file, (), layers, problems) and readable
    for layer in layers:
        tree.apply(layer)
    apply_overrides(tree, overrides, names)
    if not readable:  # whatever else looks missing or unknown may be due to the file that is not there
        raise ConfigError(problems)
    validator = Validator(names, lambda path: tree.source(path.split(".")), problems)
    value = validator.section(cls, resolve(tree, names), "")
    if problems:
        raise ConfigError(problems)
    resolved = cast("dict[str, Any]", plain(value))
    return Loaded(value, resolved, {path: tree.source(path.split(".")) for path in _leaves(resolved, "")})


def _read(file: Path, chain: tuple[Path, ...], layers: list[Branch], problems: list[Problem], named: str = "") -> bool:
    """Append the layers of a file, those of its bases first. False if one of them could not be read at all."""
    name, place = _shown(file), named or _shown(file)
    try:
        if file.resolve() in [one.resolve() for one in chain]:
            circle = " -> ".join(_shown(one) for one in (*chain, file))
            problems.append(Problem(place, f"base files form a circle: {circle}"))
            return False
        node = parse(file.read_text(encoding="utf-8-sig"), lambda line: f"{name}:{line}", problems)
    except UnicodeDecodeError:
        problems.append(Problem(place, f"cannot read {name}: not UTF-8 text"))
        return False
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problems.append(Problem(place, f"cannot read {name}: {reason}"))
        return False
    if node is None:
        return False
    if isinstance(node, Given):
        if node.value not in (None, {}):
            problems.append(Problem(name, f"expected a mapping of keys, got {node.value!r}"))
        return node.value in (None, {})
    base, readable = node.pop("base", None), True
    if isinstance(base, Given) and isinstance(base.value, str):
        readable = _read(file.parent / base.value, (*chain, file), layers, problems, base.source)
    elif base is not None and ungrow(base) is not None:
        problems.append(Problem("base", "expected the path of one file, relative to this one", name))
    layers.append(node)
    return readable


def _shown(file: Path) -> str:
    """A path as messages name it: relative to the working folder if it lies below it, without `x/..` steps."""
    path = Path(os.path.normpath(file))
    folder = Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _leaves(tree: Mapping[str, Any], prefix: str) -> list[str]:
    """The dotted paths of all values; a list is one value, and so is an empty mapping."""
    paths: list[str] = []
    for name, value in tree.items():
        path = prefix + name
        paths += _leaves(value, f"{path}.") if is_map(value) and value else [path]
    return paths


def _lines(tree: Mapping[str, Any], prefix: str, depth: int) -> list[tuple[str, str]]:
    """Lines of YAML, each with the dotted path it is about."""
    lines: list[tuple[str, str]] = []
    for name, value in tree.items():
        path, start = prefix + name, "  " * depth + dump(name) + ":"
        if is_map(value) and value:
            lines += [(start, ""), *_lines(value, f"{path}.", depth + 1)]
        else:
            lines.append((f"{start} {dump(escape(value))}", path))
    return lines
