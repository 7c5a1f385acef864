"""Judges the final answer of a mathematics problem: 1.0 right, 0.0 wrong or no answer.

Where the answer is taken from, in this order; only what follows `</think>` counts, and an unclosed `<think>` is no
answer:
1. a response with `\\boxed`: the last box. An empty or unfinished last box is no answer, whatever an earlier one says.
2. a line that starts with `####`: what follows the last one.
3. a single letter A to J as gold: the last choice named, as `(C)` or `answer is C`.
4. a number as gold: the last number in the text.

Equal are: equal numbers (exactly; thousands marks, units, currency and a leading `x =` aside; with a percent sign on
one side only, n% matches n and n/100), equal words, and whatever math-verify holds for equal in either direction.

Left out: several boxes as one answer, tolerances, orders of magnitude in words ("2 million").
"""

from __future__ import annotations

import asyncio
import os
import re
from threading import Lock

from partita.tasks.graders.number import Number, equal, last_number, read_number, tidy
from partita.tasks.pool import Pool, PoolError

LIMIT_SECONDS = 5.0  # a comparison that takes longer, or more memory, counts as wrong
LIMIT_MEMORY_GB = 0.75
MAX_ANSWER = 500  # characters; longer final answers are wrong unread
WORKERS = 2

_LAST_HASHES = re.compile(r"^[ \t]*####[ \t]*(.*)$", re.MULTILINE)
_CHOICE = re.compile(r"\(([A-J])\)|\b[Aa]nswer(?: is|:)?:?\s*\(?([A-J])\b")
_BOXED_CHOICE = re.compile(r"\(?([A-J])\)?(?:[.:)]\s.*)?", re.DOTALL)
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")


def math_correct(response: str, answer: str) -> float:
    """1.0 when the response's final answer equals `answer`, else 0.0; see the module for the rules.

    Safe to call from any thread. Raises PoolError when math-verify cannot be started.
    """
    given = final_answer(response, answer)
    if given is None:
        return 0.0
    quick = quick_equal(answer, given)
    return float(_same_value(answer, given, LIMIT_SECONDS) if quick is None else quick)


async def math_correct_async(response: str, answer: str, seconds: float = LIMIT_SECONDS) -> float:
    """`math_correct` for an event loop: a slow comparison does not hold it up, and is given up after `seconds`."""
    given = final_answer(response, answer)
    if given is None:
        return 0.0
    quick = quick_equal(answer, given)
    if quick is not None:
        return float(quick)
    return float(await asyncio.to_thread(_same_value, answer, given, min(seconds, LIMIT_SECONDS)))


def final_answer(response: str, answer: str) -> str | None:
    """The text of the response's final answer, None without one. The gold answer only decides between fallbacks."""
    response = response.rpartition("</think>")[2]
    if "<think>" in response:
        return None
    if "\\boxed" in response:
        return last_box(response)
    numeric = read_number(answer) is not None
    # "#### Step 2" is a heading of some models: with a number as gold, only a number is an answer.
    hashes = [line for line in _LAST_HASHES.findall(response) if not numeric or read_number(line) is not None]
    if hashes:
        return hashes[-1].strip() or None
    if re.fullmatch("[A-J]", answer.strip()):
        choices = _CHOICE.findall(response)
        return "".join(choices[-1]) if choices else None
    number = last_number(response) if numeric else None
    return None if number is None else _written(number)


def _written(number: Number) -> str:
    return f"{number.value}%" if number.percent else str(number.value)


def last_box(text: str) -> str | None:
    """What the last `\\boxed{...}` holds, braces balanced; None when it is empty, unfinished or has no braces."""
    start = text.rfind("\\boxed") + len("\\boxed")
    while start < len(text) and text[start].isspace():
        start += 1
    if start >= len(text) or text[start] != "{":
        return None
    depth, at = 0, start
    while at < len(text):
        if text[at] == "\\":
            at += 2  # an escaped brace does not nest
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[start + 1 : at].strip() or None
        at += 1
    return None


def quick_equal(gold: str, given: str) -> bool | None:
    """Whether both are equal, without algebra; None when only algebra can tell."""
    if len(given) > MAX_ANSWER:
        return False
    plain_gold, plain_given = tidy(gold), tidy(given)
    if plain_gold == plain_given:
        return True
    if re.fullmatch("[A-J]", plain_gold):
        choice = _BOXED_CHOICE.fullmatch(plain_given)
        return choice is not None and choice[1] == plain_gold
    gold_number, given_number = read_number(gold), read_number(given)
    if gold_number is not None and given_number is not None:
        return equal(gold_number, given_number)
    # Three letters or more are a word. As algebra, "Tuesday" would equal any reordering of its letters.
    if (
        _WORDS.fullmatch(plain_gold)
        and _WORDS.fullmatch(plain_given.rstrip("."))
        and max(map(len, plain_gold.split())) > 2
    ):
        return plain_gold.casefold() == plain_given.rstrip(".").casefold()
    return None


def _same_value(gold: str, given: str, seconds: float) -> bool:
    return _symbolic_pool().call(0, {"gold": gold, "given": given}, seconds).reward == 1.0


_pools: dict[int, Pool] = {}
_pools_lock = Lock()


def _symbolic_pool() -> Pool:
    """The pool of this process, made at the first use, ended with it. A forked child must not use its parent's."""
    with _pools_lock:
        pool = _pools.get(os.getpid())
        if pool is None:
            pool = Pool(["partita.tasks.graders.verify:same_value"], processes=WORKERS, memory_gb=LIMIT_MEMORY_GB)
            try:
                pool.start()
            except PoolError:
                pool.close()
                raise
            _pools[os.getpid()] = pool
    return pool
