"""Finds out what a reward function wants, by the names of its parameters, and gives it that.

Left out: the ways of other tools (`tasks.adapters`), and where the function runs (`tasks.reward_calls`).
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from partita.tasks.adapters import GRADED, OWN, Answer, RewardSetupError, Style, style_of
from partita.tasks.functions import LoadError, load_object
from partita.tasks.graders.builtin import BUILTINS, Builtin, Check
from partita.tasks.reward_call import TOLD, Call, TrainerState
from partita.tasks.reward_settings import FunctionOptions

Place = Literal["here", "loop", "worker"]


@dataclass(frozen=True)
class RewardFunction:
    """A reward function, what it asks for, and where it runs.

    `required` and `optional` are parameters that are given by name; `takes_rest`: it has `**kwargs` and gets what else its
    style gives. `place`: "here" runs in the calling thread, "loop" is awaited, "worker" runs in a process that can be killed.
    `own_limit`: it is awaited with `seconds` and keeps that limit itself. `check`: raises ValueError for a row that it can
    never judge.
    """

    name: str
    function: Callable[..., Any]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    takes_rest: bool
    place: Place
    style: Style
    options: FunctionOptions
    own_limit: bool = False
    check: Check | None = None

    @property
    def together(self) -> bool:
        """Whether one call is about all responses to a prompt."""
        return self.style.together and not self.options.one_by_one

    def missing(self, available: Mapping[str, Any]) -> list[str]:
        """Required names that neither `available`, what its style gives, nor the config has."""
        return [name for name in self.required if name not in available and name not in self._beside]

    def unused_defaults(self, available: Mapping[str, Any]) -> list[str]:
        """Parameters whose default will be used."""
        return [name for name in self.optional if name not in available and name not in self._beside]

    @property
    def _beside(self) -> tuple[str, ...]:
        return (*self.options.kwargs, *(name for name in TOLD if name in self.style.quiet))

    def call(self, which: int, answers: Sequence[Answer], state: TrainerState) -> Call:
        """The call of the function about some answers. Raises RewardSetupError when a required name is missing."""
        values = self.style.values(answers, state)
        if missing := self.missing(values):
            raise RewardSetupError(self.complaint(missing[0], values))
        named, places = (*self.required, *self.optional), self.style.positional
        chosen = {name: values[name] for name in named if name in values}
        if self.takes_rest:
            kept = {*chosen, *places, *self.style.quiet}
            chosen |= {name: value for name, value in values.items() if name not in kept}
        asked = tuple(name for name in TOLD if name in named and name in self.style.quiet)
        args = tuple(values[name] for name in places)
        return Call(which, args, chosen | self.options.kwargs, self.style.name, len(answers), asked)

    def complaint(self, name: str, values: Mapping[str, Any]) -> str:
        """Why the function cannot be called: the parameter, what there is, and the nearest name."""
        near = difflib.get_close_matches(name, list(values), 1, 0.7)
        style = "" if self.style.name == "partita" else f" (called {self.style.how})"
        return (
            f"reward function {self.name!r}{style} asks for {name!r}, which the data do not have"
            f"{f' (near: {near[0]})' if near else ''}; available: {', '.join(values)}. "
            f"Rename the parameter, give it a default, set train_dataset.columns, or reward.options.{self.name}.kwargs.{name}"
        )


def bind_all(
    functions: Sequence[str | Callable[..., Any]], options: Mapping[str, FunctionOptions] | None = None
) -> list[RewardFunction]:
    """One RewardFunction for each name or object; equal names are numbered. Raises RewardSetupError."""
    given, bound = dict(options or {}), list[RewardFunction]()
    for function in functions:
        name = function.rpartition(":")[2].rpartition(".")[2] if isinstance(function, str) else name_of(function)
        taken = sum(other.name == name or other.name.startswith(f"{name}#") for other in bound)
        name = f"{name}#{taken + 1}" if taken else name
        bound.append(_bind(name, function, given.pop(name, FunctionOptions())))
    for name in given:
        near = difflib.get_close_matches(name, [one.name for one in bound], 1)
        raise RewardSetupError(
            f"reward.options.{name}: no reward function is called so{f' (near: {near[0]})' if near else ''}; there are: "
            f"{', '.join(one.name for one in bound) or 'none'}"
        )
    return bound


def name_of(function: Callable[..., Any]) -> str:
    """What a reward that is an object is called: a function's own name, else its class's."""
    return function.__name__ if inspect.isroutine(function) else type(function).__name__


def _bind(name: str, given: str | Callable[..., Any], options: FunctionOptions) -> RewardFunction:
    builtin = _builtin(given)
    found = builtin.function if builtin else _load(given) if isinstance(given, str) else given
    if not callable(found):
        raise RewardSetupError(f"reward function {name!r} is a {type(found).__name__}, not a function")
    parameters = _parameters(found, name)
    style = style_of(name, [p.name for p in parameters], options.style)
    if builtin and style is OWN and not builtin.verbatim:
        style = GRADED
    required, optional, rest = _by_name(name, parameters, style)
    if builtin:
        function, place = (builtin.on_loop, "loop") if builtin.on_loop else (found, "here")
    else:
        awaited = inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(type(found).__call__)
        function, place = found, "loop" if awaited else "worker"
    own_limit = builtin is not None and builtin.on_loop is not None
    check = builtin.check if builtin else None
    bound = RewardFunction(name, function, required, optional, rest, place, style, options, own_limit, check)
    _check_options(bound)
    return bound


def _check_options(bound: RewardFunction) -> None:
    """Raises RewardSetupError for options that the function cannot have."""
    where, options = f"reward.options.{bound.name}", bound.options
    known = (*bound.required, *bound.optional)
    if unknown := [name for name in options.kwargs if name not in known and not bound.takes_rest]:
        near = difflib.get_close_matches(unknown[0], known, 1)
        raise RewardSetupError(
            f"{where}.kwargs.{unknown[0]}: the function has no such parameter{f' (near: {near[0]})' if near else ''}; "
            f"it has: {', '.join(known)}"
        )
    if by_place := [name for name in options.kwargs if name in bound.style.positional]:
        raise RewardSetupError(
            f"{where}.kwargs.{by_place[0]}: the function gets this by place, as {bound.style.name} gives it"
        )
    if options.one_by_one and not bound.style.together:
        raise RewardSetupError(f"{where}.one_by_one: the function gets one response at a time already")
    if options.memory_gb is not None and bound.place != "worker":
        raise RewardSetupError(
            f"{where}.memory_gb: it runs in the training process, where no limit can hold for it alone"
        )
    if options.steps and bound.style.name != "partita":
        raise RewardSetupError(f"{where}.steps: only a function in Partita's own style gives steps")


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


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RewardSetupError(f"reward function {name!r}: its parameters cannot be read: {error}") from error


def _by_name(
    name: str, parameters: Sequence[inspect.Parameter], style: Style
) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Required and optional names that are not given by place, and whether there is **kwargs. Raises RewardSetupError."""
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    first, count = places[: len(style.positional)], len(style.positional)
    if len(places) < count and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise RewardSetupError(
            f"reward function {name!r} is called with {', '.join(style.positional)} by place, and takes {len(places)} values"
        )
    if only := [p.name for p in places[count:] if p.kind is p.POSITIONAL_ONLY]:
        raise RewardSetupError(f"reward function {name!r}: {only[0]!r} is positional-only; rewards are called by name")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p not in first]
    return (
        tuple(p.name for p in named if p.default is p.empty),
        tuple(p.name for p in named if p.default is not p.empty),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
    )
