"""Task rows as token ids: the chat template once, straight to ids, and what the template itself does to prompts.

The ids are exactly what the template says. The tokenizer adds nothing to them. Left out: lengths (`tasks.prompt`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from partita.tasks.dataset import TaskRow
from partita.tasks.messages import Message
from partita.tasks.settings import DatasetConfig
from partita.tasks.templated import layout_of

_BATCH = 256  # rows given to the tokenizer at once
_PROBE = "Yes7"  # words that no template has
BETWEEN = "\n\n"  # messages of a conversation, where there is no chat template


class PromptError(ValueError):
    """A row cannot become a prompt; the message names the row, the lengths or the model."""


@dataclass(frozen=True)
class Rendering:
    """How rows are shown to one model; made by `rendering_of`.

    bare: no template, the texts themselves. template: None for the tokenizer's own. options: further values for it.
    prefill: the assistant's first words.
    """

    tokenizer: PreTrainedTokenizerBase
    bare: bool = False
    template: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prefill: str = ""

    def ids(self, rows: Sequence[TaskRow]) -> list[list[int]]:
        """The ids of each row. Raises PromptError naming the row: the template refuses it, it starts with two BOS, it has no
        token at all, or it brings a template along that cannot be taken apart.
        """
        if self.bare:
            found = [bare_ids(row, self.tokenizer, self.prefill) for row in rows]
        else:
            parts = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
            found = [ids for part in parts for ids in self._batch(part)]
        bos = self.tokenizer.bos_token_id
        for row, ids in zip(rows, found, strict=True):
            if not ids:
                raise PromptError(f"row {row.uid} has no token at all")
            if bos is not None and ids[:2] == [bos, bos]:
                raise PromptError(
                    f"row {row.uid} starts with two {self.tokenizer.bos_token!r}: the text or the template has one already; "
                    "take it out there"
                )
        return found

    def findings(self, rows: Sequence[TaskRow], texts: Sequence[str]) -> tuple[str, ...]:
        """What a person should know of the template and of what it did to these rows, whose rendered texts are given."""
        lines = list[str]()
        if templated := [row for row in rows if row.templated and not self.bare]:
            own = sum(self._is_own(row) for row in templated)
            lines += [f"{own} prompts are in this model's chat template already: used as they are"] if own else []
            apart = len(templated) - own
            lines += [f"{apart} prompts are in another chat template: shown in this model's, once"] if apart else []
        if self.bare:
            return tuple(lines)
        opening = self.opening
        if "<think>" in opening.rpartition("</think>")[2]:
            lines.append("the chat template opens <think> itself: responses begin inside it")
        elif "</think>" in opening:
            lines.append("the chat template closes <think> itself: responses begin after it")
        if stripped := sum(_is_stripped(row, text) for row, text in zip(rows, texts, strict=True)):
            lines.append(f"the chat template leaves the thinking of earlier answers out of {stripped} prompts")
        if self._has_no_end():
            lines.append("the chat template puts no end after an answer: earlier turns run into later ones")
        own = "" if any(row.messages[0]["role"] == "system" for row in rows) else self._own_system()
        return (*lines, f"the chat template puts a system message of its own: {own[:80]!r}") if own else tuple(lines)

    @cached_property
    def opening(self) -> str:
        """What the template puts where the assistant is to speak; empty where it refuses a plain question."""
        return self._probed(("user", "?"), ask=True).removeprefix(self._probed(("user", "?")))

    def _has_no_end(self) -> bool:
        text = self._probed(("user", "?"), ("assistant", _PROBE))
        return _PROBE in text and not text.rpartition(_PROBE)[2].strip()

    def _own_system(self) -> str:
        """What the template says where no system message is given, empty for nothing."""
        before, found, after = self._probed(("system", _PROBE), ("user", "?")).partition(_PROBE)
        plain = self._probed(("user", "?"))
        if not found or not plain.startswith(before) or not plain.endswith(after):
            return ""
        return plain[len(before) : len(plain) - len(after)].strip()

    def _probed(self, *said: tuple[str, str], ask: bool = False) -> str:
        """A conversation in the template; empty where it refuses that one."""
        try:
            return self._text([{"role": role, "content": words} for role, words in said], ask=ask)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError):
            return ""

    def _batch(self, rows: Sequence[TaskRow]) -> list[list[int]]:
        try:
            return self._apply(rows)
        except PromptError:
            raise
        except (TemplateError, TypeError, ValueError) as error:
            if len(rows) == 1:
                raise PromptError(f"row {rows[0].uid}: the chat template refuses it: {error}") from error
            return [ids for row in rows for ids in self._batch([row])]

    def _apply(self, rows: Sequence[TaskRow]) -> list[list[int]]:
        if self.prefill or any(row.templated for row in rows):
            texts = [self._whole(row) for row in rows]
            return [list(ids) for ids in self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]]  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
        ids = self.tokenizer.apply_chat_template(
            [list(row.messages) for row in rows],
            chat_template=self.template,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=False,
            **self.options,
        )
        return [list(one) for one in ids]  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]

    def _text(self, messages: Sequence[Message], *, ask: bool = True) -> str:
        text = self.tokenizer.apply_chat_template(
            list(messages), chat_template=self.template, tokenize=False, add_generation_prompt=ask, **self.options
        )
        return str(text)

    def _whole(self, row: TaskRow) -> str:
        """A row's text up to where the response begins."""
        try:
            return self._brought(row) if row.templated else self._text(row.messages) + self.prefill
        except (TemplateError, TypeError) as error:
            raise PromptError(f"row {row.uid}: the chat template refuses it: {error}") from error

    def _brought(self, row: TaskRow) -> str:
        """The text of a row that brings a chat template along: its own where that is the model's, else shown anew."""
        text = str(row.messages[-1]["content"])
        layout = layout_of(text)
        assert layout is not None, "the reader marks only texts of a known layout"
        if self.prefill:
            raise PromptError(f"row {row.uid} begins the answer itself, in its own chat template; set prefill to null")
        way_out = "write it as messages, or set templated=ignore to take it for the user's words"
        if not layout.asks(text):
            raise PromptError(
                f"row {row.uid} is written in a chat template ({layout.user}) and does not end where the assistant is to speak "
                f"({layout.assistant}); {way_out}"
            )
        if self._is_own(row):
            bos = str(self.tokenizer.bos_token or "")
            leads = bos and self._text([{"role": "user", "content": "?"}]).startswith(bos) and not text.startswith(bos)
            return f"{bos}{text}" if leads else text
        taken = layout.take_apart(text)
        if taken is None:
            raise PromptError(
                f"row {row.uid} is written in another model's chat template ({layout.user}), with more than one turn of the "
                f"user; {way_out}"
            )
        shown = self._text(taken.messages)
        return shown if shown.rstrip().endswith(taken.begun.strip()) else shown + taken.begun

    def _is_own(self, row: TaskRow) -> bool:
        layout = layout_of(str(row.messages[-1]["content"]))
        template = self.tokenizer.get_chat_template() if self.template is None else self.template
        return layout is not None and layout.is_of(str(template))


