"""Reads rows as they lie in files: .jsonl, .json, .csv and .parquet, one file or a folder of them.

Left out: what a row means (`tasks.dataset`), and names on a hub (`tasks.hub`).
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import ArrowException, parquet

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_SPLIT_NAMES = ("train", "test", "validation", "valid", "val", "dev", "eval")


class DataError(ValueError):
    """Rows that cannot be used; the message names the file, the row and what is wrong with it."""


@dataclass(frozen=True)
class RawRow:
    """A row as read. `where` tells a person which one it is; rows are counted from 1 in each file."""

    where: str
    values: dict[str, Any]


def read_path(path: Path, split: str) -> list[RawRow]:
    """All rows of a file, or of the files of a folder that belong to the split, in the order of their names.

    Raises DataError for a missing or unknown file, text that is not UTF-8, and broken JSON (with its line).
    """
    files = _files_of_split(path, split) if path.is_dir() else [path]
    return [row for file in files for row in _read_file(file)]


def _files_of_split(folder: Path, split: str) -> list[Path]:
    files = sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    if not files:
        raise DataError(f"{folder}: no {', '.join(SUFFIXES)} file in this folder")
    named = {file: _split_of(file, folder) for file in files}
    if not any(named.values()):
        return files
    chosen = [file for file in files if named[file] == split]
    if not chosen:
        listed = ", ".join(str(file.relative_to(folder)) for file in files[:8])
        raise DataError(f"{folder}: no file of split {split!r}; the folder has {listed}")
    return chosen


def _split_of(file: Path, folder: Path) -> str | None:
    """The split in the file's name (`train.jsonl`, `train-00000-of-2.parquet`) or in a folder's above it."""
    for part in reversed(file.relative_to(folder).parts):
        word = re.split(r"[-_.]", part.lower())[0]
        if word in _SPLIT_NAMES:
            return word
    return None


def _read_file(file: Path) -> list[RawRow]:
    if not file.exists():
        raise DataError(f"{file}: no such file{_near_files(file)}")
    readers = {".jsonl": _json_lines, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    if file.suffix not in readers:
        raise DataError(f"{file}: unknown kind of file; known are {', '.join(SUFFIXES)}")
    try:
        rows = list(readers[file.suffix](file))
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text at byte {error.start}") from error
    return [RawRow(f"{file.name} row {number}", row) for number, row in enumerate(rows, 1)]


def _near_files(file: Path) -> str:
    if not file.parent.is_dir():
        return f"; there is no folder {file.parent} either"
    near = sorted(other.name for other in file.parent.iterdir() if other.suffix in SUFFIXES)[:8]
    return f"; {file.parent} has {', '.join(near)}" if near else ""


def _json_lines(file: Path) -> Iterator[dict[str, Any]]:
    # utf-8-sig: a byte-order mark, as some editors write it, is not part of the first line.
    with file.open(encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _object(_parse(line, f"{file}:{number}"), f"{file}:{number}")


def _json(file: Path) -> Iterator[dict[str, Any]]:
    text = file.read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("["):  # many files called .json hold one object a line
        yield from _json_lines(file)
        return
    for number, value in enumerate(_parse(text, str(file)), 1):
        yield _object(value, f"{file} row {number}")


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f" (line {error.lineno})" if error.lineno > 1 else ""
        raise DataError(f"{where}: broken JSON{line}: {error.msg} at column {error.colno}") from error


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where}: a {type(value).__name__}; every row must be a JSON object with named columns")
    return value


def _csv(file: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    with file.open(encoding="utf-8-sig", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), 1):
            if None in row:
                raise DataError(f"{file} row {number}: more cells than the header has columns")
            yield row


def _parquet(file: Path) -> Iterator[dict[str, Any]]:
    try:
        table = parquet.read_table(file)
    except ArrowException as error:
        raise DataError(f"{file}: not readable as parquet: {error}") from error
    yield from table.to_pylist()
