"""From a raw row to what is asked and the gold answer: which columns, in which form, with what around the question.

Decided once for all rows of a source, so that two rows are never read in two ways. Left out: which rows there are
(`tasks.dataset`), and tokens (`tasks.prompt`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partita.tasks.cells import MISSING, cell, near_column, required
from partita.tasks.conversations import instructed, question_in
from partita.tasks.files import DataError, RawRow, place_of, read_path
from partita.tasks.gold import Format, gold_of
from partita.tasks.messages import Message
from partita.tasks.settings import BOXED_INSTRUCTION, SourceConfig
from partita.tasks.split import digest
from partita.tasks.templated import layout_of

PROMPTS = ("messages", "prompt", "question", "problem")
"""Columns that are the prompt, where one of them exists."""
OTHERS = ("conversations", "instruction", "chosen")
"""Those of other layouts, looked for where none of PROMPTS exists."""
ANSWERS = ("reward_model.ground_truth", "ground_truth", "solution")
"""Columns of the gold answer where there is no `answer`."""
_PLACES = re.compile(r"\{\{([A-Za-z_][\w.]*)\}\}|\{([A-Za-z_][\w.]*)\}")


@dataclass(frozen=True)
class Asked:
    """What a row asks. question: its digest, without what the config puts around it; shots: messages that are examples;
    templated: the user's words are written in a chat template.
    """

    messages: tuple[Message, ...]
    answer: str | None
    question: str
    shots: int = 0
    templated: bool = False


@dataclass(frozen=True)
class Reader:
    """How the rows of a source are read. prompt: a column, None where `template` makes the prompt. examples: messages
    that are shown before every question.
    """

    config: SourceConfig
    prompt: str | None
    answer: str | None
    form: Format
    examples: tuple[Message, ...] = ()

    @classmethod
    def of(cls, raw: Sequence[RawRow], config: SourceConfig) -> Reader:
        """Decide by the rows, none of them faulty. Raises DataError when a column does not exist, or none can be told."""
        columns = {column: None for row in raw for column in row.values}
        prompt = None if config.template is not None else config.columns.prompt or _prompt_column(list(columns))
        if prompt is not None:
            _check(prompt, "columns.prompt", columns, raw[0].where)
        answer = _answer_column(raw, columns, config)
        form = _form(raw, answer, config)
        bare = cls(config, prompt, answer, form)
        return replace(bare, examples=bare.shown(config.examples)) if config.examples else bare

    def read(self, values: Mapping[str, Any]) -> Asked:
        """Messages and gold answer of one row. Raises DataError with what is wrong, the row not named."""
        messages = self._question(values)
        question, answer = digest(messages), self._gold(values)
        if self._is_templated(messages):
            return Asked(messages, answer, question, templated=True)
        messages = self._told(messages)
        system = [one for one in messages[:1] if one["role"] == "system"]
        whole = (*system, *self.examples, *messages[len(system) :])
        return Asked(whole, answer, question, len(self.examples))

    def shown(self, examples: str | list[dict[str, Any]] | None) -> tuple[Message, ...]:
        """Rows as turns of a user and an assistant. Raises DataError naming the row."""
        raw = examples or ()
        rows = read_path(place_of(raw), "train") if isinstance(raw, str) else _inline(raw)
        turns = list[Message]()
        for row in rows:
            try:
                if row.fault:
                    raise DataError(row.fault)
                asked = self._told(self._question(row.values), system=False)
                if asked[0]["role"] == "system":
                    raise DataError("has a system message, which only the prompt itself may have")
                turns += (*asked, self._answered(row.values))
            except DataError as error:
                raise DataError(f"examples: {row.where}: {error}") from error
        return tuple(turns)

    def notes(self) -> list[str]:
        """What was decided, for the start of a run."""
        forms = {"gsm8k": " after the last ####", "boxed": " in the last \\boxed{}", "plain": ""}
        gold = "no gold answer" if self.answer is None else f"gold answers from {self.answer!r}{forms[self.form]}"
        lines = [f"prompts from {'template' if self.prompt is None else repr(self.prompt)}, {gold}"]
        lines += [f"after each prompt: {self.instruction}"] if self.instruction else []
        shown = sum(one["role"] == "assistant" for one in self.examples)
        return [*lines, f"{shown} examples before each prompt"] if shown else lines

    @property
    def instruction(self) -> str | None:
        """What is put after the user's words."""
        if self.config.instruction != "auto":
            return self.config.instruction
        return None if self.form == "plain" else BOXED_INSTRUCTION

    def _question(self, values: Mapping[str, Any]) -> tuple[Message, ...]:
        """What the row itself asks."""
        drop = self.config.last_answer == "drop"
        if self.prompt is None:
            return question_in(filled(self.config.template or "", values), "template", drop_answer=drop)
        value = required(values, self.prompt)
        if self.prompt == "instruction" and self.config.columns.prompt is None:
            value = instructed(values)
        return question_in(value, self.prompt, drop_answer=drop)

    def _is_templated(self, messages: tuple[Message, ...]) -> bool:
        """Whether the row brings a chat template along. Raises DataError for keys that would put something into it."""
        layout = layout_of(messages[0]["content"]) if len(messages) == 1 else None
        if layout is None or self.config.templated == "ignore":
            return False
        told = self.config.instruction if self.config.instruction != "auto" else None
        given = {"instruction": told, "system": self.config.system, "examples": self.config.examples}
        if named := [name for name, value in given.items() if value]:
            raise DataError(
                f"is written in a chat template ({layout.user}) with its own turns, into which {' and '.join(named)} cannot be "
                f"put; set {named[0]}=null, or templated=ignore to take it for the user's words"
            )
        return True

    def _told(self, messages: tuple[Message, ...], *, system: bool = True) -> tuple[Message, ...]:
        """With the instruction, and the system message in front."""
        if self.config.system is not None and system:
            if messages[0]["role"] == "system":
                raise DataError(
                    "has a system message of its own, and `system` is set; set it to null or take the row's out"
                )
            messages = ({"role": "system", "content": self.config.system}, *messages)
        return _instructed(messages, self.instruction) if self.instruction else messages

    def _gold(self, values: Mapping[str, Any]) -> str | None:
        return None if self.answer is None else gold_of(required(values, self.answer), self.answer, self.form)

    def _answered(self, values: Mapping[str, Any]) -> Message:
        """The assistant's words of an example."""
        column = "response" if "response" in values else self.answer
        said = MISSING if column is None else cell(values, column)
        if said is MISSING or said is None or not str(said).strip():
            raise DataError(f"no answer: an example has a column response{f', or {column}' if column else ''}")
        return {"role": "assistant", "content": str(said)}


