"""Turns raw rows into task rows: messages, gold answer, and the row itself for rewards that want more of it.

A row that cannot be used is an error that names it, or is left out and counted; no field is ever filled in silently.
Left out: what a single row means (`tasks.reading`), tokens (`tasks.prompt`), and the order of rows (`tasks.order`).
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from partita.tasks.catalog import TASKS, Split, Task, find_task
from partita.tasks.files import GROWING, DataError, RawRow, files_of, kind_of, read_path, rows_after
from partita.tasks.filters import checked_tests, fits
from partita.tasks.functions import LoadError
from partita.tasks.graders.math import math_correct
from partita.tasks.graders.sources import by_data_source
from partita.tasks.messages import Message
from partita.tasks.rates import PassRates
from partita.tasks.reading import Reader
from partita.tasks.settings import ColumnsConfig, DatasetConfig, PassRatesConfig, SourceConfig
from partita.tasks.split import digest, divided

__all__ = ["ColumnsConfig", "DataError", "DatasetConfig", "TaskRow", "TaskRows", "load_rows"]

MIX = "mix"
"""The column in which rows of several sources carry their source's name."""
_SHOWN = 5  # bad rows named in one error
Functions = tuple[Callable[..., Any], ...]


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

    questions: of `rows`, by digest. bad: a line for each row that cannot be used. taken: raw rows so far.
    """

    reader: Reader
    rows: list[TaskRow] = field(default_factory=list[TaskRow])
    questions: list[str] = field(default_factory=list[str])
    bad: list[str] = field(default_factory=list[str])
    seen: set[str] = field(default_factory=set[str])
    taken: int = 0

    def take(self, number: int, raw: RawRow) -> None:
        """Keep row `number`, or note why not."""
        self.taken += 1
        try:
            if raw.fault:
                raise DataError(raw.fault)
            asked = self.reader.read(raw.values)
        except DataError as error:
            self.bad.append(f"{raw.where}: {error}")
            return
        name = digest([asked.messages, asked.answer])
        if not (self.reader.config.dedup and name in self.seen):
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
            counted = f"{len(self.bad)} of {len(self.bad) + len(rows)} rows"
            lines.append(f"{counted} left out (on_bad_row=drop); the first: {self.bad[0]}")
        return lines


def load_rows(config: DatasetConfig, *, seed: int, section: str = "train_dataset", held_out: bool = False) -> TaskRows:
    """Read, check and normalise all rows of a data section; `section` is only its name in messages. held_out: the rows that
    its share `held_out` keeps from training, instead of those to train on.

    Raises DataError with the row and the reason, see `SourceConfig.on_bad_row`.
    """
    if config.streaming:
        raise DataError(f"{section}: streaming is for the rows that are trained on; leave it out here")
    try:
        loaded = _mixed(config, seed) if config.mix else _source(config, seed, "")
        sides = divided(loaded.rows, loaded.questions, config.held_out)
        notes = (f"{len(sides[1])} of {len(loaded.rows)} rows held out, by their questions",) if config.held_out else ()
        rows, chosen = (sides[1], ()) if held_out else _by_pass_rate(sides[0], config)
    except DataError as error:
        raise DataError(f"{section}: {error}") from error.__cause__
    return TaskRows(rows, loaded.functions, (*loaded.notes, *notes, *chosen))


@dataclass(frozen=True)
class _Loaded:
    rows: tuple[TaskRow, ...]
    questions: tuple[str, ...]
    functions: Functions
    notes: tuple[str, ...]


def _mixed(config: DatasetConfig, seed: int) -> _Loaded:
    """All sources, one after another; each row says which it is from, in its uid and in a column."""
    rows, questions, notes = list[TaskRow](), list[str](), list[str]()
    rewards = dict[str, Functions]()
    for name, source in config.mix.items():
        try:
            found = _source(source, seed, f"{name}/")
        except DataError as error:
            raise DataError(f"mix.{name}: {error}") from error.__cause__
        if taken := next((row for row in found.rows if MIX in row.row), None):
            raise DataError(f"mix.{name}: row {taken.uid} has a column {MIX!r}, which is to name its source; rename it")
        rows += [replace(row, row={**row.row, MIX: name}) for row in found.rows]
        questions += found.questions
        notes += [f"{name}: {note}" for note in found.notes]
        rewards[name] = found.functions
    functions = next(iter(rewards.values()))
    if any(other != functions for other in rewards.values()):
        told = ", ".join(f"{name} {_names(own)}" for name, own in rewards.items())
        notes.append(f"the sources bring different rewards ({told}): name the run's in reward.functions")
        functions = ()
    return _Loaded(tuple(rows), tuple(questions), functions, tuple(notes))


def _names(functions: Functions) -> str:
    return " and ".join(function.__name__ for function in functions) or "none"


def _source(config: SourceConfig, seed: int, before: str) -> _Loaded:
    """The rows of one source. before: what its uids begin with."""
    raw, functions = raw_rows(config, seed)
    readable = readable_rows(raw, config)
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
    rows = tuple(replace(row, uid=f"{before}{row.uid}") for row in intake.rows) if before else tuple(intake.rows)
    notes = (*reader.notes(), *intake.notes(), *_chosen(config, len(raw), intake.taken))
    return _Loaded(rows, tuple(intake.questions), functions or judged_by(reader, readable), notes)


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
    return PassRates.read([Path(file).expanduser() for file in config.pass_rates.files])


def is_wanted(row: TaskRow, wanted: PassRatesConfig, rates: PassRates) -> bool:
    """Whether a prompt was right as often as wanted."""
    rate = rates.rate(row.messages)
    if rate is None:
        return wanted.unseen == "keep"
    return (wanted.min or 0.0) <= rate <= (1.0 if wanted.max is None else wanted.max)


def raw_rows(config: SourceConfig, seed: int) -> tuple[list[RawRow], Functions]:
    """Rows as they stand in their file, folder, data set or task, and the rewards that a task brings. Raises DataError."""
    if config.path is None:
        raise DataError(f"path is not set; give a file, a folder, a hub name or a built-in task: {', '.join(TASKS)}")
    path = Path(config.path).expanduser()
    task = task_of(config.path)
    if task is not None:
        return _task_rows(task, config, seed), task.functions
    # Importing datasets takes a second that runs on tasks and files need not spend.
    if is_saved(path):
        return importlib.import_module("partita.tasks.hub").read_saved(path, config.split), ()
    if not is_hub_name(config.path):
        return read_path(path, config.split), ()
    if "/" not in config.path and (near := difflib.get_close_matches(config.path, TASKS, 1)):
        raise DataError(f"{config.path!r}: no such task, file or folder; near: {near[0]}")
    return importlib.import_module("partita.tasks.hub").read_hub(config.path, config.subset, config.split), ()


def rows_ahead(config: SourceConfig) -> Callable[[int], Iterator[RawRow]]:
    """Opens a source behind its first so many rows, to be read as it goes.

    Raises DataError for what can only be read whole: tasks, and files of other kinds than .jsonl and .parquet.
    """
    path = Path(config.path or "").expanduser()
    if config.path is None or task_of(config.path) is not None:
        raise DataError(f"streaming reads files and data sets, and path={config.path} is neither; leave streaming out")
    if is_saved(path):
        return lambda skip: importlib.import_module("partita.tasks.hub").stream_saved(path, config.split, skip)
    if is_hub_name(config.path):
        hub = importlib.import_module("partita.tasks.hub")
        return lambda skip: hub.stream_hub(config.path, config.subset, config.split, skip)
    files = files_of(path, config.split)
    if whole := [file.name for file in files if kind_of(file) not in GROWING]:
        raise DataError(f"streaming: {whole[0]} can only be read whole; make it a .jsonl or .parquet file")
    return lambda skip: rows_after(files, skip)


def is_saved(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk` of `datasets`."""
    return path.is_dir() and any((path / name).exists() for name in ("dataset_dict.json", "state.json"))


