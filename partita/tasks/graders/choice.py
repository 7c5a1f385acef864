"""Which of several lettered choices a response names, and the reward for the right one.

Where the choice is taken from, in this order; only what follows `</think>` counts, and an unclosed `<think>` is no
answer: the last box; the last statement, as "the answer is B", "option (b)", "I choose B"; the last `(B)`; a last line that
is one letter. What names two choices at once ("A or C"), or a letter together with another choice's text, names none.

Left out: several right choices.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from partita.tasks.graders.final import final_text

_LOOKED_AT = 2000  # characters at the end, so that a long response costs no more than a short one
_MARKS = re.compile(r"\*\*|__|[`$]|\\(?:text|textbf|mathbf|mathrm|boldsymbol)\s*\{([^{}]*)\}")
_SAID = (
    r"(?:\b(?:final\s|correct\s|right\s|best\s)?(?:answer|option|choice)(?:\s+(?:is|would be|should be))?"
    r"|\bI(?:'d|\swould|\swill)?\s(?:choose|pick|select|go\swith))\s*[:=]?\s*(?:(?:option|choice)\s+)?"
)
# A lower-case letter needs parentheses or the end of its line: "the answer is a cat".
_LETTER = r"(?:\(([A-Za-z])\)|([A-Z])\b(?!['’])|([a-z])(?=\s*[.)]?\s*$))"
_STATEMENT = re.compile(rf"(?i:{_SAID}){_LETTER}", re.MULTILINE)
_STATED_TEXT = re.compile(rf"(?i:{_SAID})(\S.*)$", re.MULTILINE)
_BARE = re.compile(r"\(([A-Z])\)")
_ALONE = re.compile(r"\s*\(?([A-Za-z])\)?[.:)]?\s*")
_ANOTHER = re.compile(r"\s*(?:,|/|&|;|\bor\b|\band\b)\s*(?:or\s|and\s)?\(?[A-Z]\b\)?(?!['’])")
_IN_BOX = re.compile(rf"(?i:{_SAID})?\(?([A-Za-z])\)?(?:[.:)]?\s*|(?:[.:]|(?<=\)))\s*(\S.*))", re.DOTALL)


def named_choice(text: str) -> str | None:
    """The letter, in upper case, that running text names last, None where it names none or two at once."""
    text = _MARKS.sub(lambda found: found[1] or "", text[-_LOOKED_AT:])
    found = list(_STATEMENT.finditer(text)) or list(_BARE.finditer(text))
    if found:
        letter = next(group for group in found[-1].groups() if group)
        return None if _ANOTHER.match(text, found[-1].end()) else letter.upper()
    alone = _ALONE.fullmatch(text.rstrip().rpartition("\n")[2])
    return alone[1].upper() if alone else None


def boxed_choice(box: str) -> tuple[str, str] | None:
    """Letter and text of a choice that is all that a box or an answer line holds; None for anything else."""
    box = _MARKS.sub(lambda found: found[1] or "", box).strip()
    found = _IN_BOX.fullmatch(box)
    if found is None or _ANOTHER.match(box, found.end(1)):
        return None
    return found[1].upper(), (found[2] or "").strip()


def read_options(options: Any) -> dict[str, str]:
    """Letters and texts of choices: from a list, a mapping of letters, or {"label": [...], "text": [...]}.

    Raises ValueError for other layouts.
    """
    if isinstance(options, Mapping):
        if {"label", "text"} <= set(options):
            return {
                str(label).upper(): str(text) for label, text in zip(options["label"], options["text"], strict=True)
            }
        return {str(label).upper(): str(text) for label, text in options.items()}
    if (
        isinstance(options, Sequence)
        and not isinstance(options, str | bytes)
        and len(options) <= len(string.ascii_uppercase)
    ):
        return dict(zip(string.ascii_uppercase, map(str, options), strict=False))
    raise ValueError(
        f"options {options!r:.80}: expected a list of texts, a mapping of letters, or label and text lists"
    )


def multiple_choice(
    response: str, answer: str, options: Any = None, choices: Any = None, first_index: int | None = None
) -> float:
    """1.0 when the response names the right choice, else 0.0: by its letter, or by its text where the row has the texts.

    answer: a letter (or label), a choice's text, or with first_index (0 or 1) its place in the list. options, choices: the
    columns with the texts, see `read_options`.
    Raises ValueError where `answer` is none of these, or may be two of them.
    """
    texts = _texts(options, choices)
    return float(_named(final_text(response), texts) == _gold_letter(answer, texts, first_index))


def check_choices(row: Mapping[str, Any], answer: str | None, kwargs: Mapping[str, Any]) -> None:
    """Raises ValueError where `multiple_choice` could not tell which choice of a row is right. kwargs: of the function."""
    given = {**row, **kwargs}
    _gold_letter(answer or "", _texts(given.get("options"), given.get("choices")), given.get("first_index"))


def _texts(options: Any, choices: Any) -> dict[str, str]:
    return read_options(next((given for given in (options, choices) if given is not None), {}))


def _gold_letter(answer: str, texts: Mapping[str, str], first_index: int | None) -> str:
    answer = answer.strip()
    if first_index is not None:
        place = int(answer) - first_index
        if not 0 <= place < len(texts):
            raise ValueError(f"answer {answer!r} with first_index={first_index}: there are {len(texts)} choices")
        return list(texts)[place]
    if answer.upper() in texts or (not texts and re.fullmatch("[A-Za-z]", answer)):
        return answer.upper()
    found = [letter for letter, text in texts.items() if plain(text) == plain(answer)]
    if len(found) == 1 and not answer.isdigit():
        return found[0]
    raise ValueError(
        f"answer {answer!r} is not the letter or text of one of the choices {', '.join(texts) or '(there are none)'}; where it "
        "is a place in the list, set first_index to 0 or 1 in the function's kwargs"
    )


def _named(text: str, texts: Mapping[str, str]) -> str | None:
    """The letter that a final text names, None for none, two, or a letter together with another choice's text."""
    by_text = {plain(words): letter for letter, words in texts.items()}
    held = boxed_choice(text)
    if held is not None and (not texts or held[0] in texts):
        return held[0] if by_text.get(plain(held[1]), held[0]) == held[0] else None
    if plain(text) in by_text:
        return by_text[plain(text)]
    if (letter := by_text.get(_stated_text(text))) is not None:
        return letter
    letter = named_choice(text)
    return letter if not texts or letter in texts else None


def _stated_text(text: str) -> str:
    """What the last statement says to be the answer, "" for nothing and for a letter."""
    stated = _STATED_TEXT.findall(_MARKS.sub(lambda found: found[1] or "", text[-_LOOKED_AT:]))
    said = plain(stated[-1]) if stated else ""
    return said if len(said) > 1 else ""


def plain(text: str) -> str:
    """Words of a choice without case, spaces around and the full stop."""
    return " ".join(text.casefold().split()).rstrip(".")
