"""The answer in a response, in one spelling, so that responses can vote: what maj@k counts.

Which of two wrong answers are the same is decided here, by numbers and spelling; which answers are right the reward says.
Left out: judging. A right response votes for the right answer, however it is written.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partita.records import Prompt
from partita.tasks.functions import LoadError, load_object
from partita.tasks.graders.choice import boxed_choice, named_choice
from partita.tasks.graders.dapo import answer_line
from partita.tasks.graders.final import after_thinking, final_text, with_opened_thought
from partita.tasks.graders.math import final_answer
from partita.tasks.graders.number import last_number, read_number, tidy
from partita.tasks.graders.sources import grader_of

AnswerOf = Callable[[Prompt, str], str | None]
"""The answer of a response to a prompt, spelt in one way; None where there is none."""

_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_LETTER = re.compile(r"\(?([A-Z])\)?[.:]?")
_ASKED = ("response", "answer", "row", "prompt")


def _as_judged(answer_of: AnswerOf) -> AnswerOf:
    """The same for a response as graders get it: with a thought that the prompt opened."""

    @functools.wraps(answer_of)
    def found(prompt: Prompt, response: str) -> str | None:
        return answer_of(prompt, with_opened_thought(prompt.text, response))

    return found


@_as_judged
def math_answer(prompt: Prompt, response: str) -> str | None:
    """What `math_correct` judges: the last box, what follows ####, a choice, or the last number."""
    found = final_answer(response, prompt.answer or "")
    return None if found is None else spelt(found)


def number_answer(prompt: Prompt, response: str) -> str | None:
    """What `last_number_correct` judges: the last number in the response."""
    found = last_number(response)
    return None if found is None else _number(str(found.value), found.percent)


@_as_judged
def line_answer(prompt: Prompt, response: str) -> str | None:
    """What `dapo_answer` judges: what follows the last `Answer:`, or without one the last box."""
    found = answer_line(response, boxed=True)
    return None if found is None else spelt(found) or None


@_as_judged
def choice_answer(prompt: Prompt, response: str) -> str | None:
    """The letter that `multiple_choice` judges."""
    text = final_text(response)
    held = boxed_choice(text)
    return named_choice(text) if held is None else held[0]


@_as_judged
def text_answer(prompt: Prompt, response: str) -> str | None:
    """What `exact_match` judges: the last box, else the last <answer>...</answer>, else all of the response."""
    return spelt(final_text(response)) or None


@_as_judged
def tagged_answer(prompt: Prompt, response: str) -> str | None:
    """What stands in the last <answer>...</answer>; without one there is no answer."""
    found = _TAGS.findall(after_thinking(response) or "")
    return (spelt(found[-1]) or None) if found else None


def source_answer(prompt: Prompt, response: str) -> str | None:
    """What the grader that `by_data_source` chooses judges. Raises UnknownSourceError."""
    how = OF_REWARDS.get(grader_of(str(prompt.row.get("data_source"))))
    return None if how is None else ANSWERS[how](prompt, response)


ANSWERS: dict[str, AnswerOf] = {
    "math": math_answer,
    "number": number_answer,
    "line": line_answer,
    "choice": choice_answer,
    "text": text_answer,
    "tags": tagged_answer,
    "source": source_answer,
}
OF_REWARDS = {
    "math_correct": "math",
    "last_number_correct": "number",
    "dapo_answer": "line",
    "multiple_choice": "choice",
    "exact_match": "text",
    "fuzzy_match": "text",
    "reasoning_gym_score": "text",
    "by_data_source": "source",
    "think_answer_format": "tags",
}
"""Which answers go with which reward function; the first that a run has decides."""


def spelt(answer: str) -> str:
    """One spelling of answers that are plainly the same: 1,080 and 1080.0; (C) and C; Paris. and paris; x + 1 and x+1."""
    number = read_number(answer)
    if number is not None:
        return _number(str(number.value), number.percent)
    text = tidy(answer)
    letter = _LETTER.fullmatch(text)
    return letter[1] if letter else "".join(text.casefold().split()).rstrip(".")


def _number(value: str, percent: bool) -> str:
    return f"{value}%" if percent else value


def answers_of_rewards(names: Sequence[str]) -> str | None:
    """Which entry of `ANSWERS` goes with these reward functions; None where none is known to."""
    return next((answers for reward, answers in OF_REWARDS.items() if reward in names), None)


def find_answers(name: str) -> AnswerOf:
    """An entry of `ANSWERS`, or a function `path/file.py:function` that asks for response, answer, row or prompt by name and
    returns text or None. Raises ValueError when there is no such function.
    """
    if name in ANSWERS:
        return ANSWERS[name]
    try:
        function = load_object(name)
        asked = list(inspect.signature(function).parameters)
    except (LoadError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}; choices: {', '.join(ANSWERS)}, path/file.py:function") from error
    if unknown := [one for one in asked if one not in _ASKED]:
        raise ValueError(f"{name}: it asks for {unknown[0]!r}; it can have {', '.join(_ASKED)}")

    def own(prompt: Prompt, response: str) -> str | None:
        values: Mapping[str, Any] = {
            "response": response,
            "answer": prompt.answer,
            "row": prompt.row,
            "prompt": prompt.text,
        }
        found = function(**{one: values[one] for one in asked})
        if found is not None and not isinstance(found, str):
            raise TypeError(f"answer_of={name} returned {type(found).__name__}; it must be text or None")
        return None if found is None else spelt(found) or None

    return own
