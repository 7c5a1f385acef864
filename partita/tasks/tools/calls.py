"""Finds the tool calls in what a model wrote.

A call that cannot be read is `Malformed`, with words for the model; text without any call is none. Thinking up to its last
`</think>` is not looked at. Left out: special tokens, which are not in the text of a completion (formats whose calls begin with
one, as Mistral's, are not known), and calls that are not JSON, as those of Qwen3-Coder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from partita.tasks.tools.schema import Tool, ToolError

_HERMES = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_GROUPS = {"name", "arguments", "argument"}


@dataclass(frozen=True)
class ToolCall:
    """What the model asks for; neither the name nor the arguments have been looked up."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Malformed:
    """A call that cannot be read. why: for the model."""

    why: str


Found = ToolCall | Malformed


@dataclass(frozen=True)
class CallFormat:
    """How calls are written. find: those in a text, in order. how: tells the model, where no chat template does; empty where
    nobody but the user can.
    """

    find: Callable[[str], list[Found]]
    how: str = ""

    def calls(self, text: str) -> list[Found]:
        """The calls of a turn, thinking left out."""
        return self.find(text.rpartition("</think>")[2])


def call_format(wanted: str, tools: Sequence[Tool]) -> CallFormat:
    """A format of FORMATS, or the one that a regular expression describes.

    Its group `arguments` is a JSON object; or its group `argument` is the only argument of every tool, as text where that is a
    string, else as JSON. Its group `name` is the tool's; it may be missing where there is one tool. Raises ToolError.
    """
    if wanted in FORMATS:
        return FORMATS[wanted]
    if "(?P<" not in wanted:
        raise ToolError(f"calls={wanted!r}: expected {', '.join(FORMATS)}, or a regular expression with named groups")
    try:
        pattern = re.compile(wanted, re.DOTALL)
    except re.error as error:
        raise ToolError(f"calls={wanted!r} is no regular expression: {error}") from error
    groups = set(pattern.groupindex)
    if not groups <= _GROUPS or len(groups & {"arguments", "argument"}) != 1:
        raise ToolError(
            f"calls={wanted!r} has the groups {', '.join(groups)}; expected arguments or argument, and name"
        )
    if "name" not in groups and len(tools) > 1:
        raise ToolError(f"calls={wanted!r} has no group name, and there are {len(tools)} tools")
    many = [tool.name for tool in tools if len(tool.parameters) != 1]
    if "argument" in groups and many:
        raise ToolError(f"calls={wanted!r} has the group argument, and {many[0]} has not exactly one; use arguments")
    return CallFormat(lambda text: [_matched(match, tools) for match in pattern.finditer(text)])


def _matched(match: re.Match[str], tools: Sequence[Tool]) -> Found:
    groups = match.groupdict()
    name = groups["name"].strip() if groups.get("name") is not None else tools[0].name
    if "arguments" in groups:
        return _read({"name": name, "arguments": groups["arguments"] or ""})
    tool = next((tool for tool in tools if tool.name == name), tools[0])  # who calls an unknown one hears so later
    ((argument, schema),) = tool.parameters.items()
    text = groups["argument"] or ""
    if schema.get("type") == "string":
        return ToolCall(name, {argument: text})
    try:
        return ToolCall(name, {argument: _json(text)})
    except ValueError as error:
        return Malformed(f"the argument of {name} is not JSON: {error}")


def _hermes(text: str) -> list[Found]:
    return [
        _read_text(match[1]) if match[2] else Malformed("<tool_call> is not closed by </tool_call>")
        for match in _HERMES.finditer(text)
    ]


def _llama3(text: str) -> list[Found]:
    """JSON objects at the start of the turn, with `;` or white space between them; other JSON is an answer."""
    rest = text.strip().removeprefix("<|python_tag|>").lstrip()
    if not re.match(r'\{\s*"(name|type|parameters)"', rest):
        return []
    found = list[Found]()
    while rest.startswith("{"):
        try:
            given, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            return [*found, Malformed(f"the call is not JSON: {_why(error)}")]
        if "parameters" in given or "arguments" in given:
            arguments = given.get("parameters", given.get("arguments"))
            found.append(_read({"name": given.get("name"), "arguments": arguments}))
        rest = rest[end:].lstrip(" \n\t;")
    return found


def _read_text(text: str) -> Found:
    try:
        return _read(_json(text))
    except ValueError as error:
        return Malformed(f"the call is not JSON: {error}")


def _read(given: Any) -> Found:
    """A call from its name and arguments, which may be an object or a text that holds one."""
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return Malformed('a call is an object with "name", a text, and "arguments", an object')
    name, arguments = given["name"], given.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = _json(arguments)
        except ValueError as error:
            return Malformed(f"the arguments of {name} are not JSON: {error}")
    if not isinstance(arguments, dict):
        return Malformed(f"the arguments of {name} are not an object")
    return ToolCall(name, arguments)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _json(text: str) -> Any:
    """Raises ValueError for anything but one value of strict JSON."""
    try:
        return _DECODER.decode(text.strip())
    except (ValueError, RecursionError) as error:
        raise ValueError(_why(error)) from error


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)


_HOW = """\
To call one, write
{form}
and end your turn; its result comes next."""
FORMATS: dict[str, CallFormat] = {
    "hermes": CallFormat(
        _hermes, _HOW.format(form='<tool_call>{"name": NAME, "arguments": {NAME: VALUE}}</tool_call>')
    ),
    "llama3": CallFormat(_llama3, _HOW.format(form='{"name": NAME, "parameters": {NAME: VALUE}}')),
}
"""hermes: also of Qwen 2.5, Qwen 3 and SmolLM2 (1.7B); llama3: of Llama 3.1 to 3.3."""
