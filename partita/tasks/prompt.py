"""Task rows become prompts, whose ids are then sampled from and trained on, as far as their lengths allow.

The number of a prompt's ids is the length that counts. Left out: cutting. A prompt that is too long is an error or is left
out, never shortened; and ids (`tasks.rendering`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from partita.records import Prompt
from partita.tasks.dataset import TaskRow
from partita.tasks.rendering import PromptError, Rendering, rendering_of, template_of
from partita.tasks.settings import DatasetConfig

__all__ = ["PromptError", "Prompts", "Sieve", "carrying", "render_prompts"]

# what chat_template=none does, as a template: bare texts, and after each answer the end
BARE = (
    "{% for message in messages %}"
    "{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}"
    "{% elif not loop.last and messages[loop.index]['role'] != 'assistant' %}{{ '\\n\\n' }}{% endif %}"
    "{% endfor %}"
)


@dataclass(frozen=True)
class Prompts:
    """All prompts that can be used, and lines to show at the start: how long they are, how many were left out."""

    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...]


@dataclass
class Sieve:
    """Renders rows, and keeps the prompts whose lengths a section allows. limit: most tokens of a prompt, and why.

    kept: how many. long, short: number of tokens and uid of those that are not.
    """

    rendering: Rendering
    config: DatasetConfig
    context: int
    reserve: int
    kept: int = 0
    tokens: int = 0
    most: int = 0
    long: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    short: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @property
    def limit(self) -> int:
        """Most tokens of a prompt."""
        room = self.context - self.reserve
        return room if self.config.max_length is None else min(room, self.config.max_length)

    @property
    def why(self) -> str:
        """What sets the limit."""
        return (
            f"max_length={self.config.max_length}, context {self.context} with {self.reserve} reserved for the response"
        )

    def prompts(self, rows: Sequence[TaskRow]) -> list[Prompt]:
        """The prompts of these rows that can be used. Raises PromptError, see `render_prompts`."""
        found = list[Prompt]()
        least, decode = self.config.min_length or 0, self.rendering.tokenizer.decode
        for row, ids in zip(rows, self.rendering.ids(rows), strict=True):
            if len(ids) > self.limit:
                self.long.append((len(ids), row.uid))
            elif len(ids) < least:
                self.short.append((len(ids), row.uid))
            else:
                text = decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
                found.append(Prompt(row.uid, tuple(ids), str(text), row.row, row.messages, row.answer))
        self.kept += len(found)
        self.tokens += sum(len(prompt.ids) for prompt in found)
        self.most = max([self.most, *(len(prompt.ids) for prompt in found)])
        return found

    def check(self) -> None:
        """Raises PromptError for prompts that are too long where that is an error, and where none is left."""
        total = self.kept + len(self.long) + len(self.short)
        if self.long and (self.config.too_long == "error" or not self.kept):
            length, uid = self.long[0]
            cure = (
                "lower gconfig.max_new_tokens"
                if length < self.context
                else "the prompt alone fills the context of this model"
            )
            cure = "raise max_length" if self.limit == self.config.max_length else cure
            raise PromptError(
                f"{len(self.long)} of {total} prompts are too long; row {uid} has {length} tokens, at most "
                f"{max(self.limit, 0)} are allowed ({self.why}); {cure}"
                + (", or set too_long=skip" if self.kept else "")
            )
        if not self.kept:
            longest = max(self.short)[0] if self.short else 0
            raise PromptError(f"no prompt has min_length={self.config.min_length} tokens; the longest has {longest}")

    def notes(self) -> tuple[str, ...]:
        """How long the prompts are, and how many were left out for their length."""
        lines = [f"prompts: {self.kept}, {self.tokens / self.kept:.0f} tokens on average, {self.most} at most"]
        total = self.kept + len(self.long) + len(self.short)
        if self.long:
            why = f"over {self.limit} tokens ({self.why}); the longest has {max(self.long)[0]}"
            lines.append(f"{len(self.long)} of {total} prompts left out: {why}")
        if self.short:
            lines.append(f"{len(self.short)} of {total} prompts left out: under {self.config.min_length} tokens")
        return tuple(lines)


def render_prompts(
    rows: Sequence[TaskRow],
    tokenizer: PreTrainedTokenizerBase,
    config: DatasetConfig,
    *,
    context: int,
    reserve: int = 1,
    section: str = "train_dataset",
) -> Prompts:
    """Turn rows into prompts of `min_length` to `max_length` tokens that leave `reserve` tokens of the context for a response.

    Raises PromptError when the model has no chat template, a template refuses a row, a prompt starts with two BOS or
    has no token at all, and for prompts that are too long: each of them with too_long=error, all of them with
    too_long=skip.
    """
    try:
        rendering = rendering_of(tokenizer, config)
        sieve = Sieve(rendering, config, context, reserve)
        prompts = sieve.prompts(rows)
        sieve.check()
    except PromptError as error:
        raise PromptError(f"{section}: {error}") from error.__cause__
    kept = {prompt.uid: prompt.text for prompt in prompts}
    shown = [row for row in rows if row.uid in kept]
    return Prompts(tuple(prompts), (*sieve.notes(), *rendering.findings(shown, [kept[row.uid] for row in shown])))


def carrying(
    tokenizer: PreTrainedTokenizerBase,
    chat_template: str,
    chat_template_kwargs: Mapping[str, object],
    prefill: str | None = None,
) -> PreTrainedTokenizerBase:
    """A copy to save beside a trained model: its own template shows conversations as training did, so that whoever loads the
    folder asks the model what it has learned to answer. Further values are the template's defaults, which others still win over;
    the prefill stands where the assistant is to speak.
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
    if prefill and isinstance(made.chat_template, str):
        made.chat_template += f"{{% if add_generation_prompt %}}{{{{ {_literal(prefill)} }}}}{{% endif %}}"
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
