"""Resolve every `${...}` of the layered tree with OmegaConf, once nothing can change any more.

Left out: OmegaConf's own type checks. Values are judged by `validate`, after they are resolved.
"""

from __future__ import annotations

import re
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from partita.config.document import ungrow
from partita.config.errors import Names, Problem
from partita.config.layers import Tree
from partita.config.schema import is_list, is_map
from partita.config.validate import FAILED

_MISSING = re.compile(r"Interpolation key '(?P<target>.+)' not found")


def resolve(tree: Tree, names: Names) -> dict[str, Any]:
    """The plain tree without interpolations. One that cannot be resolved is reported and becomes `FAILED`."""
    raw = cast("dict[str, Any]", ungrow(tree.branch))
    resolver = _Resolver(tree, names)
    return resolver.visit(raw, OmegaConf.create(resolver.parsable(raw)), ())


class _Resolver:
    def __init__(self, tree: Tree, names: Names) -> None:
        self.tree = tree
        self.names = names

    def parsable(self, value: Any) -> Any:
        """The same tree with null for text that OmegaConf cannot parse: it would refuse all of it."""
        if is_map(value):
            return {name: self.parsable(item) for name, item in value.items()}
        if is_list(value):
            return [self.parsable(item) for item in value]
        return None if _is_interpolated(value) and not _parses(value) else value

    def visit(self, raw: Any, node: Any, path: tuple[str, ...]) -> Any:
        """Resolve the texts below `raw`; `node` is the same place in OmegaConf's tree."""
        if is_map(raw):
            return {name: self.one(item, node, name, (*path, name)) for name, item in raw.items()}
        return [self.one(item, node, i, (*path, str(i))) for i, item in enumerate(raw)]

    def one(self, raw: Any, parent: Any, name: str | int, path: tuple[str, ...]) -> Any:
        """The value at `parent[name]`."""
        if isinstance(raw, (dict, list)):
            return self.visit(raw, parent[name], path)
        if not _is_interpolated(raw):
            return raw
        if not _parses(raw):
            return self.fail(path, f"{raw} is not a well-formed interpolation")
        try:
            value = parent[name]
            return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except (OmegaConfBaseException, RecursionError) as error:
            return self.fail(path, f"{raw} cannot be resolved: {self.reason(error)}")

    def reason(self, error: Exception) -> str:
        """OmegaConf's reason in one sentence; a target that does not exist is named with the nearest one that does."""
        text = str(error).split("\n", maxsplit=1)[0]
        missing = _MISSING.search(text)
        if missing is None:
            return text.split("while resolving interpolation: ")[-1].strip('"') + "."
        target = missing["target"]
        if target in self.names.known:
            return f"{target} is not set."
        return f"there is no {target}." + self.names.near(target, whole=True)

    def fail(self, path: tuple[str, ...], message: str) -> Any:
        """Report one interpolation."""
        self.tree.problems.append(Problem(".".join(path), message, self.tree.source(path)))
        return FAILED


def _is_interpolated(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _parses(text: str) -> bool:
    try:
        OmegaConf.create({"text": text})
    except (OmegaConfBaseException, RecursionError):
        return False
    return True
