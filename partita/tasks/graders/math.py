"""Judges the final answer of a mathematics problem: 1.0 right, 0.0 wrong or no answer.

Where the answer is taken from, in this order; only what follows `</think>` counts, and an unclosed `<think>` is no
answer:
1. a response with `\\boxed`: the last box. An empty or unfinished last box is no answer, whatever an earlier one says.
2. a response with `<answer>`: the last `<answer>...</answer>`, read as below, or whole. An unfinished one is no answer.
3. a line that starts with `####`: what follows the last one.
4. a single letter A to J as gold: the choice named, see `graders.choice`.
5. the last formula that is said to be the answer, as `the answer is $x^2$`.
6. a number as gold: the last number in the text.

Equal are: equal numbers (exactly; thousands marks, units, currency and a leading `x =` aside; with a percent sign on
one side only, n% matches n and n/100), equal words, and whatever math-verify holds for equal in either direction.
Whatever it says, not equal are: a set and a tuple, a bare inequality and a value, two known units or two bases that differ,
and a number to a sentence with several.

Left out: several boxes as one answer, tolerances, orders of magnitude in words ("2 million"), conversion of units.
"""

from __future__ import annotations

import asyncio
import re

from partita.tasks.graders.choice import boxed_choice, named_choice
from partita.tasks.graders.final import after_thinking, has_tags, last_box, last_tagged
from partita.tasks.graders.number import Number, equal, last_number, read_number, tidy
from partita.tasks.graders.units import take_known_unit
from partita.tasks.graders.workers import call

PROCESSOR_SECONDS = 5.0  # a comparison that needs more, or more memory than `graders.workers` gives, counts as wrong
LIMIT_SECONDS = 60.0  # by the clock, where the caller sets none
MAX_ANSWER = 500  # characters; longer final answers are wrong unread

_LAST_HASHES = re.compile(r"^[ \t]*####[ \t]*(.*)$", re.MULTILINE)
# Without going back over white space: a response may be answer after answer of it.
_STATED = re.compile(
    r"\banswer(?:\s++is\b)?+\s*+:?\s*+(?:\$\$?+([^$\n]{1,500})\$|\\[(\[]([^\n]{1,500}?)\\[)\]])", re.IGNORECASE
)
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")
_LEAD = re.compile(r"(?:the\s+)?(?:final\s+|correct\s+)?answer(?:\s+is\b|\s*[:=])\s*:?\s*", re.IGNORECASE)
# A relation without a left side, or a row that goes on: equal only to the very same.
_NO_VALUE = re.compile(
    r"\s*(?:[<>≤≥≠]|\\(?:[lg](?:e|eq|t|eqslant)|neq?|neg|lnot)(?![A-Za-z]))|.*\\(?:[lc]?dots)\b", re.DOTALL
)
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?) ?(?:\^ ?\{? ?\\circ ?\}?|°|\\degree(?![A-Za-z]))")
_BASE = re.compile(r"\d+_\{?(\d+)\}?")
# A word of a sentence; names of functions are none, one of these letters by itself is a unit.
_WORD = re.compile(
    r"(?<![\\A-Za-z])(?!(?:sqrt|pi|sin|cos|tan|log|ln|exp|mod|frac|cdot|times)(?![A-Za-z]))(?:[A-Za-z]{2,}|[hms](?= ))"
)


class UnjudgedError(RuntimeError):
    """A comparison did not come to its end because it got too little of a processor: nothing is known of the answer."""


def math_correct(response: str, answer: str) -> float:
    """1.0 when the response's final answer equals `answer`, else 0.0; see the module for the rules.

    Safe to call from any thread. Raises PoolError when math-verify cannot be started, UnjudgedError on a machine that is too busy.
    """
    given = final_answer(response, answer)
    return float(given is not None and same_answer(answer, given))


async def math_correct_async(response: str, answer: str, seconds: float = LIMIT_SECONDS) -> float:
    """`math_correct` for an event loop: a slow comparison does not hold it up. seconds: see `same_answer`."""
    given = final_answer(response, answer)
    return float(given is not None and await same_answer_async(answer, given, seconds))


def same_answer(gold: str, given: str, seconds: float = LIMIT_SECONDS) -> bool:
    """Whether an answer equals the gold answer.

    A comparison that needs more of a processor than PROCESSOR_SECONDS, or than half of `seconds`, says no. Raises UnjudgedError
    for one that did not get as much within `seconds` by the clock, and PoolError.
    """
    quick = quick_equal(gold, given)
    return _same_value(gold, given, seconds) if quick is None else quick


async def same_answer_async(gold: str, given: str, seconds: float = LIMIT_SECONDS) -> bool:
    """`same_answer` for an event loop."""
    quick = quick_equal(gold, given)
    return await asyncio.to_thread(_same_value, gold, given, seconds) if quick is None else quick


