"""Conversations as token rows: what the policy would have seen, and the answers that are learned, each with its end.

An answer follows the very ids that the policy is asked with in sampling (`tasks.rendering`): the template's text up to its
generation prompt, tokenised as one. Its own ids are the rest of the conversation's; where the tokenizer would merge over
the border between them, the answer is tokenised by itself. An answer whose context does not go on from the row before it
(a template that strips earlier thinking, for one) gets a row of its own. Nothing is padded: where pad and end are the
same id, ends are still learned.

Left out: layouts of rows (`tasks.conversations`), and cutting: a row has the length it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from partita.records import Row
from partita.tasks.conversations import Conversation, NothingToLearn
from partita.tasks.dataset import TaskRow
from partita.tasks.messages import Message
from partita.tasks.rendering import BETWEEN, PromptError, bare_ids, template_of

NEVER = -1  # version of a token that no policy sampled


@dataclass(frozen=True)
class Turns:
    """Renders conversations for one model; made by `turns_of`.

    bare: no template, one text after another. template: None for the tokenizer's own. stop_ids: every id that ends an
    answer; end_id is put where a template puts none. options: further values for the template.
    """

    tokenizer: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...]
    end_id: int
    bare: bool = False
    template: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def rows(self, conversation: Conversation) -> tuple[Row, ...]:
        """Token rows, mostly one, in which every learned answer is trained once, with the id that ends it; what follows
        the last of them is left out.

        Raises PromptError where the template refuses the conversation or does not show an answer after its generation
        prompt, and for an end within an answer.
        """
        if conversation.bare:
            return (self._text(conversation.messages[-1]["content"]),)
        rows = list[tuple[list[int], list[bool]]]()
        for context, answer in self._pieces(conversation):
            if not rows or context[: len(rows[-1][0])] != rows[-1][0]:
                rows.append(([], []))
            ids, trained = rows[-1]
            between = context[len(ids) :]
            ids += [*between, *answer]
            trained += [*[False] * len(between), *[True] * len(answer)]
        return tuple(self._row(*row) for row in rows)

    def scored(self, conversation: Conversation) -> Row:
        """The conversation up to its last answer as one row, for a model that scores it: read at the last token, which
        is the answer's end.

        Raises NothingToLearn where it does not end with an answer, PromptError as `rows` does.
        """
        (row,) = self.rows(conversation.last_only())
        return row

    def _pieces(self, conversation: Conversation) -> list[tuple[list[int], list[int]]]:
        """For each learned answer the ids of its context and its own."""
        answers = [at for at, learned in enumerate(conversation.learned) if learned]
        if self.bare:
            return [self._bare_piece(conversation.messages[: at + 1]) for at in answers]
        pieces, text, ids = list[tuple[list[int], list[int]]](), "", list[int]()
        for at in answers:
            before = self._render(conversation.messages[:at], ask=True)
            # White space that a template puts behind an answer is not the policy's to write.
            after = self._render(conversation.messages[: at + 1], ask=False).rstrip()
            if not after.startswith(before):
                raise PromptError(
                    f"the chat template does not show message {at + 1} after its generation prompt "
                    f"{before[-40:]!r}; set chat_template to one that does"
                )
            context = self._further(text, ids, before)
            text, ids = after, self._further(before, context, after)
            own = ids[len(context) :] if ids[: len(context)] == context else self._ids(after[len(before) :])
            pieces.append((context, self._ended(own)))
        return pieces

    def _further(self, known: str, ids: list[int], text: str) -> list[int]:
        """The ids of a text. Where it begins with a known one, only what follows the last special token of that is
        tokenised anew: nothing merges over a special token.
        """
        last = next((at for at in reversed(range(len(ids))) if ids[at] in self._special), None)
        if last is not None and text.startswith(known):
            start = known.rfind(self._special[ids[last]])
            tail = self._ids(text[start:]) if start >= 0 else []
            if tail[:1] == ids[last : last + 1]:
                return [*ids[:last], *tail]
        return self._ids(text)

    @cached_property
    def _special(self) -> dict[int, str]:
        return {at: token.content for at, token in self.tokenizer.added_tokens_decoder.items() if token.special}

    def _bare_piece(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        context = bare_ids(TaskRow("of data", tuple(messages[:-1]), None, {}), self.tokenizer)
        asked, answer = BETWEEN.join(message["content"] for message in messages[:-1]), messages[-1]["content"]
        alone, whole = self._ids(asked), self._ids(asked + answer)
        return context, self._ended(whole[len(alone) :] if whole[: len(alone)] == alone else self._ids(answer))

    def _text(self, text: str) -> Row:
        """A text, with what the tokenizer itself puts before one, and the end; nothing predicts its first token."""
        ids = list(self.tokenizer(text, verbose=False)["input_ids"])  # pyright: ignore[reportArgumentType]
        ids += [] if ids[-1:] and ids[-1] in self.stop_ids else [self.end_id]
        if len(ids) == 1:
            raise NothingToLearn("a text that is its end and nothing else")
        return self._row(ids, [False, *[True] * (len(ids) - 1)])

    def _render(self, messages: Sequence[Message], *, ask: bool) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), chat_template=self.template, tokenize=False, add_generation_prompt=ask, **self.options
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise PromptError(f"the chat template refuses it: {error}") from error
        return str(text)

    def _ids(self, text: str) -> list[int]:
        try:
            ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        except TypeError as error:  # half a character in a field that only the template reads
            raise PromptError(f"the tokenizer refuses its text: {error}") from error
        return list(ids)  # pyright: ignore[reportArgumentType]

    def _ended(self, ids: list[int]) -> list[int]:
        """The answer up to and with its first end."""
        at = next((at for at, one in enumerate(ids) if one in self.stop_ids), None)
        if not ids or at == 0:
            raise PromptError("the chat template shows nothing of an answer; tool calls need one that knows them")
        if at is None:
            return [*ids, self.end_id]
        rest = [one for one in ids[at + 1 :] if one not in self.stop_ids]
        if str(self.tokenizer.decode(rest)).strip():
            token = self.tokenizer.convert_ids_to_tokens(ids[at])
            raise PromptError(f"an answer goes on after {token!r}, which ends an answer: take it out of the text")
        return ids[: at + 1]

    def _row(self, ids: list[int], trained: list[bool]) -> Row:
        bos = self.tokenizer.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:
            raise PromptError(
                f"it starts with two {self.tokenizer.bos_token!r}: the text or the template has one already"
            )
        return Row(ids, trained, [0.0] * len(ids), [NEVER] * len(ids))


def turns_of(
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: Sequence[int],
    chat_template: str = "auto",
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Turns:
    """How conversations are rendered for a model, by the keys that prompts have, too.

    Raises PromptError when there is no chat template, or no id that ends an answer.
    """
    own = tokenizer.eos_token_id
    ends = [*([own] if isinstance(own, int) else []), *stop_ids]
    if not ends:
        raise PromptError(
            f"neither the model nor the tokenizer {tokenizer.name_or_path!r} has an end-of-sequence id: nothing could be "
            "taught to end"
        )
    bare = chat_template == "none"
    template = None if bare else template_of(tokenizer, chat_template)
    return Turns(tokenizer, tuple(sorted(set(ends))), int(ends[0]), bare, template, dict(chat_template_kwargs or {}))
