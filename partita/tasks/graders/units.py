"""Takes the unit off a number, so that it can be read, and knows common units by their names.

Units are never converted: two known ones that differ make two numbers differ, whatever their values; one that is not
known, or stands on one side only, is left aside.

Left out: prefixes beyond those listed, and units of physics that no school task has.
"""

from __future__ import annotations

import re

# The first name of each line is what the others become; a plural s is dropped before.
_NAMES = """
mm millimeter millimetre|cm centimeter centimetre|m meter metre|km kilometer kilometre|in inch inche|ft foot feet
yd yard|mi mile|mg milligram|g gram gramme|kg kilogram kilo|lb pound lbs|oz ounce|s sec second|min minute|h hr hour
day|week|month|yr year|ml mL milliliter millilitre|l L liter litre|$ USD dollar|cent ¢|€ EUR euro|GBP £
"""
_KNOWN = {name: line.split()[0] for line in _NAMES.strip().replace("\n", "|").split("|") for name in line.split()}

_WORD = r"(?:[A-Za-z]{2,}|[mgshlLCFKWVJN])(?:\^\{?-?[123]\}?)?"
_BEHIND = re.compile(rf"(?<=[\d.}} ])\s*({_WORD}(?:(?:\s*[/·.-]\s*|\s+|\s*\\cdot\s*){_WORD}){{0,4}})\.?$")
_IN_COMMAND = re.compile(
    r"\\(?:text|textrm|textbf|textit|mathrm|mbox)\s*\{\s*([^{}]*)\}\s*(\^\s*\{?-?[123]\}?)?[.$\s]*$"
)
_LONG_WORD = re.compile(r"\s*[A-Za-z]{2}")
_QUOTIENT = re.compile(rf"\\[dt]?frac\s*\{{({_WORD})\}}\s*\{{({_WORD})\}}$")
# Words that change the value or join it to another one: a number with such a tail is not a number with a unit.
_NO_UNIT = re.compile(
    r"\b(?:and|or|not|to|than|about|thousand|million|billion|trillion|hundred|dozen|half|third|quarter|times|plus|minus"
    r"|over|by|mod|pi|sqrt|sin|cos|tan|log|ln|exp|if|is|was|since|because|approximately|roughly)\b",
    re.IGNORECASE,
)
_CURRENCY = re.compile(r"\\?\$|[€£¥₹]|\b(?:USD|EUR|GBP)\b|\\(?:euro|pounds)\b")
_CURRENCY_NAMES = {"\\$": "$", "USD": "$", "EUR": "€", "\\euro": "€", "£": "GBP", "\\pounds": "GBP"}


def take_currency(text: str) -> tuple[str, str]:
    """The text without signs of currency, and the one currency that it named, "" for none or several.

    Two plain dollar signs are the marks of a formula, not money.
    """
    found = [_CURRENCY_NAMES.get(str(sign), str(sign)) for sign in _CURRENCY.findall(text)]
    if text.count("$") - text.count("\\$") == 2:
        found = [sign for sign in found if sign != "$"] + ["$"] * text.count("\\$")
    return _CURRENCY.sub(" ", text), found[0] if len(set(found)) == 1 else ""


def take_unit(text: str) -> tuple[str, str]:
    """The text without the unit that it ends with, and its name if it is known."""
    text = _QUOTIENT.sub(r" \1/\2", text)
    found = _BEHIND.search(text)
    if found is None or _NO_UNIT.search(found[1]):
        return text, ""
    return text[: found.start()].strip(), _name(found[1])


def take_known_unit(text: str) -> tuple[str, str]:
    """An answer that needs algebra without the known unit that it ends with, and its name; unchanged and "" without one.

    By itself, one letter is a variable: it is a unit only in a command for text, as `\\text{ m}`.
    """
    found = _IN_COMMAND.search(text)
    if found and (unit := _name(found[1] + (found[2] or ""))):
        return text[: found.start()], unit
    rest, unit = take_unit(text)
    return (rest, unit) if unit and _LONG_WORD.match(text, len(rest)) else (text, "")


def _name(unit: str) -> str:
    """One spelling of a unit all of whose words are known, else ""."""
    unit = re.sub(r"[\^{}]", "", unit.strip().replace("\\cdot", "·"))
    unit = re.sub(r"\s*([/·])\s*|\s+", lambda found: found[1] or "·", unit)
    parts = re.split(r"([/·])", unit)  # words and the marks between them
    named = [part if part in "/·" else _word(part) for part in parts]
    return "".join(named) if all(named) else ""


def _word(word: str) -> str:
    bare = word.rstrip("23")
    for form in (bare, bare.lower(), bare.lower().removesuffix("s")):
        if form in _KNOWN:
            return _KNOWN[form] + word[len(bare) :]
    return ""
