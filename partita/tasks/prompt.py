"""Renders task rows to prompts: chat template once, straight to ids, which are then sampled from and trained on.

The ids are exactly what the template says. The tokenizer adds nothing to them, and their number is the length that
counts. Left out: cutting. A prompt that is too long is an error or is left out, never shortened.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from partita.records import Prompt
from partita.tasks.dataset import TaskRow
from partita.tasks.settings import DatasetConfig

_BATCH = 256  # rows given to the tokenizer at once
BETWEEN = "\n\n"  # messages of a conversation, where there is no chat template
# what chat_template=none does, as a template: bare texts, and after each answer the end
BARE = (
    "{% for message in messages %}"
    "{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}"
    "{% elif not loop.last and messages[loop.index]['role'] != 'assistant' %}{{ '\\n\\n' }}{% endif %}"
    "{% endfor %}"
)


class PromptError(ValueError):
    """A row cannot become a prompt; the message names the row, the lengths or the model."""


@dataclass(frozen=True)
class Prompts:
    """All prompts that can be used, and lines to show at the start: how long they are, how many were left out."""

    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...]


def render_prompts(
    rows: Sequence[TaskRow],
    tokenizer: PreTrainedTokenizerBase,
    config: DatasetConfig,
    *,
    context: int,
    reserve: int = 1,
    section: str = "train_dataset",
) -> Prompts:
    """Turn rows into prompts of at most `max_length` tokens that leave `reserve` tokens of the context for a response.

    Raises PromptError when the model has no chat template, a template refuses a row, a prompt starts with two BOS or
    has no token at all, and for prompts that are too long: each of them with too_long=error, all of them with
    too_long=drop.
    """
    room = context - reserve
    limit = room if config.max_length is None else min(room, config.max_length)
    why = f"max_length={config.max_length}, context {context} with {reserve} reserved for the response"
    try:
        ids_of_rows = _render(rows, tokenizer, config)
    except PromptError as error:
        raise PromptError(f"{section}: {error}") from error.__cause__
    prompts: list[Prompt] = []
    too_long: list[tuple[int, str]] = []
    for row, ids in zip(rows, ids_of_rows, strict=True):
        if len(ids) > limit:
            too_long.append((len(ids), row.uid))
            continue
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        prompts.append(Prompt(row.uid, tuple(ids), str(text), row.row, row.messages, row.answer))
    if too_long and (config.too_long == "error" or not prompts):
        length, uid = too_long[0]
        cure = (
            "lower gconfig.max_new_tokens" if length < context else "the prompt alone fills the context of this model"
        )
        cure = "raise max_length" if limit == config.max_length else cure
        raise PromptError(
            f"{section}: {len(too_long)} of {len(rows)} prompts are too long; row {uid} has {length} tokens, "
            f"at most {max(limit, 0)} are allowed ({why}); {cure}" + (", or set too_long=drop" if prompts else "")
        )
    return Prompts(tuple(prompts), _notes(prompts, too_long, limit, why))


def _notes(prompts: Sequence[Prompt], too_long: Sequence[tuple[int, str]], limit: int, why: str) -> tuple[str, ...]:
    lengths = [len(prompt.ids) for prompt in prompts]
    lines = [f"prompts: {len(lengths)}, {sum(lengths) / len(lengths):.0f} tokens on average, {max(lengths)} at most"]
    if too_long:
        total = len(lengths) + len(too_long)
        longest = max(too_long)[0]
        lines.append(
            f"{len(too_long)} of {total} prompts left out: over {limit} tokens ({why}); the longest has {longest}"
        )
    return tuple(lines)


def _render(rows: Sequence[TaskRow], tokenizer: PreTrainedTokenizerBase, config: DatasetConfig) -> list[list[int]]:
    if config.chat_template == "none":
        rendered = [bare_ids(row, tokenizer) for row in rows]
    else:
        template = template_of(tokenizer, config.chat_template)
        parts = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
        rendered = [ids for part in parts for ids in _templated_ids(part, tokenizer, template, config)]
    bos = tokenizer.bos_token_id
    for row, ids in zip(rows, rendered, strict=True):
        if not ids:
            raise PromptError(f"row {row.uid} has no token at all")
        if bos is not None and ids[:2] == [bos, bos]:
            raise PromptError(
                f"row {row.uid} starts with two {tokenizer.bos_token!r}: the text or the template has one already; "
                "take it out there"
            )
    return rendered


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


def carrying(
    tokenizer: PreTrainedTokenizerBase, chat_template: str, chat_template_kwargs: Mapping[str, Any]
) -> PreTrainedTokenizerBase:
    """A copy to save beside a trained model: its own template shows conversations as training did, so that whoever loads the
    folder asks the model what it has learned to answer. Further values are the template's defaults, which others still win over.
    """
    made = copy.deepcopy(tokenizer)
    if chat_template == "none":
        made.chat_template = _leading(tokenizer) + BARE
    elif (template := template_of(tokenizer, chat_template)) is not None:
        made.chat_template = template
    if chat_template_kwargs and isinstance(made.chat_template, str):
        values = (
            f"{{% set {k} = {k} if {k} is defined else {_literal(v)} %}}" for k, v in chat_template_kwargs.items()
        )
        made.chat_template = "".join(values) + made.chat_template
    return made


def _leading(tokenizer: PreTrainedTokenizerBase) -> str:
    """What the tokenizer itself puts before a text, as text."""
    ids, alone = (list(tokenizer("a", add_special_tokens=special)["input_ids"]) for special in (True, False))  # pyright: ignore[reportArgumentType]
    before = ids[: len(ids) - len(alone)] if ids[len(ids) - len(alone) :] == alone else []
    return "".join(str(token) for token in tokenizer.convert_ids_to_tokens(before))


def _literal(value: object) -> str:
    """A value of a config in Jinja's words."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(name)}: {_literal(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _templated_ids(
    rows: Sequence[TaskRow], tokenizer: PreTrainedTokenizerBase, template: str | None, config: DatasetConfig
) -> list[list[int]]:
    def apply(some: Sequence[TaskRow]) -> list[list[int]]:
        ids = tokenizer.apply_chat_template(
            [list(row.messages) for row in some],
            chat_template=template,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=False,
            **config.chat_template_kwargs,
        )
        return [list(one) for one in ids]  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]

    try:
        return apply(rows)
    except (TemplateError, TypeError, ValueError) as error:
        if len(rows) == 1:
            raise PromptError(f"row {rows[0].uid}: the chat template refuses it: {error}") from error
        return [ids for row in rows for ids in _templated_ids([row], tokenizer, template, config)]


def bare_ids(row: TaskRow, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the bare text, with what the tokenizer itself puts around a text (a BOS for some models)."""
    roles = [message["role"] for message in row.messages]
    if roles not in (["user"], ["system", "user"]):
        raise PromptError(
            f"row {row.uid} is a conversation ({', '.join(roles)}); without a chat template a prompt is one text"
        )
    text = BETWEEN.join(message["content"] for message in row.messages)
    return list(tokenizer(text)["input_ids"])  # pyright: ignore[reportArgumentType]
