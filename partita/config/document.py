"""YAML text to values that know their line, and back to text.

Scalars are read as OmegaConf reads them (`1e-6` is a number, dates are text), but `1:30` and `010` stay text. OmegaConf
keeps no line numbers and stops at the first duplicate key, so the node tree of the YAML library below it is read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from partita.config.errors import Problem
from partita.config.schema import is_list, is_map


@dataclass(frozen=True)
class Given:
    """A value and what set it: `run.yaml:12`, `command line`, `default`. Never a mapping, unless an empty one."""

    value: Any
    source: str


Branch: TypeAlias = "dict[str, Given | Branch]"

NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_FLOAT = re.compile(rf"^(?:{NUMBER.pattern}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")
_INT = re.compile(r"^(?:[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+)$")
_MOST, _DEEPEST = 100_000, 50  # values of a document and their levels; aliases of aliases make more out of a few lines
_MAP, _MERGE = "tag:yaml.org,2002:map", "tag:yaml.org,2002:merge"
_KEPT = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:null", _MERGE)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalar rules above."""


class _Dumper(yaml.SafeDumper):
    """Quotes exactly the text that the loader would not read as text."""


def _text(_: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML folds every kind of line break in plain and single-quoted text; only double quotes keep them
    style = '"' if re.search("[\n\r\x85\u2028\u2029]", text) else None
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_NUMBERS = [("tag:yaml.org,2002:int", _INT), ("tag:yaml.org,2002:float", _FLOAT)]
_KEPT_RULES = {
    first: [rule for rule in rules if rule[0] in _KEPT]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# Rules are looked up by the first character of a scalar.
_RULES = _KEPT_RULES | {first: _KEPT_RULES.get(first, []) + _NUMBERS for first in "-+.0123456789"}
_Loader.yaml_implicit_resolvers = _RULES
_Dumper.yaml_implicit_resolvers = _RULES


def grow(value: Any, source: str) -> Given | Branch:
    """Plain data as a tree of given values that all have the same source."""
    if is_map(value) and value:
        return {name: grow(item, source) for name, item in value.items()}
    return Given(value, source)


def ungrow(node: Given | Branch) -> Any:
    """The plain data of a tree."""
    return node.value if isinstance(node, Given) else {name: ungrow(item) for name, item in node.items()}


def parse(text: str, where: Callable[[int], str], problems: list[Problem]) -> Given | Branch | None:
    """Read one YAML document; None if it is no YAML. `where` names a line in sources and problems.

    Duplicate keys, keys that are not scalars and unsupported tags are added to `problems`.
    """
    try:
        loader: Any = _Loader(text)  # the stubs leave its methods untyped
        node = loader.get_single_node()
        if node is None:
            return Given(None, where(1))
        for path, line, first in _duplicates(node, "", set()):
            message = f"duplicate key {path}, first given in line {first}; keep one of them"
            problems.append(Problem(where(line), message))
        return _Reader(loader, where, problems).node(node, "")
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problems.append(Problem(where(line), f"not valid YAML: {error.problem}"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also `!!int abc`, and an alias inside its anchor
        problems.append(Problem(where(1), f"not valid YAML: {error}"))
    return None


@dataclass
class _Reader:
    loader: Any
    where: Callable[[int], str]
    problems: list[Problem]
    count: int = 0

    def node(self, node: yaml.Node, path: str, depth: int = 0) -> Given | Branch:
        self.count += 1
        if self.count > _MOST:
            raise yaml.YAMLError(f"more than {_MOST} values, aliases counted as often as they are used")
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"nested deeper than {_DEEPEST} levels")
        source = self.where(node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            return self.mapping(node, path, depth) or Given({}, source)
        if isinstance(node, yaml.SequenceNode):
            items = [self.node(item, f"{path}.{i}", depth + 1) for i, item in enumerate(node.value)]
            return Given([ungrow(item) for item in items], source)
        value = self.scalar(node, path, source)
        if value is not None and not isinstance(value, (bool, int, float, str)):
            self.problems.append(Problem(source, f"{path or 'value'} has the unsupported YAML tag {node.tag}"))
            return Given(None, source)
        return Given(value, source)

    def scalar(self, node: yaml.Node, path: str, source: str) -> Any:
        """The value of a node that is no mapping and no list, None where its text is none of its tag's."""
        try:
            return self.loader.construct_object(node)
        except (ValueError, LookupError, AttributeError, TypeError):  # `!!int abc`, `!!bool x`, thousands of digits
            kind, text = node.tag.rpartition(":")[2], str(node.value)[:60]
            self.problems.append(Problem(source, f"not valid YAML: {path or 'value'} is no {kind}: {text}"))
            return None

    def mapping(self, node: yaml.MappingNode, path: str, depth: int) -> Branch:
        self.loader.flatten_mapping(node)  # `<<: *anchor`: its pairs now come first, so the mapping's own ones win
        below: Branch = {}
        for name_node, value_node in node.value:
            # The text as written: `on:` and `1e3:` are names, not a truth value and a number.
            if isinstance(name_node, yaml.ScalarNode):
                name = str(name_node.value)
                below[name] = self.node(value_node, f"{path}.{name}".removeprefix("."), depth + 1)
            else:
                line = name_node.start_mark.line + 1
                self.problems.append(Problem(self.where(line), f"a key below {path or 'the root'} is not a plain name"))
        return below


def _duplicates(node: yaml.Node, path: str, seen: set[int]) -> list[tuple[str, int, int]]:
    """Path, line and first line of each repeated key. Looked for before merge keys (`<<`) bring in more pairs."""
    found: list[tuple[str, int, int]] = []
    if id(node) in seen:  # an alias: checked where its anchor stands
        return found
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            found += _duplicates(item, f"{path}.{i}", seen)
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for name_node, value_node in node.value:
            full, line = f"{path}.{name_node.value}".removeprefix("."), name_node.start_mark.line + 1
            if full in lines and name_node.tag != _MERGE:
                found.append((full, line, lines[full]))
            lines.setdefault(full, line)
            found += _duplicates(value_node, full, seen)
    return found


def dump(value: Any) -> str:
    """A plain value on one line of YAML."""
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("...").removesuffix("\n")


def escape(value: Any) -> Any:
    """The same value with text marked so that OmegaConf does not take it for an interpolation."""
    if is_map(value):
        return {name: escape(item) for name, item in value.items()}
    if is_list(value):
        return [escape(item) for item in value]
    # OmegaConf reads `\${` as the text `${`, and halves the backslashes that stand before it.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value
