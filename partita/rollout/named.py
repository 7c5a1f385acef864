"""Finds the workflow that a config names, and makes it with what the config gives it.

Left out: what workflows do.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from partita.config import ConfigError
from partita.config.errors import Problem
from partita.rollout.workflow import Workflow
from partita.tasks.functions import LoadError, load_object

SINGLE = "single_turn"
NAMED = {
    SINGLE: "partita.rollout.workflow:SingleTurn",
    "multi_turn": "partita.rollout.multi_turn:MultiTurn",
    "retry": "partita.rollout.retry:RetryWithFeedback",
    "tools": "partita.rollout.tool_use:ToolUse",
    "agent": "partita.rollout.served.workflow:Agent",
}
"""Where the built-in ones are; loaded when they are asked for, as some need more than a core install has."""
NAME, KWARGS = "rollout.workflow", "rollout.workflow_kwargs"


def workflow_of(name: str | Any, kwargs: Mapping[str, Any]) -> Workflow:
    """The workflow called `name`, one of `NAMED` or path/file.py:Name or package.module:Name, made with kwargs. In place of a name
    a class, a function that makes a workflow, or a workflow itself, which takes no kwargs.

    Raises ConfigError naming the key: for a name that leads nowhere, arguments that it does not take, what its making refuses with
    a ValueError, and for what is no workflow.
    """
    found, what = _found(name), name if isinstance(name, str) else f"the workflow {name!r}"
    if _is_workflow(found) and not inspect.isclass(found):
        if kwargs:
            raise _wrong(KWARGS, f"{what} is a workflow already and takes no arguments: {', '.join(kwargs)}")
        return found
    if not callable(found):
        raise _wrong(
            NAME,
            f"{what} is a {type(found).__name__}; expected a class with run(episode), or a function that makes one",
        )
    _check_arguments(what, found, kwargs)
    try:
        made: Any = found(**kwargs)
    except ValueError as error:  # LoadError among them
        raise _wrong(KWARGS, f"{what}: {error}") from error
    if not _is_workflow(made):
        raise _wrong(NAME, f"{what} makes a {type(made).__name__}, which has no method `async def run(self, episode)`")
    return made


def _found(name: str | Any) -> Any:
    if not isinstance(name, str):
        return name
    try:
        return load_object(NAMED.get(name, name))
    except LoadError as error:
        near = difflib.get_close_matches(name, NAMED, 1)
        more = f" (near: {near[0]})" if near else ""
        raise _wrong(NAME, f"{error}{more}; the built-in ones: {', '.join(NAMED)}") from error


def _is_workflow(made: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(made, "run", None))


def _check_arguments(what: str, make: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Raises ConfigError for an argument that it does not take, and for one that it needs."""
    parameters = inspect.signature(make).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    for name in kwargs:
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, 1)
            more = f" Near: {near[0]}." if near else ""
            raise _wrong(
                f"{KWARGS}.{name}", f"{what} takes no such argument.{more} It takes: {', '.join(parameters) or 'none'}"
            )
    for name, one in parameters.items():
        if one.default is one.empty and name not in kwargs and one.kind is not one.VAR_POSITIONAL:
            raise _wrong(f"{KWARGS}.{name}", f"{what} needs it")


def _wrong(path: str, message: str) -> ConfigError:
    return ConfigError([Problem(path, message)])
