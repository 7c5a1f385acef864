"""Rewards that only look at text: quick, pure and linear in its length, so they run inside the training process.

Left out: mathematics beyond plain numbers; see `graders.math`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

from partita.tasks.graders.final import final_text
from partita.tasks.graders.number import equal, last_number, read_number

_THINK_ANSWER = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)
_TAG = re.compile(r"</?(?:think|answer)>")
# Not signs that carry a value: in -5, 3.5, 10:30, 50%, C++ or a/b.
_PUNCTUATION = re.compile(
    r"""[!"'()*?\[\]`{}_;…“”‘’«»—、。，！？：；（）]|[.,:](?!\d)|(?<=\d),(?=\d{3}(?!\d))|(?<=[^\W\d])[-–](?=[^\W\d])"""
)
_LONGEST = 400  # characters that are compared one by one; the time grows with the square


def last_number_correct(response: str, answer: str) -> float:
    """1.0 when the last number written in the response equals the answer, else 0.0."""
    gold, given = read_number(answer), last_number(response)
    return float(gold is not None and given is not None and equal(gold, given))


def think_answer_format(response: str) -> float:
    """1.0 for one <think>...</think> followed by one <answer>...</answer> and nothing else, otherwise 0.0."""
    once = len(_TAG.findall(response)) == 4  # first: then the pattern has one way to match
    return float(once and _THINK_ANSWER.fullmatch(response) is not None)


def normalised(text: str, case: bool, space: bool, punctuation: bool, nfkc: bool) -> str:
    """The text without the differences that are switched on: upper case; white space at the ends, and how much between
    words; punctuation, but for signs that carry a value (-5, 3.5, 50%); compatible forms of one Unicode character (full
    width, ligatures).
    """
    text = unicodedata.normalize("NFKC", text) if nfkc else text
    text = text.casefold() if case else text
    text = _PUNCTUATION.sub("", text) if punctuation else text
    return " ".join(text.split()) if space else text


def exact_match(
    response: str,
    answer: str,
    aliases: Sequence[str] = (),
    case: bool = True,
    space: bool = True,
    punctuation: bool = True,
    nfkc: bool = True,
) -> float:
    """1.0 when the final text of the response (`graders.final`) is the answer or one of its aliases, else 0.0.

    case, space, punctuation, nfkc: the differences that do not count, see `normalised`; all of them by default.
    """
    given = normalised(final_text(response), case, space, punctuation, nfkc)
    return float(
        bool(given) and any(given == normalised(one, case, space, punctuation, nfkc) for one in (answer, *aliases))
    )


def fuzzy_match(
    response: str,
    answer: str,
    aliases: Sequence[str] = (),
    by: Literal["characters", "words"] = "characters",
    least: float = 0.0,
) -> float:
    """How much the final text of the response is like the answer, or the nearest of its aliases: 0.0 to 1.0.

    by: "characters" is difflib's ratio, 0.0 for a text of over 400 characters; "words" is the F1 of the words that both have,
    as SQuAD counts them (Rajpurkar et al., 2016). What is below `least` is 0.0. Differences of `normalised` do not count.
    """
    given = normalised(final_text(response), True, True, True, True)
    alike = _by_words if by == "words" else _by_characters
    score = max(alike(given, normalised(one, True, True, True, True)) for one in (answer, *aliases))
    return score if score >= least else 0.0


def _by_characters(given: str, gold: str) -> float:
    if max(len(given), len(gold)) > _LONGEST:
        return float(given == gold)
    return SequenceMatcher(None, gold, given, autojunk=False).ratio() if given else 0.0


def _by_words(given: str, gold: str) -> float:
    ours, theirs = Counter(given.split()), Counter(gold.split())
    both = (ours & theirs).total()
    return 2 * both / (ours.total() + theirs.total()) if both else 0.0


def length_target(
    tokens: Sequence[int], target: int, band: int = 0, soft: int = 100, side: Literal["both", "above", "below"] = "both"
) -> float:
    """1.0 for a response of `target` tokens, give or take `band`; beyond, linearly less, 0.0 from `soft` tokens on.

    side: whether too many tokens count ("above"), too few ("below"), or both. The end token is one of them.
    """
    beyond = len(tokens) - target
    if (side == "above" and beyond < 0) or (side == "below" and beyond > 0):
        return 1.0
    return 1.0 - min(max(abs(beyond) - band, 0) / max(soft, 1), 1.0)
