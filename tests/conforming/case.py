"""A case file, read strictly: every input and every configuration value must be used by whoever answers for it.

Left out: what the names mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

KINDS = (
    "advantage", "aggregation", "controller", "critic", "dpo", "end_to_end", "entropy", "gae", "kl", "loss", "metric", "numeric",
    "offpolicy", "reward", "sampling",
)  # fmt: skip


class Unknown(Exception):
    """A case says something for which no part of the product is known. No ValueError: that is how the product refuses."""


@dataclass(frozen=True)
class Fields:
    """Named values of a case, and which of them were asked for."""

    where: str
    values: Mapping[str, Any]
    read: set[str] = field(default_factory=set)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return self.values.get(name, default)

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            raise Unknown(f"the {self.where} of this case lacks {name}")
        return self.get(name)

    def choice(self, name: str, table: Mapping[Any, Any], default: Any) -> Any:
        """What the table has for the value, or for the default where there is none."""
        value = self.get(name, default)
        if value not in table:
            choices = ", ".join(str(key) for key in table)
            raise Unknown(f"{self.where}.{name} {value!r} is not known; choices: {choices}")
        return table[value]

    def without(self, *names: str) -> Fields:
        return replace(self, values={name: value for name, value in self.values.items() if name not in names})

    def over(self, values: Mapping[str, Any]) -> Fields:
        """The same fields with some replaced."""
        return replace(self, values={**self.values, **values})

    def unread(self) -> list[str]:
        return [name for name in self.values if name not in self.read]


@dataclass(frozen=True)
class Case:
    """One file. NaN and infinities, which JSON has not, are numbers here."""

    name: str
    kind: str
    inputs: Fields
    config: Fields
    expected: Mapping[str, Any]
    tolerance: float

    def but(self, **config: Any) -> Case:
        """The case with other configuration values."""
        return replace(self, config=self.config.over(config))


def read(path: Path) -> Case:
    """Raises Unknown for a kind that nobody answers for, and for a file without the fields of a case."""
    try:
        data = numbers(json.loads(path.read_text()))
    except json.JSONDecodeError as error:
        raise Unknown(f"not JSON: {error}") from error
    lacking = [name for name in ("kind", "inputs", "expected") if not isinstance(data, dict) or name not in data]
    if lacking:
        raise Unknown(f"lacks {', '.join(lacking)}")
    if data["kind"] not in KINDS:
        raise Unknown(f"unknown kind {data['kind']!r}; known: {', '.join(KINDS)}")
    return Case(
        name=data.get("name", path.stem),
        kind=data["kind"],
        inputs=Fields("inputs", data["inputs"]),
        config=Fields("config", data.get("config") or {}),
        expected=data["expected"],
        tolerance=float(data.get("tolerance", 1e-6)),
    )


def numbers(value: Any) -> Any:
    """Spelled numbers as numbers."""
    if isinstance(value, list):
        return [numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: numbers(item) for name, item in value.items()}
    return float(value) if value in ("nan", "inf", "-inf") else value
