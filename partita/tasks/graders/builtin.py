"""The reward functions that a config can name by a single word.

Left out: everything longer than a word; `reward.functions` also takes `package.module:function` and
`path/file.py:function`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from partita.tasks.graders.choice import check_choices, multiple_choice
from partita.tasks.graders.code import code_tests
from partita.tasks.graders.code_rows import read_tests
from partita.tasks.graders.dapo import dapo_answer
from partita.tasks.graders.gym import reasoning_gym_score
from partita.tasks.graders.math import math_correct, math_correct_async
from partita.tasks.graders.patterns import json_schema, regex_format
from partita.tasks.graders.sources import by_data_source, grader_of
from partita.tasks.graders.text import exact_match, fuzzy_match, last_number_correct, length_target, think_answer_format
from partita.tasks.graders.workers import in_thread

Graded = float | Mapping[str, float | str]
Check = Callable[[Mapping[str, Any], str | None, Mapping[str, Any]], object]


@dataclass(frozen=True)
class Builtin:
    """A reward function of ours and why the training process may run it itself, without a worker.

    `on_loop` None: the function only looks at text and is quick. Otherwise `on_loop` takes the function's arguments and
    `seconds`, and keeps that limit by itself.
    `check` is called for every row before a run, with its columns, its gold answer and the function's kwargs from the config;
    it raises ValueError for a row that the function can never judge. `verbatim`: it reads the response exactly as it is, without
    the `<think>` that a prompt may have opened.
    """

    function: Callable[..., Graded]
    on_loop: Callable[..., Coroutine[Any, Any, Graded]] | None = None
    check: Check | None = None
    verbatim: bool = False


def _check_tests(row: Mapping[str, Any], answer: str | None, kwargs: Mapping[str, Any]) -> None:
    read_tests(row, answer)


def _check_source(row: Mapping[str, Any], answer: str | None, kwargs: Mapping[str, Any]) -> None:
    if grader_of(str(row.get("data_source")), kwargs.get("sources")) == "code_tests":
        read_tests(row, answer)


BUILTINS: dict[str, Builtin] = {
    "math_correct": Builtin(math_correct, math_correct_async),
    "last_number_correct": Builtin(last_number_correct),
    "think_answer_format": Builtin(think_answer_format),
    "dapo_answer": Builtin(dapo_answer, in_thread(dapo_answer)),
    "by_data_source": Builtin(by_data_source, in_thread(by_data_source), _check_source),
    "exact_match": Builtin(exact_match),
    "fuzzy_match": Builtin(fuzzy_match),
    "multiple_choice": Builtin(multiple_choice, check=check_choices),
    "length_target": Builtin(length_target),
    "regex_format": Builtin(regex_format, in_thread(regex_format), verbatim=True),
    "json_schema": Builtin(json_schema, in_thread(json_schema)),
    "reasoning_gym_score": Builtin(reasoning_gym_score, in_thread(reasoning_gym_score)),
    "code_tests": Builtin(code_tests, in_thread(code_tests), _check_tests),
}
