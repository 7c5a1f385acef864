"""Turns raw rows into task rows: messages, gold answer, and the row itself for rewards that want more of it.

A row that cannot be used is an error that names it, or is left out and counted; no field is ever filled in silently.
Left out: what a single row means (`tasks.reading`), tokens (`tasks.prompt`), and the order of rows (`tasks.order`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any

from partita.tasks.files import DataError, RawRow, place_of
from partita.tasks.filters import checked_tests, fits
from partita.tasks.graders.math import math_correct
from partita.tasks.graders.sources import by_data_source
from partita.tasks.messages import Message
from partita.tasks.paths import Functions, raw_rows, rows_ahead
from partita.tasks.rates import PassRates
from partita.tasks.reading import Reader
from partita.tasks.settings import ColumnsConfig, DatasetConfig, PassRatesConfig, SourceConfig
from partita.tasks.split import digest, divided, is_held_out

__all__ = ["ColumnsConfig", "DataError", "DatasetConfig", "TaskRow", "TaskRows", "load_rows"]

MIX = "mix"
"""The column in which rows of several sources carry their source's name."""
_SHOWN, _LONGEST = 5, 800  # bad rows named in one error, and characters of each


@dataclass(frozen=True)
class TaskRow:
    """One prompt to sample from. `answer` is the gold answer as text, None for data without one; `row` is all columns.

    `uid` is the row's number and a hash of its prompt and answer, so equal rows have different uids; the name of its source
    stands before it where there are several. shots: messages that are examples, after a system message if there is one.
    templated: the one message is written in a chat template, see `tasks.templated`.
    """

    uid: str
    messages: tuple[Message, ...]
    answer: str | None
    row: Mapping[str, Any]
    shots: int = 0
    templated: bool = False


@dataclass(frozen=True)
class TaskRows:
    """What a data section came to: the rows, the rewards they bring along, and lines to show at the start.

    `functions` is empty when the data do not say how they are judged.
    """

    rows: tuple[TaskRow, ...]
    functions: Functions
    notes: tuple[str, ...]


@dataclass
class Intake:
    """Takes the raw rows of a source one after another, and counts those it leaves out.

    questions: of `rows`, by digest. bad: a line for each row that cannot be used. equal: rows left out by dedup. taken: raw
    rows so far.
    """

    reader: Reader
    rows: list[TaskRow] = field(default_factory=list[TaskRow])
    questions: list[str] = field(default_factory=list[str])
    bad: list[str] = field(default_factory=list[str])
    seen: set[str] = field(default_factory=set[str])
    equal: int = 0
    taken: int = 0

    def take(self, number: int, raw: RawRow) -> None:
        """Keep row `number`, or note why not."""
        self.taken += 1
        try:
            if raw.fault:
                raise DataError(raw.fault)
            asked = self.reader.read(raw.values)
        except DataError as error:
            self.bad.append(bad_row(raw, error))
            return
        name = digest([asked.messages, asked.answer])
        if self.reader.config.dedup and name in self.seen:
            self.equal += 1
        else:
            uid = f"{number}-{name[:8]}"
            self.rows.append(TaskRow(uid, asked.messages, asked.answer, raw.values, asked.shots, asked.templated))
            self.questions.append(asked.question)
        self.seen.add(name)

    def check(self) -> None:
        """Raises DataError for bad rows under on_bad_row=error, and when no row is left."""
        if self.bad and (self.reader.config.on_bad_row == "error" or not self.rows):
            raise DataError(told_bad_rows(self.bad, len(self.rows)))
        if not self.rows:
            raise DataError(f"{self.reader.config.path}: no row has all that `where` asks for")

    def notes(self) -> list[str]:
        """How many rows there are, how alike, and how many were left out."""
        path, rows = self.reader.config.path, self.rows
        answers = dict[str, set[str | None]]()
        for row in rows:
            answers.setdefault(digest(row.messages), set()).add(row.answer)
        several = sum(len(one) > 1 for one in answers.values())
        lines = [f"{path}: {len(rows)} rows, {len(answers)} distinct prompts"]
        lines[0] += f", {several} of them with different gold answers" if several else ""
        if self.bad:
            counted = f"{len(self.bad)} of {self.taken} rows"
            lines.append(f"{counted} left out (on_bad_row=skip); the first: {self.bad[0]}")
        if self.equal:
            lines.append(f"{self.equal} of {self.taken} rows left out (dedup): equal to a row before")
        return lines


def load_rows(config: DatasetConfig, *, seed: int, section: str = "train_dataset", held_out: bool = False) -> TaskRows:
    """Read, check and normalise all rows of a data section; `section` is only its name in messages. held_out: the rows that
    its share `held_out` keeps from training, instead of those to train on.

    Of rows that are read as a run goes (`streaming`) only the first `buffer_rows` of each source, for checks before anything
    is sampled, or the first that are held out. Raises DataError with the row and the reason, see `SourceConfig.on_bad_row`.
    """
    try:
        return _first(config, held_out) if config.streaming else _all(config, seed, held_out)
    except DataError as error:
        raise DataError(f"{section}: {error}") from error.__cause__


