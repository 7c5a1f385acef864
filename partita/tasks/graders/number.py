"""Reads a number as people and models write it, exactly and without a symbolic engine.

Units, currency signs and a leading `x =` are taken off (`graders.units`); thousands may be set apart by comma, `{,}`,
`\\,`, `~` or a space; minus signs, fractions and exponents may be characters of their own (`−`, `½`, `²`). A percent sign
is kept as a mark: `60%` stands for 60 and for 0.6, see `equal`.

Left out: anything that needs algebra (roots, pi, sets, intervals); `read_number` says None and `graders.verify` takes
over.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from partita.tasks.graders.units import take_currency, take_unit

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
    rf"(?:(?P<a>{_SIGNED})\s*(?:\\times|\\cdot|[*x×·])\s*)?10\s*\^\s*(?:\{{\s*(?P<p>[+-]?\d{{1,4}})\s*\}}|(?P<p1>[+-]?\d{{1,4}}))"
    rf"|(?P<m>{_SIGNED})[eE](?P<e>[+-]?\d{{1,4}})"
)

_REPEATING = re.compile(
    r"(?P<sign>[+-]?)\s*(?P<whole>\d*)\.(?P<once>\d*)\\(?:overline|bar|dot)\s*(?:\{(?P<again>\d+)\}|(?P<again1>\d))"
)
_TEXT_COMMAND = re.compile(
    r"\\(?:text|textbf|textrm|textit|textsf|emph|mathrm|mathbf|mathit|mathsf|mbox|operatorname|bm|boldsymbol|underline|fbox"
    r"|textcolor\s*\{\w+\}|color\s*\{\w+\})\s*\{([^{}]*)\}"
)
# What only changes how something looks.
_LOOKS = re.compile(
    r"\\(?:color\s*\{\w+\}|[hv]?phantom\s*\{[^{}]*\}|(?:displaystyle|textstyle|left|right|q?quad|tiny|small|normalsize"
    r"|checkmark|[lL]arge|LARGE|[hH]uge)(?![A-Za-z])|[()\[\]])|\\\\\s*$|[`✓✔]|\*\*"
)
_ONE_CHARACTER = str.maketrans(
    dict.fromkeys("−–‒‐‑﹣－", "-")
    | {"⁄": "/"}
    | {one: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", one).split("⁄")) for one in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
)
_RAISED = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_SAME = {"\\langle": "(", "\\rangle": ")", "\\varnothing": "\\emptyset"}
_ROOT = re.compile(r"√ ?(\d+|[A-Za-z]|\([^()]*\))")
_SPACES = re.compile(r"(?:\\[,;:> ]|~|\s|\u00a0|\u2009|\u202f)+")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|°|\\degree\b|\\circ\b")
_PERCENT = re.compile(r"\s*(?:\\?%|\b(?:percent|per cent))$", re.IGNORECASE)
_NAME = re.compile(r"^([A-Za-z](?:_\{?\w{1,3}\}?)?|answer|result|total)\s*=\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Number:
    """An exact value; `percent`: a percent sign stood behind it; `name`: what stood before an equals sign; `unit`: a known
    unit or currency.
    """

    value: Fraction
    percent: bool = False
    name: str = ""
    unit: str = ""


def equal(a: Number, b: Number) -> bool:
    """Exactly equal, names and units aside unless both have one. A percent sign on one side only lets n% match n and
    n/100.
    """
    if (a.name and b.name and a.name != b.name) or (a.unit and b.unit and a.unit != b.unit):
        return False
    if a.percent == b.percent:
        return a.value == b.value
    percent, plain = (a, b) if a.percent else (b, a)
    return plain.value in (percent.value, percent.value / 100)


def read_number(text: str) -> Number | None:
    """The number that `text` is, all of it; None when it is anything else."""
    if len(text) > MAX_LENGTH:
        return None
    text, currency = take_currency(tidy(text))
    text = " ".join(text.split()).rstrip(".,;").strip()
    name = ""
    if match := _NAME.match(text):
        name, text = match[1], text[match.end() :]
    percent = _PERCENT.search(text) is not None
    text = _DEGREES.sub(" ", _PERCENT.sub("", text)).strip()
    text, unit = take_unit(text)
    value = _value(_unwrap(text))
    return None if value is None else Number(value, percent, name, unit or currency)


def spelled_out(text: str) -> str:
    """The text with an ASCII minus for all minus signs, and LaTeX for characters that are a fraction or an exponent."""
    text = text.translate(_ONE_CHARACTER)
    # NFKC of a raised minus is not the one of a keyboard.
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    return _RAISED.sub(lambda found: f"^{{{unicodedata.normalize('NFKC', found[0])}}}".replace("−", "-"), text)


def tidy(text: str) -> str:
    """One spelling for minus signs, spaces, thousands commas and text commands; no maths delimiters, sizes, colours."""
    text = spelled_out(text.strip()).replace("\\!", "").replace("{,}", ",")
    for command, meaning in _SAME.items():
        text = text.replace(command, meaning)
    text = _TEXT_COMMAND.sub(r" \1 ", _LOOKS.sub("", _TEXT_COMMAND.sub(r" \1 ", text))).replace(" ^", "^")
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
    if match := _REPEATING.fullmatch(text):
        value = _repeating(match["whole"], match["once"], match["again"] or match["again1"])
        return -value if match["sign"] == "-" else value
    if match := _POWER.fullmatch(text):
        base = _decimal(match["a"] or match["m"] or "1")
        power = int(match["p"] or match["p1"] or match["e"])
        return base * Fraction(10) ** power if abs(power) <= MAX_POWER else None
    return None


def _repeating(whole: str, once: str, again: str) -> Fraction:
    shift = 10 ** len(once)
    return Fraction(f"{whole or 0}.{once or 0}") + Fraction(int(again), shift * (10 ** len(again) - 1))


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").rstrip("."))


# What a number in running text looks like; a digit that is an exponent or an index of a name is none.
_IN_TEXT = re.compile(
    r"(?:(?P<whole>\d+)\s?)?\\[dtc]?frac\s*\{(?P<a>\d+)\}\s*\{(?P<b>\d+)\}"
    r"|(?P<whole1>\d+) (?P<a1>\d+)/(?P<b1>\d+)"
    r"|(?<![\d^_.,])(?P<times>\d+(?:\.\d+)?)"
    r"(?:\s?(?:\\times|\\cdot|[×*x])\s?10\s?\^\s?(?:\{(?P<ten>-?\d{1,3})\}|(?P<ten1>-?\d{1,3}))|[eE](?P<ten2>[+-]?\d{1,3})(?!\w))"
    r"|(?P<base>\d{1,9})\s?\^\s?(?:\{(?P<power>-?\d+)\}|(?P<power1>-?\d+))"
    r"|(?<![\d^_])(?<![\^_]\{)(?<!\^\{-)"
    r"(?P<number>(?:\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\d.])\.\d+)"
    r"(?:/(?P<below>\d+))?(?P<percent>\s?\\?%)?"
)
# A minus right before a number, unless it joins the number to a word, a digit or a bracket; one set apart after
# an equals sign or a colon.
_MINUS_BEFORE = re.compile(r"(?:(?:^|[^\w)\]}])[-−]|[=:(]\s*[-−]\s+)(?:\\?\$)?$")
_TIME_BEFORE = re.compile(r"\d:$")
_LOOKED_AT = 2000  # characters at the end, so that a long response costs no more than a short one


def last_number(text: str) -> Number | None:
    """The last number that appears in running text: also `a/b` without spaces, `\\frac`, a mixed number, a power of a number,
    `2 \\times 10^3` and `2e3`.

    Looks at the last 2,000 characters only.
    """
    text = spelled_out(text[-_LOOKED_AT:])
    matches = list(_IN_TEXT.finditer(text))
    if not matches:
        return None
    found = matches[-1]
    value = _found_value(found.groupdict())
    if value is None or _TIME_BEFORE.search(text, max(found.start() - 2, 0), found.start()):
        return None
    negative = _MINUS_BEFORE.search(text, max(found.start() - 20, 0), found.start()) is not None
    return Number(-value if negative else value, percent=found["percent"] is not None)


def _found_value(found: dict[str, str | None]) -> Fraction | None:
    if found["number"]:
        value, below = Fraction(re.sub(r"[,{}\\]", "", found["number"])), int(found["below"] or 1)
        return value / below if below else value
    if found["times"]:
        return Fraction(found["times"]) * Fraction(10) ** int(found["ten"] or found["ten1"] or found["ten2"] or 0)
    if found["base"]:
        base, power = int(found["base"]), found["power"] or found["power1"] or "1"
        return Fraction(base) ** int(power) if base and len(power) < 4 else None
    whole, above, below = (int(found[name] or found[f"{name}1"] or 0) for name in ("whole", "a", "b"))
    return whole + Fraction(above, below) if below else Fraction(above)
