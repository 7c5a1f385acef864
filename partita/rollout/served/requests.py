"""OpenAI's requests as Partita takes them: a body is checked key by key and made plain, or refused in OpenAI's own words.

What the run decides itself (how tokens are drawn) is not the client's: such a value is refused or set aside, as `on_override`
says. Left out: answers (`served.answers`), and what is sampled (`served.session`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from partita.engine.api import Sampling

ROLES = ("system", "user", "assistant", "tool")
NEUTRAL = {
    "top_k": 0, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "logit_bias": {}, "seed": None,
    "min_p": 0, "top_p": 1, "best_of": 1, "suffix": None, "parallel_tool_calls": True,
}  # fmt: skip
"""Values that ask for nothing."""
LABELS = frozenset({
    "model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "reasoning_effort", "verbosity",
})  # fmt: skip
"""Keys that change nothing of what is sampled."""
READ = frozenset({
    "messages", "prompt", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stop", "n", "logprobs", "top_logprobs",
    "stream", "stream_options", "response_format", "modalities", "echo",
})  # fmt: skip
STOPS = 16

Message = dict[str, Any]
OnOverride = Literal["error", "ignore"]


class ApiError(Exception):
    """A refusal that goes to the client as OpenAI's error object, with this HTTP status."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        """The JSON of the response."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Asked:
    """One call. `messages` in the form that chat templates take, or for a text completion `prompt`, a text or ids.

    set_aside: what the client wanted of the sampling and does not get, by key.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] = ""
    tools: tuple[dict[str, Any], ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    stream: bool = False
    stream_usage: bool = False
    set_aside: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_chat(body: Mapping[str, Any], sampling: Sampling, on_override: OnOverride) -> Asked:
    """A request to /chat/completions. Raises ApiError."""
    if body.get("prompt") is not None:
        raise ApiError(400, "prompt belongs to /completions; a chat has messages", param="prompt")
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise ApiError(400, "messages must be a list with at least one message", param="messages")
    messages = tuple(plain_message(one, f"messages[{at}]") for at, one in enumerate(given))
    if messages[-1]["role"] == "assistant":
        raise ApiError(400, "the last message is the assistant's: there is nothing to answer", param="messages")
    if _integer(body, "top_logprobs"):
        raise ApiError(400, "top_logprobs: only the log-prob of the sampled token is known", param="top_logprobs")
    return Asked(
        messages=messages, tools=_tools(body), logprobs=_boolean(body, "logprobs"), **_common(body, sampling, on_override)
    )  # fmt: skip


def read_text(body: Mapping[str, Any], sampling: Sampling, on_override: OnOverride) -> Asked:
    """A request to /completions: one prompt, a text or a list of ids. Raises ApiError."""
    if body.get("messages") is not None:
        raise ApiError(400, "messages belong to /chat/completions", param="messages")
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(type(one) is int and one >= 0 for one in prompt):
        prompt = tuple(cast("list[int]", prompt))
    if not isinstance(prompt, str | tuple) or not prompt:
        raise ApiError(400, "prompt must be one text or one list of token ids, and not empty", param="prompt")
    if _boolean(body, "echo"):
        raise ApiError(400, "echo=true is not served: the prompt is the client's already", param="echo")
    wanted = _integer(body, "logprobs")
    if wanted is not None and wanted > 1:
        raise ApiError(400, "logprobs: only the log-prob of the sampled token is known; use 0 or 1", param="logprobs")
    return Asked(prompt=prompt, logprobs=wanted is not None, **_common(body, sampling, on_override))


def plain_message(given: Any, where: str) -> Message:
    """A message as chat templates take it: content as one text, arguments of calls as objects. Raises ApiError.

    Two messages that say the same are equal afterwards, so this is also how a history is compared with what was answered.
    """
    if not isinstance(given, Mapping):
        raise ApiError(400, f"{where} is not an object", param=where)
    message = cast("Mapping[str, Any]", given)
    role = "system" if message.get("role") == "developer" else message.get("role")
    if role not in ROLES:
        raise ApiError(400, f"{where}.role must be one of {', '.join(ROLES)}", param=f"{where}.role")
    plain: Message = {"role": role, "content": _content(message.get("content"), f"{where}.content")}
    calls = message.get("tool_calls")
    if calls and role == "assistant":
        if not isinstance(calls, list):
            raise ApiError(400, f"{where}.tool_calls is not a list", param=f"{where}.tool_calls")
        plain["tool_calls"] = [_call(one, f"{where}.tool_calls[{at}]") for at, one in enumerate(calls)]
    elif message.get("content") is None and role != "assistant":
        raise ApiError(400, f"{where}.content is missing", param=f"{where}.content")
    return plain | {name: str(message[name]) for name in ("name", "tool_call_id") if message.get(name) is not None}


def _content(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ApiError(400, f"{where} must be a text or a list of text parts", param=where)
    words = list[str]()
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ApiError(400, f"{where}: only parts of type text are served", param=where)
        words.append(part["text"])
    return "".join(words)


def _call(given: Any, where: str) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ApiError(400, f"{where}.function.name is missing", param=where)
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"{where}.function.arguments is not JSON", param=where) from error
    return {
        "type": "function",
        "id": str(given.get("id", "")),
        "function": {"name": function["name"], "arguments": arguments},
    }


def _tools(body: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The tools that the model is told about: none with tool_choice none."""
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    named = [
        isinstance(one, dict) and isinstance(one.get("function"), dict) and isinstance(one["function"].get("name"), str)
        for one in (tools if isinstance(tools, list) else [None])
    ]
    if not all(named):
        raise ApiError(400, "tools must be a list of {type: function, function: {name, ...}}", param="tools")
    if choice not in (None, "auto", "none"):
        raise ApiError(
            400, "tool_choice: nothing forces the policy to call a tool; use auto or none", param="tool_choice"
        )
    return () if choice == "none" else tuple(tools)


