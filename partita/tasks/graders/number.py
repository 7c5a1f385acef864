"""Reads a number as people and models write it, exactly and without a symbolic engine.

Units, currency signs and a leading `x =` are dropped; thousands may be set apart by comma, `{,}`, `\\,`, `~` or a
space. A percent sign is kept as a mark: `60%` stands for 60 and for 0.6, see `equal`.

Left out: anything that needs algebra (roots, pi, sets, intervals); `read_number` says None and `graders.verify` takes
over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_LENGTH = 200  # no number of a task is longer; bounds the work on hostile text
MAX_POWER = 300  # of ten

# A comma or a space counts as a thousands mark only where every group after it has three digits.
_DIGITS = r"(?:[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+)|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_SIGNED = rf"[+-]?\s*{_DECIMAL}"

_PLAIN = re.compile(rf"[+-]?\s*{_DECIMAL}")
_LATEX_FRACTION = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<whole>\d+)?\s*\\[dtc]?frac\s*"
    rf"(?:\{{\s*(?P<a>{_SIGNED})\s*\}}|(?P<a1>\d))\s*(?:\{{\s*(?P<b>{_SIGNED})\s*\}}|(?P<b1>\d))"
)
_SLASH_FRACTION = re.compile(rf"(?P<sign>[+-]?)\s*(?:(?P<whole>\d+)\s+)?(?P<a>{_DECIMAL})\s*/\s*(?P<b>{_SIGNED})")
_POWER = re.compile(
    rf"(?:(?P<a>{_SIGNED})\s*(?:\\times|\\cdot|[*x×·])\s*)?10\s*\^\s*(?:\{{\s*(?P<p>[+-]?\d{{1,4}})\s*\}}|(?P<p1>\d))"
    rf"|(?P<m>{_SIGNED})[eE](?P<e>[+-]?\d{{1,4}})"
)

_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textrm|textit|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACES = re.compile(r"(?:\\[,;:> ]|~|\s|\u00a0|\u2009|\u202f)+")
_CURRENCY = re.compile(r"\\?\$|[€£¥₹]|\b(?:USD|EUR|GBP)\b|\\(?:euro|pounds)\b")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|°|\\degree\b|\\circ\b")
_PERCENT = re.compile(r"\s*(?:\\?%|\b(?:percent|per cent))$", re.IGNORECASE)
_NAME = re.compile(r"^([A-Za-z](?:_\{?\w{1,3}\}?)?|answer|result|total)\s*=\s*", re.IGNORECASE)
_UNIT_WORD = r"(?:[A-Za-z]{2,}|[mgshlLCFKWVJN])(?:\^\{?[23]\}?|[²³])?"
_UNITS = re.compile(rf"(?<=[\d.}} ])\s*({_UNIT_WORD}(?:(?:\s*[/·.-]\s*|\s+|\s*\\cdot\s*){_UNIT_WORD}){{0,4}})\.?$")
# Words that change the value or join it to another one: a number with such a tail is not a number with a unit.
_NOT_UNITS = re.compile(
    r"\b(?:and|or|not|to|than|about|thousand|million|billion|trillion|hundred|dozen|half|third|quarter|times|plus|minus"
    r"|over|by|mod|pi|sqrt|sin|cos|tan|log|ln|exp|if|is|was)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Number:
    """An exact value; `percent`: a percent sign stood behind it; `name`: what stood before an equals sign."""

    value: Fraction
    percent: bool = False
    name: str = ""


def equal(a: Number, b: Number) -> bool:
    """Exactly equal, names aside unless both have one. A percent sign on one side only lets n% match n and n/100."""
    if a.name and b.name and a.name != b.name:
        return False
    if a.percent == b.percent:
        return a.value == b.value
    percent, plain = (a, b) if a.percent else (b, a)
    return plain.value in (percent.value, percent.value / 100)


def read_number(text: str) -> Number | None:
    """The number that `text` is, all of it; None when it is anything else."""
    if len(text) > MAX_LENGTH:
        return None
    text = tidy(text)
    text = _CURRENCY.sub(" ", text)
    text = " ".join(text.split()).rstrip(".,;").strip()
    name = ""
    if match := _NAME.match(text):
        name, text = match[1], text[match.end() :]
    percent = _PERCENT.search(text) is not None
    text = _DEGREES.sub(" ", _PERCENT.sub("", text)).strip()
    if (units := _UNITS.search(text)) and not _NOT_UNITS.search(units[1]):
        text = text[: units.start()].strip()
    value = _value(_unwrap(text))
    return None if value is None else Number(value, percent, name)


def tidy(text: str) -> str:
    """One spelling for minus signs, spaces, thousands commas and text commands; no maths delimiters or emphasis."""
    text = text.strip().replace("−", "-").replace("–", "-").replace("\\!", "").replace("{,}", ",").replace("**", "")
    for mark in ("\\left", "\\right", "\\displaystyle", "\\(", "\\)", "\\[", "\\]"):
        text = text.replace(mark, "")
    text = _TEXT_COMMAND.sub(r" \1 ", text).replace(" ^", "^")
    return _SPACES.sub(" ", text).strip()


def _unwrap(text: str) -> str:
    while len(text) > 2 and text[0] + text[-1] in ("()", "{}") and not set(text[1:-1]) & set("(){}"):
        text = text[1:-1].strip()
    return text


def _value(text: str) -> Fraction | None:
    if _PLAIN.fullmatch(text):
        return _decimal(text)
    if match := _LATEX_FRACTION.fullmatch(text) or _SLASH_FRACTION.fullmatch(text):
        groups = match.groupdict()
        above, below = _decimal(groups["a"] or groups["a1"]), _decimal(groups["b"] or groups["b1"])
        if below == 0:
            return None
        value = int(groups["whole"] or 0) + above / below
        return -value if groups["sign"] == "-" else value
    if match := _POWER.fullmatch(text):
        base = _decimal(match["a"] or match["m"] or "1")
        power = int(match["p"] or match["p1"] or match["e"])
        return base * Fraction(10) ** power if abs(power) <= MAX_POWER else None
    return None


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").rstrip("."))


_IN_TEXT = re.compile(r"((?:\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\d.])\.\d+)(/\d+)?(\s?\\?%)?")
# A minus right before a number, unless it joins the number to a word, a digit or a bracket; one set apart after
# an equals sign or a colon.
_MINUS_BEFORE = re.compile(r"(?:(?:^|[^\w)\]}])[-−]|[=:(]\s*[-−]\s+)(?:\\?\$)?$")


def last_number(text: str) -> Number | None:
    """The last number that appears in running text. `a/b` without spaces is one fraction.

    Looks at the last 2,000 characters only, so that a long response costs no more than a short one.
    """
    text = text[-2000:]
    matches = list(_IN_TEXT.finditer(text))
    if not matches:
        return None
    found = matches[-1]
    value = Fraction(re.sub(r"[,{}\\]", "", found[1]))
    if found[2] and (below := int(found[2][1:])):
        value /= below
    negative = _MINUS_BEFORE.search(text, 0, found.start()) is not None
    return Number(-value if negative else value, percent=found[3] is not None)
