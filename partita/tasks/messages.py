"""Reads the prompt cell of a row as chat messages, whatever of the usual shapes it has.

Left out: images and other parts that are not text, and layouts that name things otherwise (`tasks.conversations`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from partita.tasks.files import DataError

Message = dict[str, Any]
Turn = tuple[Message, bool]
"""A message, and whether it is learned."""
_LISTED = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content|from|value)["']\s*:.*\}\s*\]\s*""", re.DOTALL)


class RowError(DataError):
    """A row that cannot be used. reason: the kind of fault, in the same words for every row that has it."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(detail or reason)
        self.reason = reason


class NothingToLearn(RowError):
    """A row that is in order and has nothing to learn from."""


def read_messages(value: object, column: str) -> tuple[Message, ...]:
    """The messages of `read_chat`, as a prompt: the last one must be the user's or a tool's, as a response follows.

    Raises DataError with the column and what was found.
    """
    messages = read_chat(value, column)
    check_asks(messages, column)
    return messages


def check_asks(messages: Sequence[Message], column: str) -> None:
    """Raises DataError where a response cannot follow."""
    last = messages[-1]["role"] if messages else "nobody"
    if last not in ("user", "tool"):
        more = "; last_answer=drop leaves it out" if last == "assistant" else ""
        raise DataError(f"{column!r} ends with a message of {last!r}; a prompt ends with the user's or a tool's{more}")


def unpacked(value: object, column: str) -> object:
    """Messages that stand in their cell as JSON text, as in a .csv, as a list; anything else as it is.

    Raises DataError for a list that Python printed, which would be asked as words.
    """
    if not isinstance(value, str) or not _LISTED.fullmatch(value):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise DataError(
            f"{column!r} holds messages as text that is no JSON ({error}); write them with json.dumps"
        ) from error


def read_chat(value: object, column: str) -> tuple[Message, ...]:
    """Text becomes one user message; a list of messages stays; a struct of lists, as some parquet files have, is
    turned.

    A user message may be empty, a prompt may not. Raises DataError with the column and what was found.
    """
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{column!r} is empty")
        return (read_message({"role": "user", "content": value}, repr(column)),)
    if isinstance(value, Mapping):
        value = turned(value, column)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        what = "null" if value is None else f"a {type(value).__name__}"
        raise DataError(f"{column!r} is {what}; expected text or a list of messages")
    if not value:
        raise DataError(f"{column!r} is an empty list")
    return tuple(read_message(message, f"{column}[{i}]") for i, message in enumerate(value))


def turned(value: Mapping[str, Any], column: str) -> list[dict[str, Any]]:
    """A struct of lists as a list of messages. Raises DataError where the lists do not fit."""
    roles, contents = value.get("role"), value.get("content")
    if not isinstance(roles, list) or not isinstance(contents, list) or len(roles) != len(contents):
        raise DataError(
            f"{column!r} is a struct with {', '.join(map(str, value))}; "
            "expected a list of {role, content} or a struct of equally long lists role and content"
        )
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]


def read_message(value: object, where: str) -> Message:
    """One message with role and content, without empty fields. Raises DataError that says `where`."""
    if not isinstance(value, Mapping):
        raise DataError(f"{where} is a {type(value).__name__}; a message has role and content")
    # Columnar files fill fields that a message does not have with null.
    message = {str(name): part for name, part in value.items() if part is not None}
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise DataError(f"{where} has no role; its fields: {', '.join(map(str, value)) or 'none'}")
    if content is None and message.get("tool_calls"):
        return {**message, "content": ""}
    if isinstance(content, list):
        content = _joined(content, f"{where} ({role})")
    if not isinstance(content, str):
        what = "no content" if content is None else f"content of type {type(content).__name__}, not text"
        raise DataError(f"{where} ({role}) has {what}")
    check_text(content, f"{where} ({role})")
    return {**message, "content": content}


def check_text(text: str, where: str) -> None:
    """Raises DataError for half a character, which JSON can hold and no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where} has half a character at {error.start}: a lone surrogate is no text") from error


def _joined(parts: Sequence[object], where: str) -> object:
    """Content in parts, as OpenAI's {type: text, text: ...}, as one text. Raises DataError for a part that is no text."""
    texts = list[str]()
    for part in parts:
        if not isinstance(part, Mapping):
            return parts
        text = part.get("text")
        if not isinstance(text, str):
            raise DataError(f"{where} has a part of type {part.get('type')!r}; only text is read")
        texts.append(text)
    return "".join(texts) if texts else parts
