"""How a model is shown its tools and their results: by its chat template where that knows them, else in plain messages.

Left out: tokens. `tasks.chat` renders what is made here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partita.tasks.chat import Chat
from partita.tasks.messages import Message
from partita.tasks.rendering import PromptError
from partita.tasks.tools.calls import CallFormat
from partita.tasks.tools.runner import ToolResult
from partita.tasks.tools.schema import Tool

INTRODUCTION = "You can call these functions:"
_PROBE = "zq7"  # a name that no template has
_PROBED = {
    "type": "function",
    "function": {"name": _PROBE, "description": _PROBE, "parameters": {"type": "object", "properties": {}}},
}


def describe(tools: Sequence[Tool], calls: CallFormat) -> str:
    """The system message about some tools, for a model whose template knows none: a line of JSON for each, and how to call."""
    return "\n".join([INTRODUCTION, *_lines(tools), calls.how])


def _lines(tools: Sequence[Tool]) -> list[str]:
    return [json.dumps(tool.schema["function"], ensure_ascii=False) for tool in tools]


def with_system(messages: Sequence[Mapping[str, Any]], text: str) -> list[Message]:
    """The messages with a text at the end of their system message, or as one of its own."""
    given = [dict(message) for message in messages]
    if not text:
        return given
    if given and given[0]["role"] == "system":
        return [{**given[0], "content": f"{given[0]['content']}\n\n{text}"}, *given[1:]]
    return [{"role": "system", "content": text}, *given]


@dataclass(frozen=True)
class Showing:
    """How one model is shown some tools; made by `showing_of`. chat: its conversations, the tools in them where its template
    knows any. system: what a system message says of the tools, empty for nothing. as_tool: results have the role `tool`; else
    they are the user's, in `<tool_response>` and its end.
    """

    tools: tuple[Tool, ...]
    chat: Chat
    system: str
    as_tool: bool

    def asked(self, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
        """A prompt's messages, with what a system message must say of the tools."""
        return with_system(messages, self.system)

    def told(self, results: Sequence[tuple[str, ToolResult]]) -> list[Message]:
        """The messages of some results, each with the name of its tool, in the order of the calls."""
        if self.as_tool:
            return [{"role": "tool", "name": name, "content": result.text} for name, result in results]
        texts = [f"<tool_response>\n{result.text}\n</tool_response>" for _, result in results]
        return [{"role": "user", "content": "\n".join(texts)}]


def showing_of(chat: Chat, tools: Sequence[Tool], calls: CallFormat, instruction: str | None = None) -> Showing:
    """How the chat's template shows tools and results, found out by trying it.

    instruction: the system message, with `{tools}` for lines of JSON; empty for none; None: what the template says of tools, or
    `describe` where it says nothing.
    """
    as_tool = _knows_results(chat)
    if instruction is not None:
        return Showing(tuple(tools), chat, instruction.replace("{tools}", "\n".join(_lines(tools))), as_tool)
    if not _knows_tools(chat):
        return Showing(tuple(tools), chat, describe(tools, calls), as_tool)
    return Showing(tuple(tools), chat.with_tools([tool.schema for tool in tools]), "", as_tool)


def _knows_tools(chat: Chat) -> bool:
    try:
        return _PROBE in chat.decode(chat.with_tools([_PROBED]).opening([{"role": "user", "content": "?"}]))
    except PromptError:
        return False


def _knows_results(chat: Chat) -> bool:
    message = {"role": "tool", "name": "f", "content": _PROBE}
    try:
        return _PROBE in chat.decode(chat.reply([], [message]))
    except PromptError:
        return False


def cleaned(text: str, chat: Chat, most: int) -> str:
    """A result as at most `most` tokens may show it, without special tokens: a tool must not end its turn or speak for others."""
    while len(shorter := chat.decode(chat.encode(text))) < len(text):  # taking one out may make another
        text = shorter
    ids = chat.encode(text)
    return text if len(ids) <= most else f"{chat.decode(ids[:most])} ... ({len(ids) - most} more tokens)"
