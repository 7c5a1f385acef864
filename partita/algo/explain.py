"""An algorithm in words: its objective, keys, parts, paper, what is idle or unwise in it, and how it differs from another.

Left out: where keys come from. A preset is known by its name; a config file is loaded by the caller and comes as a
`Subject`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, cast

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose, controllers
from partita.algo.keys import AlgorithmKeys
from partita.algo.objective import Row, first_sentence, in_symbols, lettered, objective
from partita.algo.presets import keys_of, preset
from partita.algo.review import review
from partita.algo.sources import SOURCES, PaperValue, Source
from partita.algo.unified import coefficient_rows

BASELINE = "grpo"
SLOTS = (
    "keep", "shape", "assign", "norm", "rows", "balance", "correct", "reduce", "center", "ratio", "gate", "penalties", "value",
)  # fmt: skip
"""The slots of an algorithm in the order in which they act."""
CITATION = re.compile(r" \([^()]*\d{4}[^()]*\)")
SYMBOLS_END = re.compile(r"(?<! ): ")  # a proportion has a space before its colon


@dataclass(frozen=True)
class Subject:
    """What is explained. `n_samples` and `max_new_tokens` are those of `gconfig`; `part_weights` the reward functions'.

    given: the keys of `actor` to list, by their full path; None lists those that are not at their default. beside: keys
    elsewhere that belong to the algorithm, by their full path.
    """

    title: str
    keys: AlgorithmKeys
    n_samples: int = 8
    max_new_tokens: int = 1024
    part_weights: tuple[float, ...] = ()
    given: Mapping[str, Any] | None = None
    beside: Mapping[str, Any] = field(default_factory=dict[str, Any])
    source: Source | None = None

    def composed(self) -> Algorithm:
        """The parts. Raises ValueError for keys that exclude each other."""
        return compose(
            self.keys, n_samples=self.n_samples, max_new_tokens=self.max_new_tokens, part_weights=self.part_weights
        )

    def in_letters(self) -> Algorithm:
        """The parts, with a letter for each number that a rule moves."""
        return lettered(self.composed(), controllers(self.keys))


@dataclass(frozen=True)
class Chapter:
    """One heading and its rows: a label, which may be empty, and a line. `formula` rows are set as they stand."""

    title: str
    rows: tuple[Row, ...] = field(default=())
    formula: bool = False

    def markdown(self) -> list[str]:
        """Bullets, or a fenced block of aligned formulas."""
        if self.formula:
            return [f"## {self.title}", "", "```", *_aligned(self.rows), "```", ""]
        bullets = [f"- `{label}`: {line}" if label else f"- {line}" for label, line in self.rows]
        return [f"## {self.title}", "", *bullets, ""]

    def text(self) -> list[str]:
        """The heading alone on its line, rows indented and aligned."""
        return [self.title, *(f"  {line}" for line in _aligned(self.rows)), ""]


def subject(name: str) -> Subject:
    """A preset. Raises ValueError, with the choices, for an unknown name."""
    made = preset(name)
    beside = {key: made.pop(key) for key in tuple(made) if "." in key}
    given = {f"actor.{key}": value for key, value in made.items()}
    return Subject(name, keys_of(name), given=given, beside=beside, source=SOURCES[name])


def explain(what: str | Subject, *, against: str | None = None, markdown: bool = True) -> list[str]:
    """Lines on a preset or on a config, in Markdown or as plain text for a terminal.

    The last chapters compare with the preset `against`, by default grpo. Raises ValueError for an unknown name, and for
    keys that exclude each other.
    """
    told = subject(what) if isinstance(what, str) else what
    return page(told.title, chapters(told, against), markdown=markdown)


def page(title: str, told: Iterable[Chapter], *, markdown: bool) -> list[str]:
    """Lines: the title, then every chapter that has rows."""
    lines = [f"# {title}", ""] if markdown else [title, "=" * len(title), ""]
    for chapter in told:
        if chapter.rows:
            lines += chapter.markdown() if markdown else chapter.text()
    return lines[:-1]


def chapters(told: Subject, against: str | None = None) -> list[Chapter]:
    """Everything that is known of a subject, without empty chapters."""
    algorithm, rules = told.composed(), controllers(told.keys)
    found = review(told.keys, n_samples=told.n_samples, max_new_tokens=told.max_new_tokens)
    filled = f"n_samples {told.n_samples}, max_new_tokens {told.max_new_tokens}"
    whole = [
        Chapter("Objective", (*objective(algorithm, rules), *_sampling(told)), formula=True),
        Chapter("Gradient coefficient", tuple(coefficient_rows(told.in_letters())), formula=True),
        *([] if told.source is None else _published(told, told.source)),
        Chapter("Keys", tuple((path, yaml(value)) for path, value in _listed(told).items())),
        Chapter(f"Parts ({filled})", tuple(described(algorithm))),
        Chapter("Needs", _plain([_needs(algorithm)])),
        Chapter("Without effect", _plain(found.inactive)),
        Chapter("Filled in", _plain(found.assumed)),
        Chapter("Advice", _plain(found.advice)),
    ]
    if against is not None or told.title != BASELINE:
        other = replace(subject(against or BASELINE), max_new_tokens=told.max_new_tokens)
        rows = (*difference(told.keys, other.keys), *_differing_beside(told.beside, other.beside))
        whole.append(Chapter(f"Difference to {other.title}: keys", rows))
        whole.append(Chapter(f"Difference to {other.title}: parts", tuple(parts_difference(told, other))))
    return [chapter for chapter in whole if chapter.rows]


def described(algorithm: Algorithm) -> Iterator[Row]:
    """One row for each part, in the order in which they act: its slot, its values, and what it does."""
    for slot in SLOTS:
        for part in filling(algorithm, slot):
            yield slot, f"{shown(part)}: {first_sentence(part)}"


def difference(keys: AlgorithmKeys, other: AlgorithmKeys) -> list[Row]:
    """`value here (value there)` for every key on which the two differ, by its path below `actor`."""
    return list(_differing(keys, other, "", AlgorithmKeys))


def parts_difference(told: Subject, other: Subject) -> Iterator[Row]:
    """For every slot that is filled differently: what each of the two does there."""
    here, there = told.in_letters(), other.in_letters()
    for slot in SLOTS:
        mine, theirs = filling(here, slot), filling(there, slot)
        if mine != theirs or _in_words(mine, False) != _in_words(theirs, False):
            kinds = {type(part) for part in mine} != {type(part) for part in theirs}
            yield slot, f"{_in_words(mine, kinds)}; {other.title}: {_in_words(theirs, kinds)}"


def filling(algorithm: Algorithm, slot: str) -> tuple[object, ...]:
    """The parts in a slot: none, one, or several."""
    filled: Any = getattr(algorithm, slot)
    if isinstance(filled, tuple):
        return cast(tuple[object, ...], filled)
    return () if filled is None else (filled,)


def yaml(value: Any) -> str:
    """A value as a config file has it, on one line; of a section, only what is not at its default."""
    if is_dataclass(value) and not isinstance(value, type):
        default = type(value)()
        named = {item.name: getattr(value, item.name) for item in fields(value)}
        value = {key: item for key, item in named.items() if item != getattr(default, key)} or named
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return "{" + ", ".join(f"{key}: {yaml(item)}" for key, item in items) + "}"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def shown(part: Any) -> str:
    """A part as it would be written: its name, and the values that are not its defaults."""
    if callable(part) and hasattr(part, "__name__"):
        return part.__name__
    if not is_dataclass(part):
        return str(part)
    values = ((item, getattr(part, item.name)) for item in fields(part))
    inside = ", ".join(f"{item.name}={shown(value)}" for item, value in values if value != item.default)
    return f"{type(part).__name__}({inside})"


def _published(told: Subject, source: Source) -> list[Chapter]:
    where = ", ".join(str(item) for item in (source.year, source.section) if item)
    title = ". ".join(filter(None, [source.title, where, source.url]))
    return [
        Chapter("Source", _plain([title])),
        Chapter("The source's formula", _plain(source.formula), formula=True),
        Chapter("The source's values", tuple((item.key, _compared(told.keys, item)) for item in source.values)),
    ]


def _compared(keys: AlgorithmKeys, item: PaperValue) -> str:
    """The published value, where it stands, and ours where the preset departs from it."""
    departs = f"; here {yaml(value_at(keys, item.key))}" if item.differs else ""
    return f"{yaml(item.value)} ({item.where}){departs}"


def value_at(keys: AlgorithmKeys, path: str) -> Any:
    """The value of `actor.a.b`; None where a section on the way is absent. Raises ValueError for another path."""
    root, *names = path.split(".")
    if root != "actor":
        raise ValueError(f"{path} is not a key of `actor`")
    value: Any = keys
    for name in names:
        value = None if value is None else getattr(value, name)
    return value


def _sampling(told: Subject) -> Iterator[Row]:
    if told.keys.mixed_group_retry is not None:
        yield "sampling", f"a group without both right and wrong samples is drawn again, {told.keys.mixed_group_retry}x"
    yield from (("sampling", f"{path}: {yaml(value)}") for path, value in told.beside.items())


def _listed(told: Subject) -> Mapping[str, Any]:
    default = AlgorithmKeys()
    named = {item.name: getattr(told.keys, item.name) for item in fields(AlgorithmKeys)}
    changed = {f"actor.{name}": value for name, value in named.items() if value != getattr(default, name)}
    return {**(changed if told.given is None else told.given), **told.beside}


def _needs(algorithm: Algorithm) -> str:
    return ", ".join(sorted(algorithm.needs)) or "the sampled tokens and their rewards only"


def _in_words(parts: tuple[object, ...], kinds: bool) -> str:
    """Formulas and, where the two sides have parts of different kinds, what the parts are for."""
    return " and ".join(_symbols_and_sense(part) if kinds else in_symbols(part) for part in parts) or "nothing"


def _symbols_and_sense(part: object) -> str:
    _, *sense = SYMBOLS_END.split(CITATION.sub("", first_sentence(part)), maxsplit=1)
    return f"{in_symbols(part)} ({sense[0].rstrip('.')})" if sense else in_symbols(part)


def _differing(mine: Any, theirs: Any, prefix: str, declared: type[Any]) -> Iterator[Row]:
    for item in fields(declared):
        left, right = getattr(mine, item.name), getattr(theirs, item.name)
        if is_dataclass(left) and is_dataclass(right):
            yield from _differing(left, right, f"{prefix}{item.name}.", cast(type[Any], type(left)))
        elif left != right:
            yield prefix + item.name, f"{yaml(left)} ({yaml(right)})"


def _differing_beside(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Row]:
    for path in dict.fromkeys((*mine, *theirs)):
        left, right = (yaml(side[path]) if path in side else "not set" for side in (mine, theirs))
        if left != right:
            yield path, f"{left} ({right})"


def _plain(lines: Iterable[str]) -> tuple[Row, ...]:
    return tuple(("", line) for line in lines)


def _aligned(rows: Iterable[Row]) -> list[str]:
    kept = list(rows)
    width = max((len(label) for label, _ in kept), default=0)
    return [f"{label:<{width}}  {line}" if width else line for label, line in kept]