def final_answer(response: str, answer: str) -> str | None:
    """The text of the response's final answer, None without one. The gold answer only decides between fallbacks."""
    text = after_thinking(response)
    if text is None:
        return None
    if "\\boxed" in text:
        return last_box(text)
    if not has_tags(text):
        return _unmarked_answer(text, answer)
    tagged = last_tagged(text)
    return None if tagged is None else _unmarked_answer(tagged, answer) or tagged


def _unmarked_answer(text: str, answer: str) -> str | None:
    """The final answer of a text without a box."""
    numeric = read_number(answer) is not None
    # "#### Step 2" is a heading of some models: with a number as gold, only a number is an answer.
    lines = reversed(_LAST_HASHES.findall(text))
    line = next((line for line in lines if not numeric or read_number(line) is not None), None)
    if line is not None:
        return line.strip() or None
    if re.fullmatch("[A-J]", answer.strip()):
        return named_choice(text)
    if stated := _STATED.findall(text):
        return "".join(stated[-1]).strip() or None
    number = last_number(text) if numeric else None
    return None if number is None else _written(number)


def _written(number: Number) -> str:
    return f"{number.value}%" if number.percent else str(number.value)


def quick_equal(gold: str, given: str) -> bool | None:
    """Whether both are equal, without algebra; None when only algebra can tell."""
    if len(given) > MAX_ANSWER:
        return False
    plain_gold, plain_given = tidy(gold), tidy(given)
    if plain_gold == plain_given:
        return True
    if re.fullmatch("[A-J]", plain_gold):
        choice = boxed_choice(plain_given)
        return choice is not None and choice[0] == plain_gold
    plain_given = _LEAD.sub("", plain_given)
    gold_number, given_number = read_number(plain_gold), read_number(plain_given)
    if gold_number is not None and given_number is not None:
        return equal(gold_number, given_number)
    if len(plain_gold) == len(plain_given) == 1:
        return False  # two names
    if _are_words(plain_gold) and _are_words(plain_given.rstrip(".! ")):
        return plain_gold.casefold() == plain_given.rstrip(".! ").casefold()
    different = _differ(plain_gold, plain_given, gold_number is not None) or _differ_in_unit(gold, given)
    return False if different else None


def _are_words(text: str) -> bool:
    """Three letters or more are a word. As algebra, "Tuesday" would equal any reordering of its letters."""
    return _WORDS.fullmatch(text) is not None and max(map(len, text.split())) > 2


def _differ(gold: str, given: str, gold_is_number: bool) -> bool:
    """Whether two answers cannot be equal for what kind of thing they are; math-verify sees some of these as equal."""
    if (_NO_VALUE.match(gold) is None) != (_NO_VALUE.match(given) is None):
        return True
    if {_brackets(gold), _brackets(given)} == {"set", "tuple"}:
        return True
    bases = _BASE.fullmatch(gold), _BASE.fullmatch(given)
    if bases[1] and (bases[0] is None or bases[0][1] != bases[1][1]):
        return True
    return gold_is_number and _is_sentence(given)


def _differ_in_unit(gold: str, given: str) -> bool:
    units = {take_known_unit(gold)[1], take_known_unit(given)[1]} - {""}
    return len(units) > 1


def _is_sentence(text: str) -> bool:
    """Whether words stand between numbers."""
    numbers = list(re.finditer(r"\d", text))
    return bool(numbers) and _WORD.search(text, numbers[0].end(), numbers[-1].start()) is not None


def _brackets(text: str) -> str:
    if text.startswith("\\{") and text.endswith("\\}"):
        return "set"
    return "tuple" if "," in text and text[:1] in "([" and text[-1:] in ")]" else ""


def _same_value(gold: str, given: str, seconds: float) -> bool:
    own = min(PROCESSOR_SECONDS, seconds / 2)
    asked = {"gold": _as_algebra(gold), "given": _LEAD.sub("", _as_algebra(given)), "processor_seconds": own}
    outcome = call("partita.tasks.graders.verify:same_value", asked, seconds)
    if outcome.timed_out:
        raise UnjudgedError(
            f"{given!r:.80} was not compared with {gold!r:.80}: no result within {seconds:g} seconds, in which it did not get "
            f"{own:g} seconds of a processor. The machine is too busy: raise reward.timeout_seconds, or run less beside"
        )
    return outcome.reward == 1.0


def _as_algebra(answer: str) -> str:
    """What math-verify reads: no unit that is known, and angles in radians."""
    text = tidy(take_known_unit(answer)[0])
    return _DEGREES.sub(r"(\\frac{\1\\pi}{180})", text) if _ANGLE.search(text) else text