def rendering_of(tokenizer: PreTrainedTokenizerBase, config: DatasetConfig) -> Rendering:
    """How a data section shows its rows. Raises PromptError when there is no chat template, or `prefill` opens a <think> that
    the template has opened.
    """
    bare = config.chat_template == "none"
    template = None if bare else template_of(tokenizer, config.chat_template)
    made = Rendering(tokenizer, bare, template, config.chat_template_kwargs, config.prefill or "")
    if not bare and "<think>" in made.prefill and "<think>" in made.opening.rpartition("</think>")[2]:
        raise PromptError(
            f"prefill={config.prefill!r} opens <think>, and the chat template has opened it already ({made.opening!r}); take "
            "it out of prefill"
        )
    return made


def template_of(tokenizer: PreTrainedTokenizerBase, wanted: str) -> str | None:
    """The template to use; None for the tokenizer's own."""
    if wanted != "auto":
        if not Path(wanted).is_file():
            raise PromptError(
                f"chat_template={wanted!r}: no such file; expected auto, none or the path of a Jinja file"
            )
        return Path(wanted).read_text(encoding="utf-8")
    if not tokenizer.chat_template:
        raise PromptError(
            f"the model {tokenizer.name_or_path!r} has no chat template; set chat_template to the path of a Jinja "
            "file, or to none to send the bare text of each prompt"
        )
    return None


def bare_ids(row: TaskRow, tokenizer: PreTrainedTokenizerBase, prefill: str = "") -> list[int]:
    """Ids of the bare text, with what the tokenizer itself puts around a text (a BOS for some models).

    Raises PromptError for a conversation, but for examples, which are texts with their answers behind them.
    """
    first = 1 if row.messages[0]["role"] == "system" else 0
    shots = row.messages[first : first + row.shots]
    rest = [*row.messages[:first], *row.messages[first + row.shots :]]
    roles = [message["role"] for message in rest]
    paired = [message["role"] for message in shots] == ["user", "assistant"] * (len(shots) // 2)
    if roles not in (["user"], ["system", "user"]) or not paired:
        raise PromptError(
            f"row {row.uid} is a conversation ({', '.join(message['role'] for message in row.messages)}); without a chat "
            "template a prompt is one text"
        )
    texts = [message["content"] for message in rest]
    answered = [_behind(asked["content"], said["content"]) for asked, said in zip(shots[::2], shots[1::2], strict=True)]
    text = BETWEEN.join([*texts[:-1], *answered, texts[-1]]) + prefill
    return list(tokenizer(text)["input_ids"])  # pyright: ignore[reportArgumentType]


def _behind(asked: str, said: str) -> str:
    return asked + said if asked[-1:].isspace() else f"{asked} {said}"


def _is_stripped(row: TaskRow, text: str) -> bool:
    """Whether the thinking of an earlier answer is missing in a rendered prompt."""
    answers = [str(one["content"]) for one in row.messages if one["role"] == "assistant"]
    thoughts = [one.partition("</think>")[0].removeprefix("<think>").strip() for one in answers if "</think>" in one]
    return any(thought not in text for thought in thoughts)