def filled(template: str, values: Mapping[str, Any]) -> str:
    """The template with the values of columns at their places, lists and numbers as Python writes them.

    Raises DataError for a column that the row does not have, or that is null.
    """

    def put(found: re.Match[str]) -> str:
        if found[1]:
            return f"{{{found[1]}}}"
        value = required(values, found[2])
        if value is None:
            raise DataError(f"{found[2]!r} is null, and template needs it")
        return str(value)

    return _PLACES.sub(put, template)


def _inline(rows: Sequence[Mapping[str, Any]]) -> list[RawRow]:
    return [RawRow(f"row {number}", dict(row)) for number, row in enumerate(rows, 1)]


def _instructed(messages: tuple[Message, ...], instruction: str) -> tuple[Message, ...]:
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        raise DataError("has no user message that `instruction` could follow; set it to null")
    last = users[-1]
    told = {**messages[last], "content": f"{messages[last]['content']}\n{instruction}"}
    return (*messages[:last], told, *messages[last + 1 :])


def _check(column: str, where: str, columns: Mapping[str, Any], row: str) -> None:
    if column not in columns and column.split(".")[0] not in columns:
        raise DataError(
            f"{row}: no column {column!r}{near_column(column, columns)}; the columns are {', '.join(columns)}; set {where}"
        )


def _prompt_column(columns: Sequence[str]) -> str:
    for names in (PROMPTS, OTHERS):
        found = [name for name in names if name in columns]
        if len(found) == 1:
            return found[0]
        if found:
            raise DataError(f"columns {' and '.join(found)} could all be the prompt; set columns.prompt to one of them")
    near = next((match for name in PROMPTS if (match := near_column(name, columns))), "")
    raise DataError(
        f"no column called {', '.join((*PROMPTS, *OTHERS))}{near}; the columns are {', '.join(columns)}; "
        "set columns.prompt to the one with the prompt, or template"
    )


def _answer_column(raw: Sequence[RawRow], columns: Mapping[str, Any], config: SourceConfig) -> str | None:
    wanted, where = config.columns.answer, "columns.answer (null if no reward needs it)"
    if wanted == "auto":
        found = [name for name in ANSWERS if any(cell(row.values, name) is not MISSING for row in raw)]
        if "answer" not in columns and len(found) > 1:
            raise DataError(f"columns {' and '.join(found)} could all be the gold answer; set {where}")
        wanted = found[0] if found and "answer" not in columns else "answer"
    if wanted is not None:
        _check(wanted, where, columns, raw[0].where)
    return wanted


def _form(raw: Sequence[RawRow], answer: str | None, config: SourceConfig) -> Format:
    if config.answer_format != "auto" or answer is None:
        return "plain" if config.answer_format == "auto" else config.answer_format
    texts = [value for row in raw if isinstance(value := cell(row.values, answer), str)]
    if any("####" in text for text in texts):
        return "gsm8k"
    if any("\\boxed" in text for text in texts):
        return "boxed"
    if answer == "solution" and config.columns.answer == "auto":
        raise DataError(
            f"{raw[0].where}: 'solution' has neither #### nor \\boxed{{}}; set columns.answer to the column with the answer "
            "alone, or answer_format=plain to take a whole solution for it"
        )
    return "plain"
