"""What the `path` of a data section names: a task, a file, a folder, a saved data set or one of the hub; and its raw rows.

Left out: reading the files themselves (`tasks.files`, `tasks.hub`), and what a row means (`tasks.reading`).
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.tasks.catalog import TASKS, Split, Task, find_task
from partita.tasks.files import GROWING, DataError, RawRow, files_of, kind_of, place_of, read_path, rows_after
from partita.tasks.functions import LoadError
from partita.tasks.settings import SourceConfig

Functions = tuple[Callable[..., Any], ...]


@dataclass(frozen=True)
class Opened:
    """Rows as they stand in their file, folder, data set or task; the rewards that a task brings, and whether its rows have gold
    answers.
    """

    rows: list[RawRow]
    functions: Functions = ()
    gold: bool = True


def raw_rows(config: SourceConfig, seed: int) -> Opened:
    """All rows that a `path` names. Raises DataError."""
    if config.path is None:
        raise DataError(
            f"path is not set; give a file, a folder, a hub name or a built-in task: {', '.join(TASKS)}, reasoning_gym/NAME"
        )
    path = place_of(config.path)
    task = task_of(config.path)
    if task is not None:
        return Opened(_task_rows(task, config, seed), task.functions, task.gold)
    # Importing datasets takes a second that runs on tasks and files need not spend.
    if is_saved(path):
        return Opened(importlib.import_module("partita.tasks.hub").read_saved(path, config.split))
    if not is_hub_name(config.path):
        return Opened(read_path(path, config.split))
    if "/" not in config.path and (near := difflib.get_close_matches(config.path, TASKS, 1)):
        raise DataError(f"{config.path!r}: no such task, file or folder; near: {near[0]}")
    return Opened(importlib.import_module("partita.tasks.hub").read_hub(config.path, config.subset, config.split))


def rows_ahead(config: SourceConfig) -> Callable[[int], Iterator[RawRow]]:
    """Opens a source behind its first so many rows, to be read as it goes.

    Raises DataError for what can only be read whole: tasks, and files of other kinds than .jsonl and .parquet.
    """
    path = place_of(config.path or "")
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
        return None if place_of(path).is_file() else find_task(path)
    except LoadError as error:
        raise DataError(str(error)) from error


def is_hub_name(path: str) -> bool:
    """Whether a `path` that names no task names a data set of the hub: it is neither there nor called like a file."""
    place = place_of(path)
    return not place.exists() and kind_of(place) is None


def _task_rows(task: Task, config: SourceConfig, seed: int) -> list[RawRow]:
    splits: dict[str, Split] = {"train": "train", "test": "test", "valid": "test", "validation": "test"}
    if config.split not in splits:
        raise DataError(f"split={config.split!r}: task {task.name!r} has the splits train and test")
    try:
        rows = list(task.rows(splits[config.split], config.size, seed))
    except ValueError as error:
        raise DataError(str(error)) from error
    if odd := next((row for row in rows if not isinstance(row, dict)), None):
        raise DataError(f"task {task.name!r} gave a {type(odd).__name__} as a row; a row is a dict with named columns")
    return [RawRow(f"{task.name} [{config.split}] row {number}", row) for number, row in enumerate(rows, 1)]
