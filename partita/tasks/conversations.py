"""Whole conversations, preferences and judged answers from the rows that people have: who says what, what is learned.

A layout is known by its columns; where two fit one row, it is an error that asks which. A `prompt` that is a text is one
message of the user, as it is in the prompts that are sampled from. Left out: tokens (`tasks.turns`), whole files
(`tasks.offline_rows`), tools that rows bring along, and content that is not text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.tasks.cells import MISSING, cell, near_column
from partita.tasks.messages import (
    Message,
    NothingToLearn,
    RowError,
    Turn,
    check_asks,
    check_text,
    read_chat,
    read_message,
    read_messages,
    turned,
    unpacked,
)
from partita.tasks.transcripts import HUMAN, TRANSCRIPT, asked_in, turns_in

ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant",
    "model": "assistant", "chatgpt": "assistant", "tool": "tool", "observation": "tool", "function": "tool",
}  # fmt: skip
"""What the roles of common layouts mean."""
LAYOUTS = {
    "messages": ("messages",),
    "conversations": ("conversations",),
    "alpaca": ("instruction", "output"),
    "completion": ("prompt", "completion"),
    "response": ("prompt", "response"),
    "text": ("text",),
}
"""Name of a layout to the columns that a row must have."""
COLUMNS = (
    "messages", "conversations", "system", "instruction", "input", "output", "history", "prompt", "completion", "response",
    "text", "chosen", "rejected", "margin", "label",
)  # fmt: skip
"""All columns that are read."""


@dataclass(frozen=True)
class Conversation:
    """Messages, and which of them are learned: answers of the assistant. `bare`: a text of its own, not a chat."""

    messages: tuple[Message, ...]
    learned: tuple[bool, ...]
    bare: bool = False

    @property
    def question(self) -> tuple[Message, ...]:
        """What stands before the last answer that is learned."""
        last = max((at for at, learned in enumerate(self.learned) if learned), default=0)
        return self.messages if self.bare else self.messages[:last]

    def last_only(self) -> Conversation:
        """The same with its last message learned and nothing else.

        Raises NothingToLearn where that is not an answer, or an empty one.
        """
        if self.messages[-1]["role"] != "assistant":
            raise NothingToLearn("no answer of the assistant at the end")
        if len(self.messages) == 1 and not self.bare:
            raise RowError("no prompt", "an answer alone, and no prompt that it answers")
        if not _has_words(self.messages[-1]):
            raise NothingToLearn("an empty answer")
        return Conversation(self.messages, (*[False] * (len(self.messages) - 1), True), self.bare)


@dataclass(frozen=True)
class Comparison:
    """Two conversations that differ in their last answer, which alone is learned. margin: how much better the chosen one
    is, None where the data do not say so.
    """

    chosen: Conversation
    rejected: Conversation
    margin: float | None = None


@dataclass(frozen=True)
class Judgement:
    """A conversation whose last answer, which alone is learned, is good or bad."""

    conversation: Conversation
    good: bool


@dataclass(frozen=True)
class RowReader:
    """Reads rows of known layouts. layout: a name of LAYOUTS, or auto. columns: what the data call a known column.
    roles: what each role means. system: a message before every conversation.

    All methods raise RowError for a row that cannot be read, and NothingToLearn for one without an answer; neither names
    the row.
    """

    layout: str = "auto"
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    roles: Mapping[str, str] = field(default_factory=lambda: ROLES)
    system: str | None = None

    def conversation(self, row: Mapping[str, Any]) -> Conversation:
        """A row of `messages` (OpenAI; `weight: 0` is not learned), `conversations` (ShareGPT), `instruction`, `input`,
        `output` (Alpaca), `prompt` with `completion` or `response` (texts or messages), or `text`.
        """
        values = self._named(row)
        layout = self._layout(values)
        if layout == "text":
            return _text(values["text"])
        if layout in ("completion", "response"):
            turns = self._answered(values, layout)
        elif layout == "alpaca":
            turns = _alpaca(values)
        else:
            turns = self.chat(values[layout], layout)
        return self._whole(turns, values.get("system"))

    def comparison(self, row: Mapping[str, Any]) -> Comparison:
        """A row with `chosen` and `rejected`: answers to `prompt`, or whole conversations, as messages or as transcripts
        of "\\n\\nHuman: ... \\n\\nAssistant: ..."; `margin` if it is there. Both must be the same up to their last message.
        """
        values = self._named(row)
        missing = [name for name in ("chosen", "rejected") if not _given(values, name)]
        if missing:
            wanted = "a preference has the columns chosen and rejected, and mostly prompt"
            raise RowError(f"no {' and no '.join(missing)}", f"no {' and no '.join(missing)}; {wanted}")
        chosen, rejected = (
            self._whole(self._answered(values, name), values.get("system"), learns=False)
            for name in ("chosen", "rejected")
        )
        if chosen.messages[:-1] != rejected.messages[:-1]:
            raise RowError("chosen and rejected differ before their last messages: they answer different questions")
        chosen, rejected = chosen.last_only(), rejected.last_only()
        if chosen.messages == rejected.messages:
            raise NothingToLearn("chosen and rejected are the same")
        return Comparison(chosen, rejected, _margin(values.get("margin")))

    def judgement(self, row: Mapping[str, Any]) -> Judgement:
        """A row of a conversation's layout, mostly `prompt` and `completion`, with `label`: true for a good last answer."""
        values = self._named(row)
        words = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
        good = words.get(str(values.get("label")).strip().lower())
        if good is None:
            raise RowError("no label", f"label is {values.get('label')!r}, not true or false")
        unnamed = RowReader(self.layout, {}, self.roles, self.system)
        return Judgement(unnamed.conversation(values).last_only(), good)

    def _named(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with known columns under their known names."""
        named = {ours: cell(row, theirs) for ours, theirs in self.columns.items()}
        for ours, theirs in self.columns.items():
            if named[ours] is MISSING:
                near = near_column(theirs, row)
                raise RowError(
                    f"no column {theirs!r}", f"no column {theirs!r} for {ours}{near}; it has {', '.join(row)}"
                )
        taken = set(self.columns.values())
        rest = {name: value for name, value in row.items() if name not in taken}
        if rest.get("tools"):
            raise RowError("tools", "has tools, which are not rendered; take the column out to learn without them")
        return rest | named

    def _layout(self, values: Mapping[str, Any]) -> str:
        fits = [name for name, needed in LAYOUTS.items() if all(_given(values, column) for column in needed)]
        if self.layout in fits:
            return self.layout
        if len(fits) == 1 and self.layout == "auto":
            return fits[0]
        if fits and self.layout == "auto":
            listed = " and ".join(", ".join(LAYOUTS[name]) for name in fits)
            raise RowError(
                "two layouts", f"{listed} could all be the conversation; set layout to one of {', '.join(fits)}"
            )
        wanted = "; ".join(", ".join(needed) for name, needed in LAYOUTS.items() if self.layout in ("auto", name))
        filled = ", ".join(name for name in values if _given(values, name)) or "none"
        raise RowError(
            "no known layout", f"the filled columns are {filled}; expected {wanted}; set columns to rename them"
        )

    def _whole(self, turns: Sequence[Turn], system: Any, *, learns: bool = True) -> Conversation:
        """The turns behind their system message. learns: whether one of them must be learned."""
        told = [("its column system", system)] if system else []
        told += [("`system`", self.system)] if self.system is not None else []
        if len(told) + (turns[0][0]["role"] == "system") > 1:
            where = " and ".join([name for name, _ in told] + ["a message"] * (turns[0][0]["role"] == "system"))
            raise RowError("two system messages", f"has two system messages, of {where}; take one out")
        before = [(read_message({"role": "system", "content": content}, name), False) for name, content in told]
        messages, learned = zip(*before, *turns, strict=True)
        if learns and not any(learned):
            raise NothingToLearn("no answer of the assistant to learn from")
        if learns and learned[0]:
            raise RowError(
                "begins with an answer of the assistant, which answers nothing; take it out, or give it weight 0"
            )
        return Conversation(messages, learned)

    def _answered(self, values: Mapping[str, Any], column: str) -> list[Turn]:
        """An answer behind its prompt; where it repeats the prompt or has none, it is the whole conversation."""
        answer, prompt = values[column], unpacked(_prompt_of(values), "prompt")
        if not isinstance(prompt, str):  # a text is answered by a text, whatever that looks like
            answer = unpacked(answer, column)
        asked = None if prompt is None else self._asked(prompt)
        if not isinstance(answer, str) or answer.startswith(HUMAN):
            told = self.chat(answer, column)
        elif asked is None:
            raise RowError("no prompt", f"{column} is a bare text, and there is no prompt that it answers")
        else:
            told = [_answer(answer, column, stripped=isinstance(prompt, str) and prompt.startswith(HUMAN))]
        if asked is None:
            return told
        if any(message["role"] == "user" for message, _ in told):
            return _behind(asked, told, column)
        return [*((message, False) for message in asked), *told]

    def _asked(self, prompt: Any) -> list[Message]:
        if isinstance(prompt, str) and prompt.startswith(HUMAN):
            return asked_in(prompt, "prompt")
        if _is_sharegpt(prompt):
            messages = [message for message, _ in self.chat(prompt, "conversations")]
            check_asks(messages, "conversations")
            return messages
        messages = read_messages(prompt, "prompt")
        return [self._known(message, f"prompt[{at}]") for at, message in enumerate(messages)]

    def chat(self, given: Any, column: str) -> list[Turn]:
        """Messages of {role, content} or of ShareGPT's {from, value}, one of them, or a transcript."""
        given = unpacked(given, column)
        if isinstance(given, str) and given.startswith(HUMAN):
            return turns_in(given, column)
        alone = isinstance(given, Mapping) and isinstance(given.get("from", given.get("role")), str)
        listed = [given] if alone else turned(given, column) if isinstance(given, Mapping) else given
        if not isinstance(listed, list | tuple) or not listed:
            what = "an empty list" if isinstance(listed, list | tuple) else f"a {type(given).__name__}"
            raise RowError(f"{column} without messages", f"{column} is {what}; expected a list of messages")
        turns = list[Turn]()
        for at, one in enumerate(listed):
            if isinstance(one, Mapping) and one.get("from") is not None:
                one = {"role": one["from"], "content": one.get("value"), "weight": one.get("weight")}
            message = self._known(read_message(one, f"{column}[{at}]"), f"{column}[{at}]")
            weight = message.pop("weight", 1)
            if weight not in (0, 1):
                raise RowError(
                    "a weight that is not 0 or 1", f"{column}[{at}] has weight {weight!r}; known are 0 and 1"
                )
            turns.append((message, message["role"] == "assistant" and _has_words(message) and bool(weight)))
        return turns

    def _known(self, message: Message, where: str) -> Message:
        role = self.roles.get(message["role"])
        if role is None:
            known, said = ", ".join(sorted(self.roles)), repr(message["role"])[:80]
            raise RowError(
                f"an unknown role {said}", f"{where} is said by {said}; known roles: {known}; add it to roles"
            )
        return {**message, "role": role}


def question_in(value: Any, column: str, *, drop_answer: bool) -> tuple[Message, ...]:
    """The messages to ask a policy with, from a cell that holds a prompt or a whole conversation in any of the layouts.
    drop_answer: leave out the answer that a conversation ends with.

    Raises DataError with the column and what was found.
    """
    value = unpacked(value, column)
    if isinstance(value, str) and value.startswith(HUMAN):
        messages = tuple(asked_in(value, column))
    elif _is_sharegpt(value):
        messages = tuple(message for message, _ in RowReader().chat(value, column))
    else:
        messages = read_chat(value, column)
    while drop_answer and messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    check_asks(messages, column)
    return messages


def _given(values: Mapping[str, Any], column: str) -> bool:
    return values.get(column) is not None


def _prompt_of(values: Mapping[str, Any]) -> Any:
    """What an answer answers: `prompt`, else the question of a row of Alpaca's, or the conversation before."""
    if _given(values, "prompt"):
        return values["prompt"]
    if _given(values, "instruction"):
        return instructed(values)
    return values.get("conversations")


def instructed(values: Mapping[str, Any]) -> str:
    """What a row of Alpaca's asks: its instruction, and on a new line its input. Raises RowError for what is no text."""
    parts = {name: values.get(name) for name in ("instruction", "input")}
    for name, part in parts.items():
        if part is not None and not isinstance(part, str):
            raise RowError(f"{name} that is no text", f"{name} is a {type(part).__name__}, not text")
    return "\n".join(str(part) for part in parts.values() if part)


def _is_sharegpt(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping) and "from" in value[0]


def _has_words(message: Message) -> bool:
    return bool(message["content"].strip() or message.get("tool_calls"))


def _talk(messages: Any) -> list[tuple[str, str]]:
    """What is said, system messages aside."""
    return [(one["role"], one["content"].strip()) for one in messages if one["role"] != "system"]


def _behind(asked: Sequence[Message], whole: Sequence[Turn], column: str) -> list[Turn]:
    """A whole conversation, which begins with what was asked; only what follows that is learned."""
    system = [turn for turn in whole if turn[0]["role"] == "system"]
    size = len(_talk(asked))
    if _talk(message for message, _ in whole)[:size] != _talk(asked):
        raise RowError("an answer with other turns of the user", f"{column} has turns of the user that prompt has not")
    before = [] if system else [(message, False) for message in asked if message["role"] == "system"]
    return [*before, *((message, learned and at >= size + len(system)) for at, (message, learned) in enumerate(whole))]


def _answer(text: Any, column: str, *, stripped: bool = False) -> Turn:
    if not isinstance(text, str):
        raise RowError(f"{column} that is no text", f"{column} is a {type(text).__name__}, not text")
    check_text(text, column)
    if stripped and TRANSCRIPT.search(text):
        raise RowError("an answer with further turns", f"{column} goes on with turns of its own: {text[:80]!r}")
    return {"role": "assistant", "content": text.strip() if stripped else text}, bool(text.strip())


def _text(text: Any) -> Conversation:
    message, learned = _answer(text, "text")
    if not learned:
        raise NothingToLearn("an empty text")
    return Conversation((message,), (True,), bare=True)


def _alpaca(values: Mapping[str, Any]) -> list[Turn]:
    """`history`: earlier pairs of an instruction and its output, which are learned, too."""
    turns = list[Turn]()
    before = values.get("history") or []
    for pair in [*(before if isinstance(before, list | tuple) else [before]), (instructed(values), values["output"])]:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise RowError("history without pairs", f"history holds {str(pair)[:80]}; expected pairs of texts")
        check_text(pair[0], "instruction")
        turns += [({"role": "user", "content": pair[0]}, False), _answer(pair[1], "output")]
    return turns


def _margin(value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        margin = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        margin = math.nan
    if not math.isfinite(margin):
        raise RowError("margin that is no number", f"margin is {value!r}, not a number")
    return margin