def task_of(path: str) -> Task | None:
    """The task that a data section's `path` names, None where it names something else. Raises DataError."""
    try:
        return None if Path(path).expanduser().is_file() else find_task(path)
    except LoadError as error:
        raise DataError(str(error)) from error


def is_hub_name(path: str) -> bool:
    """Whether a `path` that names no task names a data set of the hub: it is neither there nor called like a file."""
    place = Path(path).expanduser()
    return not place.exists() and kind_of(place) is None


def _task_rows(task: Task, config: SourceConfig, seed: int) -> list[RawRow]:
    splits: dict[str, Split] = {"train": "train", "test": "test", "valid": "test", "validation": "test"}
    if config.split not in splits:
        raise DataError(f"split={config.split!r}: task {task.name!r} has the splits train and test")
    try:
        rows = task.rows(splits[config.split], config.size, seed)
    except ValueError as error:
        raise DataError(str(error)) from error
    return [RawRow(f"{task.name} [{config.split}] row {number}", row) for number, row in enumerate(rows, 1)]


def told_bad_rows(bad: Sequence[str], good: int) -> str:
    """The first of the complaints, how many there are beside `good` rows, and what leaves them out."""
    more = f"\n  and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    hint = "; on_bad_row=drop leaves them out" if good else ""
    listed = "\n  ".join(bad[:_SHOWN])
    return f"{len(bad)} of {len(bad) + good} rows cannot be used{hint}:\n  {listed}{more}"
