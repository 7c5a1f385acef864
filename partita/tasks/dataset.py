"""Turns raw rows into task rows: messages, gold answer, and the row itself for rewards that want more of it.

A row that cannot be used is an error that names it, or is left out and counted; no field is ever filled in silently.
Left out: tokens (`tasks.prompt`), and the order of rows (`tasks.cursor`).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from partita.tasks.catalog import TASKS, Split, Task, find_task
from partita.tasks.files import SUFFIXES, DataError, RawRow, read_path
from partita.tasks.functions import LoadError
from partita.tasks.graders.math import math_correct
from partita.tasks.messages import Message, read_messages
from partita.tasks.settings import BOXED_INSTRUCTION, ColumnsConfig, DatasetConfig

__all__ = ["ColumnsConfig", "DataError", "DatasetConfig", "TaskRow", "TaskRows", "load_rows"]

_PROMPT_NAMES = ("messages", "prompt", "question", "problem")
_SHOWN = 5  # bad rows named in one error
_MISSING = object()


@dataclass(frozen=True)
class TaskRow:
    """One prompt to sample from. `answer` is the gold answer as text, None for data without one; `row` is all columns.

    `uid` is the row's number and a hash of its prompt and answer, so equal rows have different uids.
    """

    uid: str
    messages: tuple[Message, ...]
    answer: str | None
    row: Mapping[str, Any]


@dataclass(frozen=True)
class TaskRows:
    """What a data section came to: the rows, the rewards they bring along, and lines to show at the start.

    `functions` is empty when the data do not say how they are judged.
    """

    rows: tuple[TaskRow, ...]
    functions: tuple[Callable[..., Any], ...]
    notes: tuple[str, ...]


def load_rows(config: DatasetConfig, *, seed: int, section: str = "train_dataset") -> TaskRows:
    """Read, check and normalise all rows of a data section; `section` is only its name in messages.

    Raises DataError with the row and the reason, see `DatasetConfig.on_bad_row`.
    """
    try:
        raw, functions = raw_rows(config, seed)
        if not raw:
            raise DataError(f"{config.path}: no rows")
        reader = _Reader.of(raw, config)
        rows, notes = _read_all(raw, reader, config)
    except DataError as error:
        raise DataError(f"{section}: {error}") from error.__cause__
    if reader.hashes and not functions:
        functions = (math_correct,)
    return TaskRows(rows, functions, (*reader.notes(), *notes))


def raw_rows(config: DatasetConfig, seed: int) -> tuple[list[RawRow], tuple[Callable[..., Any], ...]]:
    """Rows as they stand in their file, folder, data set or task, and the rewards that a task brings. Raises DataError."""
    if config.path is None:
        raise DataError(f"path is not set; give a file, a folder, a hub name or a built-in task: {', '.join(TASKS)}")
    path = Path(config.path).expanduser()
    task = task_of(config.path)
    if task is not None:
        return _task_rows(task, config, seed), task.functions
    # Importing datasets takes a second that runs on tasks and files need not spend.
    if path.is_dir() and any((path / name).exists() for name in ("dataset_dict.json", "state.json")):
        return importlib.import_module("partita.tasks.hub").read_saved(path, config.split), ()
    if not is_hub_name(config.path):
        return read_path(path, config.split), ()
    if "/" not in config.path and (near := difflib.get_close_matches(config.path, TASKS, 1)):
        raise DataError(f"{config.path!r}: no such task, file or folder; near: {near[0]}")
    return importlib.import_module("partita.tasks.hub").read_hub(config.path, config.subset, config.split), ()


def task_of(path: str) -> Task | None:
    """The task that a data section's `path` names, None where it names something else. Raises DataError."""
    try:
        return None if Path(path).expanduser().is_file() else find_task(path)
    except LoadError as error:
        raise DataError(str(error)) from error


def is_hub_name(path: str) -> bool:
    """Whether a `path` that names no task names a data set of the hub: it is neither there nor called like a file."""
    place = Path(path).expanduser()
    return not place.exists() and place.suffix not in SUFFIXES


def _task_rows(task: Task, config: DatasetConfig, seed: int) -> list[RawRow]:
    splits: dict[str, Split] = {"train": "train", "test": "test", "valid": "test", "validation": "test"}
    if config.split not in splits:
        raise DataError(f"split={config.split!r}: task {task.name!r} has the splits train and test")
    try:
        rows = task.rows(splits[config.split], config.size, seed)
    except ValueError as error:
        raise DataError(str(error)) from error
    return [RawRow(f"{task.name} [{config.split}] row {number}", row) for number, row in enumerate(rows, 1)]


