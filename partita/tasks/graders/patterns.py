"""Rewards for the form of a response: a regular expression of one's own, a JSON schema.

Both run in a process that can be ended: some patterns need longer than the universe on some texts, and Python cannot be
stopped while it looks.

Left out: the tags of thinking and answer; see `graders.text.think_answer_format`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from partita.tasks.graders.final import after_thinking, fenced_blocks
from partita.tasks.graders.workers import call

LIMIT_SECONDS = 5.0


class FormError(ValueError):
    """A pattern or schema that cannot be used, or that did not come to an end: the config's or the data's fault."""


def regex_format(response: str, pattern: str, whole: bool = True, limit_seconds: float = LIMIT_SECONDS) -> float:
    """1.0 when the pattern (Python's `re`) matches the whole response, or with whole=False is found in it; else 0.0.

    pattern: from the function's kwargs or a column; flags stand in it, as `(?s)` for a dot that matches line ends.
    Raises FormError for a bad pattern, and for one that takes longer than `limit_seconds`.
    """
    asked = {"text": response, "pattern": pattern, "whole": whole}
    return _asked("partita.tasks.graders.forms:matches", asked, f"pattern {pattern!r:.200}", limit_seconds)


def json_schema(
    response: str, schema: Mapping[str, Any] | str | None = None, limit_seconds: float = LIMIT_SECONDS
) -> float:
    """1.0 when the response is JSON that fits the schema, else 0.0: its last block marked json, else its last unmarked one,
    else all of it; only what follows `</think>` counts.

    schema: from the function's kwargs or a column, as an object or as JSON text; None asks for any JSON. A schema needs the
    extra `graders` (jsonschema). Nothing is fetched for a `$ref`.
    Raises FormError for a bad schema, and for one that takes longer than `limit_seconds`.
    """
    text = after_thinking(response)
    if text is None or read_json(text) is None:
        return 0.0
    if schema is None:
        return 1.0
    asked = {"text": _json_text(text), "schema": _read_schema(schema)}
    return _asked("partita.tasks.graders.json_forms:fits", asked, "schema", limit_seconds)


def read_json(text: str) -> tuple[Any] | None:
    """The JSON value that a text holds, None where it holds none; NaN and Infinity are not JSON."""
    try:
        return (json.loads(_json_text(text), parse_constant=_no_constant),)
    except (ValueError, RecursionError):
        return None


def _json_text(text: str) -> str:
    blocks = fenced_blocks(text)
    marked = [content for mark, content in blocks if mark.lower() == "json"]
    return (marked or [content for mark, content in blocks if not mark] or [text])[-1]


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _read_schema(schema: Mapping[str, Any] | str) -> Any:
    if not isinstance(schema, str):
        return dict(schema)
    try:
        return json.loads(schema)
    except json.JSONDecodeError as error:
        raise FormError(f"the schema is not JSON: {error}") from error


def _asked(function: str, arguments: Mapping[str, Any], what: str, seconds: float) -> float:
    outcome = call(function, arguments, seconds)
    if outcome.reward is None:
        why = f"takes longer than {seconds:g} seconds" if outcome.timed_out else outcome.error.splitlines()[0]
        raise FormError(f"{what}: {why}")
    return outcome.reward