def _all(config: DatasetConfig, seed: int, held_out: bool) -> TaskRows:
    loaded = _by_source(config, lambda source: _source(source, seed))
    sides = divided(loaded.rows, loaded.questions, config.held_out)
    notes = (f"{len(sides[1])} of {len(loaded.rows)} rows held out, by their questions",) if config.held_out else ()
    rows, chosen = (sides[1], ()) if held_out else _by_pass_rate(sides[0], config)
    return TaskRows(rows, loaded.functions, (*loaded.notes, *notes, *chosen))


def _first(config: DatasetConfig, held_out: bool) -> TaskRows:
    """The first rows of each source that is streamed."""

    def head(source: DatasetConfig) -> _Loaded:
        blocks = Blocks(source)
        rows = blocks.held_out(source.buffer_rows) if held_out else (blocks.block(0) or [])
        told = f"read as it goes, {source.buffer_rows} rows at a time; these are the first"
        notes = (*blocks.reader.notes(), f"{source.path}: {told}{' that are held out' if held_out else ''}")
        return _Loaded(tuple(rows), (), blocks.functions, notes)

    loaded = _by_source(config, head)
    return TaskRows(loaded.rows, loaded.functions, loaded.notes)


@dataclass(frozen=True)
class _Loaded:
    rows: tuple[TaskRow, ...]
    questions: tuple[str, ...]
    functions: Functions
    notes: tuple[str, ...]


def _by_source(config: DatasetConfig, load: Callable[[DatasetConfig], _Loaded]) -> _Loaded:
    """The section's one source, or all of them, one after another."""
    if not config.mix:
        return load(config)
    found = dict[str, _Loaded]()
    for name in config.mix:
        try:
            one = load(config.source(name))
            found[name] = replace(one, rows=tuple(of_source(row, name) for row in one.rows))
        except DataError as error:
            raise DataError(f"mix.{name}: {error}") from error.__cause__
    return _merged(found)


def of_source(row: TaskRow, name: str) -> TaskRow:
    """A row that says which source it is from, in its uid and in a column. Raises DataError where it has such a column."""
    if MIX in row.row:
        raise DataError(f"row {row.uid} has a column {MIX!r}, which is to name its source; rename it")
    return replace(row, uid=f"{name}/{row.uid}", row={**row.row, MIX: name})


def _merged(found: Mapping[str, _Loaded]) -> _Loaded:
    rows = tuple(row for one in found.values() for row in one.rows)
    questions = tuple(question for one in found.values() for question in one.questions)
    notes = [f"{name}: {note}" for name, one in found.items() for note in one.notes]
    functions = next(iter(found.values())).functions
    if any(one.functions != functions for one in found.values()):
        told = ", ".join(f"{name} {_names(one.functions)}" for name, one in found.items())
        notes.append(f"the sources bring different rewards ({told}): name the run's in reward.functions")
        functions = ()
    return _Loaded(rows, questions, functions, tuple(notes))


def _names(functions: Functions) -> str:
    return " and ".join(function.__name__ for function in functions) or "none"


def _source(config: SourceConfig, seed: int) -> _Loaded:
    """The rows of one source."""
    opened = raw_rows(config, seed)
    if not opened.gold and config.columns.answer == "auto":
        config = replace(config, columns=replace(config.columns, answer=None))
    raw, readable = opened.rows, readable_rows(opened.rows, config)
    tests = checked_tests(readable, config.where)
    reader = Reader.of([row for row in readable if fits(row, tests)] or readable, config)
    intake = Intake(reader)
    for number, row in enumerate(raw, 1):
        if len(intake.rows) == config.size:
            break
        if fits(row, tests):
            intake.take(number, row)
    intake.check()
    if config.size is not None and len(intake.rows) < config.size:
        raise DataError(f"size={config.size}: {config.path} has only {len(intake.rows)} usable rows")
    notes = (*reader.notes(), *intake.notes(), *_chosen(config, len(raw), intake.taken))
    functions = opened.functions or judged_by(reader, readable)
    return _Loaded(tuple(intake.rows), tuple(intake.questions), functions, notes)