@dataclass(frozen=True)
class _Reader:
    """How the rows of this data set are read. `hashes`: the gold answer follows the last ####."""

    prompt: str
    answer: str | None
    hashes: bool
    instruction: str | None
    system: str | None

    @classmethod
    def of(cls, raw: Sequence[RawRow], config: DatasetConfig) -> _Reader:
        """Decide once for all rows which columns are read and how. Raises DataError when a column does not exist."""
        columns = {column: None for row in raw for column in row.values}
        prompt = config.columns.prompt or _prompt_column(list(columns))
        answer = config.columns.answer
        for column, key in ((prompt, "columns.prompt"), (answer, "columns.answer (null if no reward needs it)")):
            if column is not None and column not in columns and column.split(".")[0] not in columns:
                raise DataError(
                    f"{raw[0].where}: no column {column!r}{_near(column, columns)}; "
                    f"the columns are {', '.join(columns)}; set {key}"
                )
        hashes = config.answer_format == "gsm8k" or (
            config.answer_format == "auto"
            and answer is not None
            and any("####" in value for row in raw if isinstance(value := _cell(row.values, answer), str))
        )
        instruction = config.instruction
        if instruction == "auto":
            instruction = BOXED_INSTRUCTION if hashes else None
        return cls(prompt, answer, hashes, instruction, config.system)

    def read(self, raw: RawRow) -> tuple[tuple[Message, ...], str | None]:
        """Messages and gold answer of one row. Raises DataError with what is wrong, the row not named."""
        messages = read_messages(_required(raw.values, self.prompt), self.prompt)
        if self.system is not None:
            if messages[0]["role"] == "system":
                raise DataError(
                    "has a system message of its own, and `system` is set; set it to null or take the row's out"
                )
            messages = ({"role": "system", "content": self.system}, *messages)
        if self.instruction:
            messages = _instructed(messages, self.instruction)
        answer = None if self.answer is None else gold_text(_required(raw.values, self.answer), self.answer)
        if answer is not None and self.hashes:
            answer = _after_hashes(answer, self.answer)
        return messages, answer

    def notes(self) -> list[str]:
        """What was decided, for the start of a run."""
        gold = "no gold answer" if self.answer is None else f"gold answers from {self.answer!r}"
        lines = [f"prompts from {self.prompt!r}, {gold}{' after the last ####' if self.hashes else ''}"]
        return [*lines, f"after each prompt: {self.instruction}"] if self.instruction else lines


def _instructed(messages: tuple[Message, ...], instruction: str) -> tuple[Message, ...]:
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        raise DataError("has no user message that `instruction` could follow; set it to null")
    last = users[-1]
    told = {**messages[last], "content": f"{messages[last]['content']}\n{instruction}"}
    return (*messages[:last], told, *messages[last + 1 :])


def _prompt_column(columns: Sequence[str]) -> str:
    found = [name for name in _PROMPT_NAMES if name in columns]
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"columns {' and '.join(found)} could all be the prompt; set columns.prompt to one of them")
    near = next((match for name in _PROMPT_NAMES if (match := _near(name, columns))), "")
    raise DataError(
        f"no column called {', '.join(_PROMPT_NAMES)}{near}; the columns are {', '.join(columns)}; "
        "set columns.prompt to the one with the prompt"
    )


def _near(name: str, columns: Mapping[str, Any] | Sequence[str]) -> str:
    near = difflib.get_close_matches(name.split(".")[0], list(columns), 1, 0.7)
    return f" (near: {near[0]})" if near else ""


def _cell(values: Mapping[str, Any], column: str) -> Any:
    """The value of a column, a dotted name reaching inside; _MISSING where there is none."""
    found: Any = values
    for part in [column] if column in values else column.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return _MISSING
        found = found[part]
    return found


def _required(values: Mapping[str, Any], column: str) -> Any:
    value = _cell(values, column)
    if value is _MISSING:
        raise DataError(f"no {column!r}{_near(column, values)}")
    return value


def gold_text(value: object, column: str) -> str:
    """A gold answer as text; numbers in their shortest form, 42.0 as "42". Raises DataError for anything else."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value):
        return str(int(value)) if value == int(value) else str(value)
    what = "null" if value is None else "empty" if value == "" else f"{value!r} ({type(value).__name__})"
    raise DataError(f"{column!r} is {what[:120]}; a gold answer must be text or a number")


def _after_hashes(text: str, column: str | None) -> str:
    _, hashes, gold = text.rpartition("####")
    gold = gold.strip().replace(",", "")
    if hashes and gold:
        return gold
    if not hashes and len(text) < 40 and text.replace(",", "").lstrip("-").replace(".", "", 1).isdigit():
        raise DataError(
            f"{column!r} has no '#### answer', only {text!r}; set answer_format=plain if that is the whole answer"
        )
    raise DataError(f"{column!r} has no '#### answer' at its end: {text[-60:]!r}")


def _read_all(raw: Sequence[RawRow], reader: _Reader, config: DatasetConfig) -> tuple[tuple[TaskRow, ...], list[str]]:
    rows: list[TaskRow] = []
    bad: list[str] = []
    seen: set[str] = set()
    for number, one in enumerate(raw, 1):
        if len(rows) == config.size:
            break
        try:
            messages, answer = reader.read(one)
        except DataError as error:
            bad.append(f"{one.where}: {error}")
            continue
        digest = _digest(messages, answer)
        if not (config.dedup and digest in seen):
            rows.append(TaskRow(f"{number}-{digest[:8]}", messages, answer, one.values))
        seen.add(digest)
    if bad and (config.on_bad_row == "error" or not rows):
        raise DataError(told_bad_rows(bad, len(rows)))
    if config.size is not None and len(rows) < config.size:
        raise DataError(f"size={config.size}: {config.path} has only {len(rows)} usable rows")
    distinct = len({_digest(row.messages, None) for row in rows})
    notes = [f"{config.path}: {len(rows)} rows, {distinct} distinct prompts"]
    if bad:
        counted = f"{len(bad)} of {len(bad) + len(rows)} rows"
        notes.append(f"{counted} left out (on_bad_row=drop); the first: {bad[0]}")
    return tuple(rows), notes


def told_bad_rows(bad: Sequence[str], good: int) -> str:
    """The first of the complaints, how many there are beside `good` rows, and what leaves them out."""
    more = f"\n  and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    hint = "; on_bad_row=drop leaves them out" if good else ""
    listed = "\n  ".join(bad[:_SHOWN])
    return f"{len(bad)} of {len(bad) + good} rows cannot be used{hint}:\n  {listed}{more}"


def _digest(messages: Sequence[Message], answer: str | None) -> str:
    return hashlib.blake2b(json.dumps([messages, answer], default=str).encode(), digest_size=16).hexdigest()
