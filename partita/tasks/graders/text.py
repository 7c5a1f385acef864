"""Rewards that only look at text: quick, pure and linear in its length, so they run inside the training process.

Left out: mathematics beyond plain numbers; see `graders.math`.
"""

from __future__ import annotations

import re

from partita.tasks.graders.number import equal, last_number, read_number

_THINK_ANSWER = re.compile(r"\s*<think>(.*?)</think>\s*<answer>(.*?)</answer>\s*", re.DOTALL)
_TAG = re.compile(r"</?(?:think|answer)>")


def last_number_correct(response: str, answer: str) -> float:
    """1.0 when the last number written in the response equals the answer, else 0.0."""
    gold, given = read_number(answer), last_number(response)
    return float(gold is not None and given is not None and equal(gold, given))


def think_answer_format(response: str) -> float:
    """1.0 for one <think>...</think> followed by one <answer>...</answer> and nothing else, otherwise 0.0."""
    match = _THINK_ANSWER.fullmatch(response)
    return float(match is not None and not _TAG.search(match[1]) and not _TAG.search(match[2]))