def _common(body: Mapping[str, Any], sampling: Sampling, on_override: OnOverride) -> dict[str, Any]:
    """What both kinds of completions have."""
    if _integer(body, "n") not in (None, 1):
        raise ApiError(400, "n must be 1: ask again for another completion, it is a row of its own", param="n")
    form = body.get("response_format")
    if isinstance(form, Mapping) and form.get("type") not in (None, "text"):
        raise ApiError(
            400, "response_format: only text is served, nothing constrains what is sampled", param="response_format"
        )
    options = body.get("stream_options")
    limits = [
        number for name in ("max_completion_tokens", "max_tokens") if (number := _integer(body, name)) is not None
    ]
    if limits and min(limits) < 1:
        raise ApiError(400, "max_tokens must be at least 1", param="max_tokens")
    return {
        "max_tokens": min(limits) if limits else None,
        "stop": _stop(body.get("stop")),
        "stream": _boolean(body, "stream"),
        "stream_usage": isinstance(options, Mapping) and options.get("include_usage") is True,
        "set_aside": _set_aside(body, sampling, on_override),
    }


def _stop(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given or []
    if not isinstance(stops, list) or len(stops) > STOPS or not all(isinstance(one, str) and one for one in stops):
        raise ApiError(400, f"stop must be a text or a list of at most {STOPS} texts, none of them empty", param="stop")
    return tuple(stops)


def _set_aside(body: Mapping[str, Any], sampling: Sampling, on_override: OnOverride) -> dict[str, Any]:
    """Keys that ask for another sampling than the run's. Raises ApiError where these are refused."""
    run = NEUTRAL | {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    wanted = {
        name: value
        for name, value in body.items()
        if name not in READ and name not in LABELS and value is not None and not _asks_nothing(name, value, run)
    }
    if wanted and on_override == "error":
        name, value = next(iter(wanted.items()))
        said = f"{name}={_short(value)}"
        why = f"the run samples with {name}={run[name]}" if name in run else "it is not served"
        raise ApiError(400, f"{said}: {why}, so that what is trained is what was sampled; leave it out", param=name)
    return wanted


def _asks_nothing(name: str, value: Any, run: Mapping[str, Any]) -> bool:
    """Whether a value is what happens anyway. -1 is no top_k in other tools."""
    return name in run and (value == run[name] or (name == "top_k" and value == -1 and run[name] == 0))


def _integer(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise ApiError(400, f"{name}={_short(value)} must be a whole number", param=name)
    return value


def _boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name}={_short(value)} must be true or false", param=name)
    return value is True


def _short(value: Any) -> str:
    return repr(value)[:80]
