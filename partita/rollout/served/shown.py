"""How a model is shown a client's conversation: by its chat template where that knows tools, else in plain messages.

Left out: what a template knows, which is found out by trying it (`tasks.tools.showing`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from partita.rollout.served.requests import Message
from partita.tasks.chat import Chat
from partita.tasks.tools.calls import CallFormat
from partita.tasks.tools.runner import ToolResult
from partita.tasks.tools.schema import Tool
from partita.tasks.tools.showing import Showing, showing_of


@dataclass(frozen=True)
class Shown:
    """Conversations with one model and one list of tools. showing: None where there are no tools."""

    chat: Chat
    showing: Showing | None = None

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a conversation up to where the assistant speaks. Raises PromptError."""
        if self.showing is None:
            return self.chat.opening(messages)
        return self.showing.chat.opening(self.showing.asked(self._plain(messages)))

    def reply(self, said: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """The ids that follow an answer whose sampled ids are `said`. Raises PromptError."""
        if self.showing is None:
            return self.chat.reply(said, messages)
        return self.showing.chat.reply(said, self._plain(messages))

    def _plain(self, messages: Sequence[Message]) -> list[Message]:
        """The messages without what the template does not know: calls, or results."""
        assert self.showing is not None, "only a client with tools has calls and results"
        found = list[Message]()
        for message in messages:
            if message["role"] == "tool" and not self.showing.as_tool:
                found += self.showing.told([(str(message.get("name", "")), ToolResult(message["content"], False))])
            elif "tool_calls" in message and self.showing.system:
                written = [_written(call["function"]) for call in message["tool_calls"]]
                found.append({"role": "assistant", "content": "\n".join(filter(None, [message["content"], *written]))})
            else:
                found.append(message)
        return found


@dataclass(eq=False)
class Showings:
    """What is known of each chat and list of tools. calls: how the model writes them."""

    calls: CallFormat
    _known: dict[tuple[int, str], Shown] = field(init=False, default_factory=dict[tuple[int, str], Shown])

    def of(self, chat: Chat, tools: Sequence[dict[str, Any]]) -> Shown:
        """How this chat is shown these tools. The chat is kept, so that its id stays its own."""
        key = (id(chat), tools_key(tools))
        if key not in self._known:
            listed = [Tool(_elsewhere, schema) for schema in tools]
            self._known[key] = Shown(chat, showing_of(chat, listed, self.calls) if listed else None)
        return self._known[key]


def tools_key(tools: Sequence[dict[str, Any]]) -> str:
    """What tells one list of tools from another."""
    return json.dumps(list(tools), sort_keys=True) if tools else ""


def _written(function: dict[str, Any]) -> str:
    """A call as the model wrote it, or might have."""
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


def _elsewhere(*_: Any) -> NoReturn:
    raise RuntimeError("a client's tools run at the client's")