class Blocks:
    """The task rows of one source, block by block, for what does not fit into memory. How a row is read is decided by the first
    block. bad: rows left out so far that could not be used.

    Raises DataError when made, for a source that cannot be streamed or read.
    """

    def __init__(self, config: DatasetConfig) -> None:
        self._config, self._rates = config, rates_of(config)
        self._open = rows_ahead(config)
        self._at, self._rest = 0, self._open(0)
        self._head = self._raw(0)
        readable = readable_rows(self._head, config)
        self._tests = checked_tests(readable, config.where, whole=False)
        self.reader = Reader.of([row for row in readable if fits(row, self._tests)] or readable, config)
        self.functions, self.bad = judged_by(self.reader, readable), 0

    def block(self, number: int) -> list[TaskRow] | None:
        """The rows of a block to train on, counted from 0; None behind the end. Raises DataError for a bad row, unless
        on_bad_row=skip, which warns of the first.
        """
        intake = self._intake(number)
        if intake is None:
            return None
        wanted, share = self._config.pass_rates, self._config.held_out
        return [
            row
            for row, question in zip(intake.rows, intake.questions, strict=True)
            if not is_held_out(question, share) and (not wanted.files or is_wanted(row, wanted, self._rates))
        ]

    def held_out(self, most: int) -> list[TaskRow]:
        """The first rows that are held out. Raises DataError where there is none."""
        found, share = list[TaskRow](), self._config.held_out
        for number in count():
            intake = self._intake(number)
            if intake is None or len(found) >= most:
                break
            asked = zip(intake.rows, intake.questions, strict=True)
            found += [row for row, question in asked if is_held_out(question, share)]
        if not found:
            raise DataError(f"held_out={share} holds out none of its rows; change it, or set a valid_dataset")
        return found[:most]

    def _intake(self, number: int) -> Intake | None:
        """A block as it was read; None behind the end."""
        raw = self._head if number == 0 else self._raw(number)
        if not raw:
            return None
        intake = Intake(self.reader)
        for at, row in enumerate(raw, number * self._config.buffer_rows + 1):
            if fits(row, self._tests):
                intake.take(at, row)
        if intake.bad and self._config.on_bad_row == "error":
            intake.check()
        if intake.bad and not self.bad:
            first = f"left out (on_bad_row=skip), the first of {self._config.path}: {intake.bad[0]}"
            warnings.warn(first, stacklevel=2)
        self.bad += len(intake.bad)
        return intake

    def _raw(self, number: int) -> list[RawRow]:
        """The rows of a block: those that come next, or behind a place further on."""
        if number != self._at:
            self._at, self._rest = number, self._open(number * self._config.buffer_rows)
        self._at += 1
        return list(islice(self._rest, self._config.buffer_rows))


def readable_rows(raw: Sequence[RawRow], config: SourceConfig) -> list[RawRow]:
    """The rows without a fault. Raises DataError where there is none."""
    if not raw:
        raise DataError(f"{config.path}: no rows")
    readable = [row for row in raw if not row.fault]
    if not readable:
        raise DataError(told_bad_rows([f"{row.where}: {row.fault}" for row in raw], 0))
    return readable


def judged_by(reader: Reader, rows: Sequence[RawRow]) -> Functions:
    """The rewards that rows of this form bring along: worked solutions have a mathematical answer, rows in verl's layout say in
    `data_source` how they are judged.
    """
    if reader.form != "plain":
        return (math_correct,)
    verl = reader.answer == "reward_model.ground_truth" and any("data_source" in row.values for row in rows)
    return (by_data_source,) if verl else ()


def _chosen(config: SourceConfig, all_rows: int, read: int) -> list[str]:
    if not config.where or config.size is not None:
        return []
    return [f"{read} of {all_rows} rows are as `where` wants them"]


def _by_pass_rate(rows: tuple[TaskRow, ...], config: DatasetConfig) -> tuple[tuple[TaskRow, ...], tuple[str, ...]]:
    """The rows whose prompts were right as often as wanted, and a line about them. Raises DataError where none is left."""
    wanted = config.pass_rates
    if not wanted.files:
        return rows, ()
    rates = rates_of(config)
    kept = tuple(row for row in rows if is_wanted(row, wanted, rates))
    seen = sum(rates.rate(row.messages) is not None for row in rows)
    note = f"pass rates known of {seen} of {len(rows)} prompts; {len(kept)} kept"
    if not kept:
        limits = f"min {wanted.min}, max {wanted.max}, unseen={wanted.unseen}"
        raise DataError(f"pass_rates leaves no prompt: {note}, {limits}")
    return kept, (note,)


def rates_of(config: DatasetConfig) -> PassRates:
    """The counts that a section names. Raises DataError."""
    return PassRates.read([place_of(file) for file in config.pass_rates.files])


def is_wanted(row: TaskRow, wanted: PassRatesConfig, rates: PassRates) -> bool:
    """Whether a prompt was right as often as wanted."""
    rate = rates.rate(row.messages)
    if rate is None:
        return wanted.unseen == "keep"
    return (wanted.min or 0.0) <= rate <= (1.0 if wanted.max is None else wanted.max)


def bad_row(raw: RawRow, error: ValueError) -> str:
    """What is wrong with a row, on a line of bounded length: its values may be endless."""
    told = f"{raw.where}: {error}"
    return told if len(told) <= _LONGEST else f"{told[: _LONGEST - 3]}..."


def told_bad_rows(bad: Sequence[str], good: int) -> str:
    """The first of the complaints, how many there are beside `good` rows, and what leaves them out."""
    more = f"\n  and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    hint = "; on_bad_row=skip leaves them out" if good else ""
    listed = "\n  ".join(bad[:_SHOWN])
    return f"{len(bad)} of {len(bad) + good} rows cannot be used{hint}:\n  {listed}{more}"
