"""Judges the answer line that DAPO's prompts ask for: `Answer: 21` as the last of its kind.

DAPO (Yu et al., 2025) rewards with +1 and -1. Unlike verl's `math_dapo`, all of the response is read, not its last 300
characters, and answers are equal as `graders.math` says, not by spelling.

Left out: the penalty for length, which is the run's (`actor.overlong_reward_penalty`).
"""

from __future__ import annotations

import re

from partita.tasks.graders.final import after_thinking, last_box
from partita.tasks.graders.math import LIMIT_SECONDS, same_answer

_LINE = re.compile(r"\banswer[*_]*\s*:[*_]*\s*([^\n]+)", re.IGNORECASE)


def dapo_answer(
    response: str,
    answer: str,
    boxed: bool = False,
    right: float = 1.0,
    wrong: float = -1.0,
    limit_seconds: float = LIMIT_SECONDS,
) -> dict[str, float]:
    """`right` when the last `Answer:` line of the response equals `answer`, else `wrong`; the part `accuracy` is 1.0 or 0.0.

    boxed: a response without such a line is judged by its last box. limit_seconds and what is raised: see `math.same_answer`.
    """
    given = answer_line(response, boxed)
    correct = given is not None and same_answer(answer, given, limit_seconds)
    return {"score": right if correct else wrong, "accuracy": float(correct)}


def answer_line(response: str, boxed: bool = False) -> str | None:
    """What follows the last `Answer:`, without the box or the marks of a formula around it; None where there is none."""
    text = after_thinking(response)
    if text is None:
        return None
    lines = _LINE.findall(text)
    if not lines:
        return last_box(text) if boxed and "\\boxed" in text else None
    line = lines[-1].strip()
    return last_box(line) if "\\boxed" in line else line.strip("*_ ").removesuffix(".").strip("$") or None
