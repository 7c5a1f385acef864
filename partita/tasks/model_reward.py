"""A reward model as a reward: prompt and response become the conversation that the model was trained to judge.

The text is rendered by the reward model's own chat template and tokenizer. Where these would give exactly the ids that the
policy was asked with, and know all of its tokens, the ids that were sampled are judged: text that is tokenised again may
become other tokens. A response that was cut off then has no end, and is judged so.

What is asked in one call runs together, and nothing else does: rows that run together change each other's scores by
rounding, and what happens to wait at one moment depends on the time that others took. A run that is killed and resumed must
get the same scores to the last bit, so whoever asks decides what belongs together.

Left out: the model itself (`models.scoring`), which this floor does not know.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from partita.ops.threads import release_threads
from partita.records import Prompt
from partita.tasks.functions import error_text
from partita.tasks.pool import Outcome
from partita.tasks.rendering import BETWEEN
from partita.tasks.reward import MODEL, Answer


class RowScorer(Protocol):
    """What scores rows of token ids."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The reward model's own, with its chat template, if it has one."""
        ...

    @property
    def context(self) -> int:
        """Most tokens of a row."""
        ...

    def scores(self, rows: Sequence[Sequence[int]], alike: Sequence[int]) -> list[float]:
        """One score for each row; rows of one number in `alike` begin alike."""
        ...


class ModelReward:
    """Owns the thread in which a reward model runs: the event loop and the engine go on meanwhile."""

    def __init__(self, scorer: RowScorer, policy: PreTrainedTokenizerBase) -> None:
        self._scorer, self._tokenizer = scorer, scorer.tokenizer
        known = self._tokenizer.get_vocab()
        self._same_ids = all(known.get(token) == i for token, i in policy.get_vocab().items())
        self._closing = self._find_closing() if self._tokenizer.chat_template else None
        self._thread = ThreadPoolExecutor(1, MODEL)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to tell the user, by line."""
        return (
            ()
            if self._tokenizer.chat_template
            else (
                "the reward model has no chat template: it reads the messages and the response with empty lines between",
            )
        )

    async def ask(self, answers: Sequence[Answer]) -> list[Outcome]:
        """See `tasks.reward.Judge`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._judge, answers)

    def close(self) -> None:
        """End the thread; what waits for it is not judged."""
        self._thread.shutdown(cancel_futures=True)

    def row(self, answer: Answer) -> list[int]:
        """The ids that are judged. Raises TemplateError, TypeError or ValueError where the chat template refuses the messages."""
        prompt = answer.prompt
        if self._same_ids and self._asked(prompt) == list(prompt.ids):
            return [*prompt.ids, *answer.ids, *self._after(answer.ids)]
        if prompt.messages and self._tokenizer.chat_template:
            return self._render([*prompt.messages, {"role": "assistant", "content": answer.text}], ask=False)
        between = BETWEEN if prompt.messages else ""
        return self._ids(_plain(prompt) + between + answer.text)

    def _judge(self, answers: Sequence[Answer]) -> list[Outcome]:
        read = dict(enumerate(map(self._read, answers)))
        rows = {i: row for i, row in read.items() if isinstance(row, list)}
        prompts = dict[tuple[int, ...], int]()
        alike = [prompts.setdefault(answers[i].prompt.ids, i) for i in rows]
        try:
            found = map(_outcome, self._scorer.scores(list(rows.values()), alike))
        except Exception as error:  # whatever the model's code raises is these samples' error, kept with its traceback
            found = [Outcome(None, error=error_text(error))] * len(rows)
        release_threads()
        outcomes = dict(zip(rows, found, strict=True))
        return [row if isinstance(row, Outcome) else outcomes[i] for i, row in read.items()]

    def _read(self, answer: Answer) -> list[int] | Outcome:
        """The ids to judge, or why there are none."""
        try:
            row = self.row(answer)
        except (TemplateError, TypeError, ValueError) as error:
            return Outcome(None, error=f"its chat template refuses the conversation: {error}")
        if not 0 < len(row) <= self._scorer.context:
            return Outcome(
                None, error=f"{len(row)} tokens of prompt and response; it reads 1 to {self._scorer.context}"
            )
        return row

    def _asked(self, prompt: Prompt) -> list[int]:
        """The prompt's ids as this model would have been asked."""
        if prompt.messages and self._tokenizer.chat_template:
            return self._render(prompt.messages, ask=True)
        return self._ids(_plain(prompt))

    def _render(self, messages: Sequence[Mapping[str, Any]], *, ask: bool) -> list[int]:
        rendered: Any = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=True, add_generation_prompt=ask, return_dict=False
        )
        return list(rendered)

    def _ids(self, text: str, *, alone: bool = True) -> list[int]:
        """alone: with what the tokenizer itself puts around a text."""
        return list(self._tokenizer(text, add_special_tokens=alone)["input_ids"])  # pyright: ignore[reportArgumentType]

    def _after(self, ids: Sequence[int]) -> list[int]:
        """What the template puts after the token that ended this answer: a line break, in some families."""
        return list(self._closing[1]) if self._closing and ids and ids[-1] == self._closing[0] else []

    def _find_closing(self) -> tuple[int, list[int]] | None:
        """The token that ends an answer, and what the template puts after it."""
        said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            text = str(self._tokenizer.apply_chat_template(said, tokenize=False))
        except (TemplateError, TypeError, ValueError):  # templates that want a system message, or tools
            return None
        trimmed = text.rstrip()
        ends = [i for i, token in self._tokenizer.added_tokens_decoder.items() if trimmed.endswith(token.content)]
        return (ends[0], self._ids(text[len(trimmed) :], alone=False)) if ends else None


def _outcome(score: float) -> Outcome:
    return Outcome(score) if math.isfinite(score) else Outcome(None, error=f"the score is {score}, not a finite number")


def _plain(prompt: Prompt) -> str:
    return BETWEEN.join(str(message["content"]) for message in prompt.messages) if prompt.messages else prompt.text
