"""A conversation that goes on: how it opens as token ids, and the ids between what was sampled and the next turn.

What a policy wrote is never encoded again. What follows it is the template's own difference: the text that it puts behind an
answer when more messages follow, tokenised alone. So nothing of earlier turns changes any more, also where the template would
leave their thinking out of a conversation that is rendered anew.

Left out: who says what (`rollout.dialogue`), and rows of a data set (`tasks.rendering`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from partita.tasks.dataset import TaskRow
from partita.tasks.messages import Message
from partita.tasks.rendering import BETWEEN, PromptError, Rendering, rendering_of
from partita.tasks.settings import DatasetConfig

_ANSWER = "Yes7"  # an answer in words that no template has
_ASKED: tuple[Message, ...] = ({"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER})
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Chat:
    """Conversations with one model; made by `chat_of`. rendering: how its prompts are shown, None where there is no tokenizer.

    stop_ids: every id that ends an answer.
    """

    rendering: Rendering | None
    stop_ids: tuple[int, ...] = ()

    def opening(self, messages: Messages) -> list[int]:
        """The ids of a conversation up to where the assistant speaks, its prefilled words included: those of a prompt with these
        messages. Raises PromptError where the template refuses them.
        """
        row = TaskRow("of a workflow", tuple(dict(message) for message in messages), None, {})
        return self._shown.ids([row])[0]

    def reply(self, said: Sequence[int], messages: Messages) -> list[int]:
        """The ids that follow an answer whose sampled ids are `said`: the end of its turn where it lacks one, what the template
        puts behind that, the messages (of the user or of tools), and where the assistant speaks again.

        Of `said` only the last id matters. An answer that ended with any of `stop_ids` is not ended twice. Raises PromptError
        where the template refuses the messages.
        """
        rendering = self._shown
        if rendering.bare:
            return self._bare_reply(said, messages)
        ids = self.encode(self._behind_answer(messages, ask=True) + rendering.prefill)
        if list(said[-1:]) == ids[:1]:  # also a template whose next turn begins with what ended this one
            return ids[1:]
        end = self._end
        ended = bool(said) and said[-1] in self.stop_ids and ids[: len(end)] == end
        return ids[len(end) :] if ended else ids

    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> Chat:
        """The same conversations with function schemas, for a template that shows them. Raises PromptError where there is none."""
        if self._shown.bare:
            raise PromptError(
                "chat_template=none shows no tools; take the model's own template, or put them in the prompt"
            )
        options = {**self._shown.options, "tools": [dict(schema) for schema in schemas]}
        return replace(self, rendering=replace(self._shown, options=options))

    def encode(self, text: str) -> list[int]:
        """The ids of a text alone; special tokens that are written out in it are those tokens."""
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return list(ids)  # pyright: ignore[reportArgumentType]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without special tokens, spaces as they were sampled."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @property
    def _shown(self) -> Rendering:
        if self.rendering is None:
            raise PromptError("a conversation needs the model's tokenizer, and this rollout was set up without one")
        return self.rendering

    @property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return self._shown.tokenizer

    def _behind_answer(self, messages: Messages, *, ask: bool) -> str:
        """What the template puts behind an answer when these messages follow."""
        rendering, conversation = self._shown, [*_ASKED, *(dict(message) for message in messages)]
        try:
            text = str(
                rendering.tokenizer.apply_chat_template(
                    conversation,
                    chat_template=rendering.template,
                    tokenize=False,
                    add_generation_prompt=ask,
                    **rendering.options,
                )
            )
        except (TemplateError, TypeError, ValueError) as error:
            told = ", ".join(str(message.get("role")) for message in messages)
            raise PromptError(f"the chat template refuses what follows an answer (roles: {told}): {error}") from error
        _, found, after = text.partition(_ANSWER)
        if not found:
            raise PromptError(
                "the chat template leaves earlier answers out of a conversation: it cannot go on over turns"
            )
        return after

    @cached_property
    def _end(self) -> list[int]:
        """The ids up to and with the special token that the template ends an answer with; none where it has none."""
        ids = self.encode(self._behind_answer((), ask=False))
        special = {*self.stop_ids, *self._tokenizer.all_special_ids}
        special |= {at for at, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        at = next((at for at, one in enumerate(ids) if one in special), None)
        return [] if at is None or self.decode(ids[:at]).strip() else ids[: at + 1]

    def _bare_reply(self, said: Sequence[int], messages: Messages) -> list[int]:
        """Without a template: the end-of-sequence token, or an empty line where the model has none, and the bare texts."""
        own = self._tokenizer.eos_token_id
        ended = bool(said) and said[-1] in self.stop_ids
        between = [] if ended else [own] if isinstance(own, int) else self.encode(BETWEEN)
        texts = BETWEEN.join(str(message["content"]) for message in messages)
        return [*between, *self.encode(texts + self._shown.prefill)]


NO_CHAT = Chat(None)
"""Of an engine without a tokenizer: a workflow of one turn needs none, every other is told so."""


def chat_of(tokenizer: PreTrainedTokenizerBase, section: DatasetConfig, stop_ids: Sequence[int]) -> Chat:
    """Conversations in the way that a data section shows its prompts. Raises PromptError as `rendering_of` does."""
    return Chat(rendering_of(tokenizer, section), tuple(stop_ids))
