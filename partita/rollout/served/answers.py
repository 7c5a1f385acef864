"""What a call came to, in OpenAI's words: as one JSON object, or as the events of a stream.

A stream is sent at once when the completion is there: its tokens come in rounds, with those of all other samples.
Left out: what was asked (`served.requests`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from partita.engine.api import Completion
from partita.rollout.served.requests import Asked
from partita.tasks.tools.calls import CallFormat, ToolCall

MODEL = "policy"
"""What the policy is called among the models of the served address."""
CREATED = 0
"""When an answer was made: never, so that equal runs give equal answers."""


@dataclass(frozen=True)
class Answered:
    """A call and its completion. number: names the call, 32 bits. message: the assistant's, in OpenAI's form. pieces: the text
    of each sampled token, where log-probs were asked for.
    """

    number: int
    prompt_tokens: int
    completion: Completion
    message: dict[str, Any]
    pieces: Sequence[str] = ()

    @property
    def finish_reason(self) -> str:
        """stop, length or tool_calls."""
        return "tool_calls" if "tool_calls" in self.message else self.completion.stop_reason

    @property
    def usage(self) -> dict[str, int]:
        """Tokens as the model saw them, the end of the turn included where it was sampled."""
        said = len(self.completion.ids)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": said,
            "total_tokens": self.prompt_tokens + said,
        }


def message_of(text: str, number: int, calls: CallFormat | None) -> dict[str, Any]:
    """The assistant's message: the text, or what stands before its calls and the calls. A text in which some call cannot be read
    stays a text, so that the agent sees what was written. calls: None where there are no tools.
    """
    found = [] if calls is None else calls.calls(text)
    read = [one for one in found if isinstance(one, ToolCall)]
    if not found or len(read) < len(found):
        return {"role": "assistant", "content": text}
    thought, closed, rest = text.rpartition("</think>")
    before, marked, _ = rest.partition("<tool_call>")
    content = thought + closed + (before if marked else "")
    listed = [
        {
            "id": f"call_{number:08x}_{at}",
            "type": "function",
            "function": {"name": one.name, "arguments": json.dumps(dict(one.arguments), ensure_ascii=False)},
        }
        for at, one in enumerate(read)
    ]
    return {"role": "assistant", "content": content.strip() or None, "tool_calls": listed}


def chat_object(answered: Answered) -> dict[str, Any]:
    """The response of /chat/completions."""
    choice = {
        "index": 0,
        "message": answered.message,
        "finish_reason": answered.finish_reason,
        "logprobs": _chat_logprobs(answered),
    }
    return _head(answered, "chat.completion") | {"choices": [choice], "usage": answered.usage}


def text_object(answered: Answered) -> dict[str, Any]:
    """The response of /completions."""
    completion = answered.completion
    logprobs = None
    if answered.pieces:
        logprobs = {"tokens": list(answered.pieces), "token_logprobs": list(completion.logprobs)}
    choice = {"index": 0, "text": completion.text, "finish_reason": completion.stop_reason, "logprobs": logprobs}
    return _head(answered, "text_completion") | {"choices": [choice], "usage": answered.usage}


def chat_events(answered: Answered, asked: Asked) -> Iterator[bytes]:
    """The same as server-sent events: the role, the message, why it ended, and the usage where it was asked for."""
    message = answered.message
    said: dict[str, Any] = {"content": message["content"]} if message["content"] else {}
    if "tool_calls" in message:
        said["tool_calls"] = [{"index": at, **call} for at, call in enumerate(message["tool_calls"])]
    head = _head(answered, "chat.completion.chunk")
    for delta, reason in (({"role": "assistant", "content": ""}, None), (said, None), ({}, answered.finish_reason)):
        logprobs = _chat_logprobs(answered) if delta is said else None
        yield _event(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": logprobs}]})
    yield from _last(answered, asked, head)


def text_events(answered: Answered, asked: Asked) -> Iterator[bytes]:
    """A text completion as server-sent events."""
    whole = text_object(answered)
    head = {name: value for name, value in whole.items() if name not in ("choices", "usage")}
    yield _event(head | {"choices": whole["choices"]})
    yield from _last(answered, asked, head)


def _last(answered: Answered, asked: Asked, head: dict[str, Any]) -> Iterator[bytes]:
    if asked.stream_usage:
        yield _event(head | {"choices": [], "usage": answered.usage})
    yield b"data: [DONE]\n\n"


def _head(answered: Answered, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answered.number:08x}", "object": kind, "created": CREATED, "model": MODEL}


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def _chat_logprobs(answered: Answered) -> dict[str, Any] | None:
    if not answered.pieces:
        return None
    pairs = zip(answered.pieces, answered.completion.logprobs, strict=True)
    content = [
        {"token": piece, "logprob": logprob, "bytes": list(piece.encode()), "top_logprobs": []}
        for piece, logprob in pairs
    ]
    return {"content": content, "refusal": None}
