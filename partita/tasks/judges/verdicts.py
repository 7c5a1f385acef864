"""Reads a verdict out of a judge's reply, or says that there is none. A number is never made up.

What a reasoning model thinks, up to its last `</think>`, is no part of the reply.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from partita.tasks.judges.settings import JudgeConfig
from partita.tasks.reward_call import short

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)"
_OUT_OF = re.compile(rf"({_NUMBER})\s*(?:/|out of)\s*({_NUMBER})")


class Unreadable(ValueError):
    """A reply without a verdict; the message says what was looked for and what came."""


@dataclass(frozen=True)
class Reply:
    """What a judge said: its text, why it ended, and the probability of Yes against No where it said one of them."""

    text: str
    finish: str = ""
    yes: float | None = None


def read_reply(answer: Any, *, logprobs: bool) -> Reply:
    """The reply in an answer of the server. Raises Unreadable for what is not the protocol's."""
    try:
        choice = answer["choices"][0]
        text, finish = choice["message"].get("content"), choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Unreadable(f"not a chat completion: {short(answer)}") from error
    if not isinstance(text, str):
        raise Unreadable(f"a completion without a text: {short(text)}")
    return Reply(text, str(finish or ""), _yes(choice.get("logprobs")) if logprobs else None)


def _yes(logprobs: Any) -> float | None:
    """P(Yes) / (P(Yes) + P(No)) at the first token that is one of them; None where none is. Raises Unreadable without any
    log-probs.
    """
    try:
        tokens = [(str(one["token"]), one["top_logprobs"]) for one in logprobs["content"]]
        tops = next((top for token, top in tokens if _word(token) in ("yes", "no")), [])
        mass = {
            word: math.fsum(math.exp(one["logprob"]) for one in tops if _word(one["token"]) == word)
            for word in ("yes", "no")
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Unreadable("no logprobs in the reply: score_from=yes_no needs a server that gives them") from error
    whole = mass["yes"] + mass["no"]
    return mass["yes"] / whole if whole > 0 and math.isfinite(whole) else None


def _word(token: str) -> str:
    return token.strip().casefold()


def verdict(reply: Reply, config: JudgeConfig) -> float:
    """From 0 for `minimum` to 1 for `maximum`. Raises Unreadable."""
    if config.score_from == "yes_no":
        if reply.yes is None:
            raise Unreadable(f"neither Yes nor No, but {_shown(reply)}")
        return reply.yes
    if config.score_from == "json":
        return _scaled(_field(reply, config.field or "score"), config)
    if config.score_from == "number":
        return _scaled(_number(reply, config.maximum), config)
    return _scaled(config.choices[_label(reply, list(config.choices))], config)


def step_verdicts(reply: Reply, config: JudgeConfig, count: int) -> list[float]:
    """One for each step, from 0 to 1. Raises Unreadable, also for another number of them."""
    field = config.field or "scores"
    found = _field(reply, field)
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != count:
        raise Unreadable(f"{field!r} is {short(found)}; expected a list of {count} scores, one for each step")
    return [_scaled(one, config) for one in found]


def _scaled(value: object, config: JudgeConfig) -> float:
    low, high = config.minimum, config.maximum
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float) or not low <= value <= high:  # NaN is not in between
        raise Unreadable(f"the score is {short(value)}; expected a number from {low:g} to {high:g}")
    return (value - low) / (high - low)


def _said(reply: Reply) -> str:
    return reply.text.rpartition("</think>")[2].strip()


def _shown(reply: Reply) -> str:
    cut = " (cut off: raise max_tokens)" if reply.finish == "length" else ""
    return f"{short(_said(reply)[-60:])}{cut}"


def _last_line(reply: Reply) -> str:
    return next((line for line in reversed(_said(reply).splitlines()) if line.strip()), "")


def _number(reply: Reply, maximum: float) -> float:
    line = _last_line(reply)
    if of := _OUT_OF.search(line):  # `7/10` is 7 where 10 is the most
        line = of[1] if float(of[2]) == maximum else ""
    numbers = re.findall(_NUMBER, line)
    if len(numbers) != 1:
        raise Unreadable(f"not one number on the last line, but {_shown(reply)}")
    return float(numbers[0])


def _label(reply: Reply, labels: Sequence[str]) -> str:
    """The one label that stands on the last line as a word; single letters only as they are written."""
    line = _last_line(reply)
    found = [
        label
        for label in labels
        if re.search(rf"(?<!\w){re.escape(label)}(?!\w)", line, re.IGNORECASE if len(label) > 1 else 0)
    ]
    if len(found) != 1:
        raise Unreadable(f"not one of {', '.join(labels)} on the last line, but {_shown(reply)}")
    return found[0]


def _field(reply: Reply, field: str) -> Any:
    """The field of the last JSON object that has it: a judge may quote others before its own."""
    said, decoder = _said(reply), json.JSONDecoder()
    for at in (found.start() for found in reversed(list(re.finditer(r"\{", said)))):
        try:
            value, _ = decoder.raw_decode(said, at)
        except (ValueError, RecursionError):
            continue
        for name in field.split("."):
            value = cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    raise Unreadable(f"no JSON object with the field {field!r}, but {_shown(reply)}")
