"""Python functions as tools: what a model is told about one, and whether a call's arguments fit it.

The description is transformers' `get_json_schema`: the signature's types and a docstring with an `Args:` part. What is refused:
a function without a docstring, a parameter without a type or without a line in `Args:`, types that JSON does not have (custom
classes, images, tensors), `*args`, `**kwargs`, positional-only parameters, and what is no function.
Left out: calls (`tasks.tools.calls`) and where functions run (`tasks.tools.runner`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from partita.tasks.functions import LoadError, load_object

JSON_TYPES = {
    str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object", type(None): "null",
}  # fmt: skip
_FOREIGN = ("image", "audio")  # what transformers calls the types of pictures and tensors
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ToolError(ValueError):
    """A tool cannot be used; the message says which, why, and what to change."""


class ArgumentError(ValueError):
    """The arguments of a call do not fit its tool; the message is for the model."""


@dataclass(frozen=True)
class Tool:
    """A function that a model may call. schema: in OpenAI's form, as chat templates take it. source: the name by which a worker
    imports the function; None for one that was handed over as an object.
    """

    function: Callable[..., Any]
    schema: dict[str, Any]
    source: str | None = None

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.schema["function"]["name"]

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema by argument, in the signature's order."""
        return self.schema["function"]["parameters"]["properties"]

    @property
    def required(self) -> list[str]:
        """Arguments without a default."""
        return self.schema["function"]["parameters"].get("required", [])

    @property
    def awaited(self) -> bool:
        """Whether it is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function gets them: as JSON has them, but whole numbers where integers are wanted.

        Raises ArgumentError for an argument that it does not have, that is missing, or of another type.
        """
        for name in given:
            if name not in self.parameters:
                raise ArgumentError(f"{self.name} has no argument {name!r}; {self._takes()}")
        for name in self.required:
            if name not in given:
                raise ArgumentError(f"{self.name} needs the argument {name!r}; {self._takes()}")
        return {
            name: fitted(value, self.parameters[name], f"argument {name!r} of {self.name}")
            for name, value in given.items()
        }

    def _takes(self) -> str:
        listed = ", ".join(f"{name} ({_wanted(schema)})" for name, schema in self.parameters.items())
        return f"it takes {listed}" if listed else "it takes none"


def tools_of(given: Sequence[str | Callable[..., Any]]) -> tuple[Tool, ...]:
    """The tools of these functions, or of the functions that have these names. Raises ToolError, also for two of one name."""
    tools = tuple(tool_of(one) for one in given)
    names = [tool.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ToolError(f"two tools are called {twice[0]!r}: rename one of the functions")
    if not tools:
        raise ToolError("no tool is named; give functions, or names as path/file.py:function")
    return tools


def tool_of(given: str | Callable[..., Any]) -> Tool:
    """A function, or the name of one (`path/file.py:function`, `package.module:function`), as a tool. Raises ToolError."""
    function: Any = given
    if isinstance(given, str):
        try:
            function = load_object(given)
        except LoadError as error:
            raise ToolError(f"tool {error}") from error
    if not inspect.isroutine(function):
        raise ToolError(f"tool {given!r} is a {type(function).__name__}, not a function")
    odd = [name for name, one in inspect.signature(function).parameters.items() if one.kind not in _NAMED]
    if odd:
        raise ToolError(
            f"tool {function.__name__!r} takes {odd[0]!r} without a name of its own: calls name every argument"
        )
    try:
        schema = get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException, NameError, TypeError, ValueError) as error:
        raise ToolError(
            f"tool {function.__name__!r} cannot be described: {error}. It needs a type for every parameter, and a docstring with "
            "an Args: part that has a line `name: what it is` for each"
        ) from error
    schema["function"].pop("return", None)  # no model writes it
    if foreign := [name for name, one in schema["function"]["parameters"]["properties"].items() if _foreign(one)]:
        raise ToolError(
            f"tool {function.__name__!r}: parameter {foreign[0]!r} has a type that no call can write as JSON"
        )
    return Tool(function, schema, given if isinstance(given, str) else None)


def _foreign(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        return schema.get("type") in _FOREIGN or any(_foreign(one) for one in schema.values())
    return isinstance(schema, list) and any(_foreign(one) for one in schema)


def fitted(value: Any, schema: Mapping[str, Any], where: str) -> Any:
    """The value of one argument, with whole numbers as integers where the schema wants these. Raises ArgumentError."""
    if schema.get("nullable") and value is None:
        return value
    if "anyOf" in schema:
        return _fitted_to_any(value, schema, where)
    kinds = schema.get("type", [])
    kind = next((kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if _is(value, kind)), None)
    if kinds and kind is None:
        raise ArgumentError(f"{where} is {_shown(value)} ({JSON_TYPES[type(value)]}); expected {_wanted(schema)}")
    if kind == "integer":
        value = int(value)
    if "enum" in schema and not any(value == one and type(value) is type(one) for one in schema["enum"]):
        raise ArgumentError(f"{where} is {_shown(value)}; expected {_wanted(schema)}")
    if kind == "array":
        return _fitted_list(value, schema, where)
    if kind == "object" and "additionalProperties" in schema:
        inner = schema["additionalProperties"]
        return {name: fitted(one, inner, f"{where}, at {name!r},") for name, one in value.items()}
    return value


def _fitted_to_any(value: Any, schema: Mapping[str, Any], where: str) -> Any:
    for one in schema["anyOf"]:
        try:
            return fitted(value, one, where)
        except ArgumentError:
            continue
    raise ArgumentError(f"{where} is {_shown(value)} ({JSON_TYPES[type(value)]}); expected {_wanted(schema)}")


def _fitted_list(value: list[Any], schema: Mapping[str, Any], where: str) -> list[Any]:
    parts = schema.get("prefixItems", [schema.get("items", {})] * len(value))
    if len(parts) != len(value):
        raise ArgumentError(f"{where} has {len(value)} items; expected {len(parts)}")
    return [fitted(one, part, f"{where}, at {at},") for at, (one, part) in enumerate(zip(value, parts, strict=True))]


def _is(value: Any, kind: str) -> bool:
    if kind == "integer":
        return type(value) is int or (type(value) is float and value.is_integer())
    return JSON_TYPES[type(value)] == kind or (kind == "number" and type(value) is int)


def _wanted(schema: Mapping[str, Any]) -> str:
    """What a schema wants, in words."""
    if "anyOf" in schema:
        return " or ".join(_wanted(one) for one in schema["anyOf"])
    if "enum" in schema:
        return f"one of {json.dumps(schema['enum'], ensure_ascii=False)}"
    kinds = schema.get("type", "anything")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
