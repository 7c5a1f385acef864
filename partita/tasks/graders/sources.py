"""Chooses the grader by the row's `data_source`, for data sets in verl's layout.

The names are those of verl's `default_compute_score` whose answers our graders read; others are given in `sources`.

Left out: search and question answering with several gold answers, geometry with images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from partita.tasks.graders.code import Graded, code_tests
from partita.tasks.graders.dapo import dapo_answer
from partita.tasks.graders.math import math_correct
from partita.tasks.graders.text import exact_match

_MATH = """
openai/gsm8k gsm8k lighteval/MATH DigitalLearningGmbH/MATH-lighteval HuggingFaceH4/MATH-500 numina_aops_forum
numina_synthetic_math numina_amc_aime numina_synthetic_amc numina_cn_k12 numina_olympiads hiyouga/geometry3k
"""
_DAPO = "math_dapo math math_dapo_reasoning"
_CODE = "codecontests apps codeforces taco"
GRADERS: Mapping[str, Callable[..., Any]] = {
    "math_correct": math_correct,
    "dapo_answer": dapo_answer,
    "code_tests": code_tests,
    "exact_match": exact_match,
}
SOURCES: Mapping[str, str] = {
    **dict.fromkeys(_MATH.split(), "math_correct"),
    **dict.fromkeys(_DAPO.split(), "dapo_answer"),
    **dict.fromkeys(_CODE.split(), "code_tests"),
}
_AIME = "aime"
"""All data sets whose names start so are judged as DAPO's."""


class UnknownSourceError(ValueError):
    """A data_source without a grader; the message lists those that have one."""


def grader_of(data_source: str, sources: Mapping[str, str] | None = None) -> str:
    """Name of the grader for a data source; `sources` win. Raises UnknownSourceError."""
    table = {**SOURCES, **(sources or {})}
    if data_source in table:
        name = table[data_source]
    elif data_source.lower().startswith(_AIME):
        name = "dapo_answer"
    else:
        raise UnknownSourceError(
            f"data_source {data_source!r} has no grader; known are {', '.join(table)} and names that start with {_AIME}. Add it "
            f"with reward.options.by_data_source.kwargs.sources={{{data_source!r}: ...}}, one of {', '.join(GRADERS)}"
        )
    if name not in GRADERS:
        raise UnknownSourceError(f"sources.{data_source}: no grader {name!r}; there are {', '.join(GRADERS)}")
    return name


def by_data_source(
    response: str,
    answer: str,
    data_source: str,
    row: Mapping[str, Any],
    sources: Mapping[str, str] | None = None,
    limit_seconds: float = 10.0,
) -> Graded:
    """What the grader for this data source says; a grader of one number gives that as `score`.

    sources: further data sources and graders, as {lab/units: exact_match}. Raises UnknownSourceError, and what the grader
    raises.
    """
    name = grader_of(data_source, sources)
    if name == "code_tests":
        return code_tests(response, row, answer, limit_seconds=limit_seconds)
    if name == "dapo_answer":
        return {**dapo_answer(response, answer, limit_seconds=limit_seconds)}
    return {"score": float(GRADERS[name](response, answer))}
