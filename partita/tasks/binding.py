"""Finds out what a reward function wants, by the names of its parameters, and gives it that.

Left out: where the function runs; see `tasks.reward`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from partita.tasks.functions import LoadError, load_object
from partita.tasks.graders.builtin import BUILTINS, Builtin

GIVEN = ("response", "completion", "answer", "prompt", "messages", "row", "tokens", "stop_reason")
Place = Literal["here", "loop", "worker"]


class RewardSetupError(ValueError):
    """The rewards of a run cannot work as configured; found before anything is sampled."""


@dataclass(frozen=True)
class RewardFunction:
    """A reward function, what it asks for, and where it runs.

    `required` and `optional` are parameter names; `takes_rest`: it has `**kwargs` and gets all columns it did not name.
    `place`: "here" runs in the calling thread, "loop" is awaited, "worker" runs in a process that can be killed.
    `own_limit`: it is awaited with `seconds` and keeps that limit itself.
    """

    name: str
    function: Callable[..., Any]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    takes_rest: bool
    place: Place
    own_limit: bool = False

    def missing(self, available: Mapping[str, Any]) -> list[str]:
        """Required names that are not there."""
        return [name for name in self.required if name not in available]

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What to call the function with. Raises RewardSetupError when a required name is missing."""
        if missing := self.missing(values):
            raise RewardSetupError(self.complaint(missing[0], values))
        chosen = {name: values[name] for name in (*self.required, *self.optional) if name in values}
        if self.takes_rest:
            chosen |= {name: value for name, value in values.items() if name not in chosen and name not in GIVEN}
        return chosen

    def complaint(self, name: str, values: Mapping[str, Any]) -> str:
        """Why the function cannot be called: the parameter, what there is, and the nearest name."""
        near = difflib.get_close_matches(name, list(values), 1, 0.7)
        return (
            f"reward function {self.name!r} asks for {name!r}, which the data do not have"
            f"{f' (near: {near[0]})' if near else ''}; available: {', '.join(values)}. "
            "Rename the parameter, give it a default, or set train_dataset.columns"
        )


def bind_all(functions: Sequence[str | Callable[..., Any]]) -> list[RewardFunction]:
    """One RewardFunction for each name or object; equal names are numbered. Raises RewardSetupError."""
    bound: list[RewardFunction] = []
    for function in functions:
        name = function.rpartition(":")[2].rpartition(".")[2] if isinstance(function, str) else name_of(function)
        taken = sum(other.name == name or other.name.startswith(f"{name}#") for other in bound)
        bound.append(_bind(f"{name}#{taken + 1}" if taken else name, function))
    return bound


def name_of(function: Callable[..., Any]) -> str:
    """What a reward that is an object is called: a function's own name, else its class's."""
    return function.__name__ if inspect.isroutine(function) else type(function).__name__


def _bind(name: str, given: str | Callable[..., Any]) -> RewardFunction:
    builtin = _builtin(given)
    if builtin is not None:
        required, optional, _ = _parameters(builtin.function, name)
        function, place = (builtin.on_loop, "loop") if builtin.on_loop else (builtin.function, "here")
        return RewardFunction(name, function, required, optional, False, place, own_limit=builtin.on_loop is not None)
    function = _load(given) if isinstance(given, str) else given
    if not callable(function):
        raise RewardSetupError(f"reward function {name!r} is a {type(function).__name__}, not a function")
    required, optional, rest = _parameters(function, name)
    awaited = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return RewardFunction(name, function, required, optional, rest, "loop" if awaited else "worker")


def _builtin(given: str | Callable[..., Any]) -> Builtin | None:
    if isinstance(given, str):
        return BUILTINS.get(given)
    return next((builtin for builtin in BUILTINS.values() if builtin.function is given), None)


def _load(name: str) -> Any:
    if ":" not in name and "." not in name:
        near = difflib.get_close_matches(name, BUILTINS, 1)
        raise RewardSetupError(
            f"reward.functions: {name!r} is not a built-in reward{f' (near: {near[0]})' if near else ''}; "
            f"built-in are {', '.join(BUILTINS)}; name your own as path/file.py:function or package.module:function"
        )
    try:
        return load_object(name)
    except LoadError as error:
        raise RewardSetupError(f"reward.functions: {error}") from error


def _parameters(function: Callable[..., Any], name: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise RewardSetupError(f"reward function {name!r}: its parameters cannot be read: {error}") from error
    if only := [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]:
        raise RewardSetupError(f"reward function {name!r}: {only[0]!r} is positional-only; rewards are called by name")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return (
        tuple(p.name for p in named if p.default is p.empty),
        tuple(p.name for p in named if p.default is not p.empty),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
    )
