"""Reads rows as they lie in files: .jsonl, .json, .csv, .tsv and .parquet, packed or not, one file or a folder of them.

A row that cannot be read comes with its fault, so that whoever reads decides: stop, or leave it out and count it. A file
that cannot be read at all is an error. Left out: what a row means (`tasks.dataset`), and names on a hub (`tasks.hub`).
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import ArrowException, parquet

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
PACKED = (".gz", ".bz2", ".zst")
"""Suffixes of packed text files, as rows.jsonl.gz."""
GROWING = (".jsonl", ".ndjson", ".parquet")
"""Kinds that are read as they go; the others are read whole."""
_SPLIT_NAMES = ("train", "test", "validation", "valid", "val", "dev", "eval")
_BATCH = 1024  # rows of a Parquet file that are turned into objects at once
_DEEPEST = 100
"""Levels of lists and objects in a row: far more than any has, and few enough for all that is done with rows."""
_INT = re.compile(r"0|-?[1-9][0-9]{0,17}")


class DataError(ValueError):
    """Rows that cannot be used; the message names the file, the row and what is wrong with it."""


@dataclass(frozen=True)
class RawRow:
    """A row as read. `where` tells a person which one it is; rows are counted from 1 in each file. fault: what is wrong
    with a row that cannot be read, which has no values then.
    """

    where: str
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    fault: str = ""


@dataclass
class _Skip:
    """How many rows are still to be passed over."""

    left: int

    def over(self, rows: int = 1) -> bool:
        """Whether the next rows are all to be passed over; they are counted off then."""
        passed = 0 < rows <= self.left
        self.left -= rows if passed else 0
        return passed


def place_of(path: str) -> Path:
    """A path of a config, `~` filled in. Raises DataError for one that no file can have."""
    try:
        place = Path(path).expanduser()
        place.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: a user that there is none of
        raise DataError(f"{path[:200]}: cannot be a path: {error}") from error
    return place


def kind_of(path: Path) -> str | None:
    """The suffix in SUFFIXES that says how a file is read, None for another file."""
    name = path.with_suffix("") if path.suffix in PACKED else path
    packed_table = path.suffix in PACKED and name.suffix == ".parquet"
    return name.suffix if name.suffix in SUFFIXES and not packed_table else None


def read_path(path: Path, split: str) -> list[RawRow]:
    """All rows of a file, or of the files of a folder that belong to the split, in the order of their names.

    Raises DataError for a missing or unknown file, and for one that cannot be read at all.
    """
    return list(rows_after(files_of(path, split), 0))


def files_of(path: Path, split: str) -> list[Path]:
    """The file itself, or the files of a folder that belong to the split. Raises DataError where there is none."""
    files = _files_of_split(path, split) if path.is_dir() else [path]
    for file in files:
        if not file.exists():
            raise DataError(f"{file}: no such file{_near_files(file)}")
        if kind_of(file) is None:
            known = f"{', '.join(SUFFIXES)}, text also packed as {', '.join(PACKED)}"
            raise DataError(f"{file}: unknown kind of file; known are {known}")
    return files


def rows_after(files: Sequence[Path], rows: int) -> Iterator[RawRow]:
    """The rows of several files behind the first `rows` of them, read as they are asked for. Raises DataError."""
    skip = _Skip(rows)
    for file in files:
        try:
            yield from _READERS[str(kind_of(file))](file, skip)
        except UnicodeError as error:
            raise DataError(f"{file}: not UTF-8 text: {error}") from error
        except (ArrowException, OSError) as error:
            raise DataError(f"{file}: not readable as {file.suffix[1:]}: {error}") from error


def _files_of_split(folder: Path, split: str) -> list[Path]:
    files = sorted(file for file in folder.rglob("*") if kind_of(file) and file.is_file() and not _hidden(file, folder))
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


def _hidden(file: Path, folder: Path) -> bool:
    """Whether the file or a folder above it is hidden: copies that editors and downloads keep, which would be rows twice."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _split_of(file: Path, folder: Path) -> str | None:
    """The split in the file's name (`train.jsonl`, `train-00000-of-2.parquet`) or in a folder's above it."""
    for part in reversed(file.relative_to(folder).parts):
        word = re.split(r"[-_.]", part.lower())[0]
        if word in _SPLIT_NAMES:
            return word
    return None


def _near_files(file: Path) -> str:
    if not file.parent.is_dir():
        return f"; there is no folder {file.parent} either"
    near = sorted(other.name for other in file.parent.iterdir() if kind_of(other))[:8]
    return f"; {file.parent} has {', '.join(near)}" if near else ""


def _open(file: Path, newline: str) -> io.TextIOWrapper:
    """The text of a file, unpacked, without a byte-order mark; bytes that are no UTF-8 become lone surrogates."""
    with _raw(file) as start:
        mark = start.read(2)
    encoding = "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    # utf-16 is what a redirection in Windows writes
    errors = "strict" if encoding == "utf-16" else "surrogateescape"
    return io.TextIOWrapper(_raw(file), encoding=encoding, errors=errors, newline=newline)


def _raw(file: Path) -> Any:
    return pyarrow.input_stream(str(file)) if file.suffix in PACKED else file.open("rb")


def _json_lines(file: Path, skip: _Skip) -> Iterator[RawRow]:
    number = 0
    with _open(file, newline="\n") as lines:
        for at, line in enumerate(lines, 1):
            text = line.lstrip("\ufeff")  # the mark of a file that was appended to another one
            if not text.strip():
                continue
            number += 1
            if not skip.over():
                yield _line(text, f"{file.name} row {number}", f"{file}:{at}")


def _line(text: str, where: str, place: str) -> RawRow:
    try:
        _check_text(text)
        return RawRow(where, _object(_parse(text)))
    except DataError as error:
        return RawRow(place, fault=str(error))


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"not UTF-8 text at byte {len(text[: error.start].encode())}") from error


def _json(file: Path, skip: _Skip) -> Iterator[RawRow]:
    with _open(file, newline="\n") as whole:
        text = whole.read()
    start = text.lstrip()
    first = start.split("\n", 1)[0]
    # many files called .json hold one object a line
    if not start.startswith("[") and (_is_json(first) or not _is_json(start)):
        yield from _json_lines(file, skip)
        return
    try:
        _check_text(text)
        found = _parse(text)
    except DataError as error:
        raise DataError(f"{file}: {error}") from error
    for number, value in enumerate(found if isinstance(found, list) else [_single(found, file)], 1):
        if not skip.over():
            where = f"{file.name} row {number}"
            yield RawRow(where, value) if isinstance(value, dict) else RawRow(where, fault=_no_object(value))


def _single(found: Any, file: Path) -> Any:
    """A file that is one object is one row, unless it holds the rows in a list."""
    lists = [name for name, value in found.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(found) > 1 or not lists:
        return found
    raise DataError(
        f"{file}: one object that holds its rows in {lists[0]!r}; take them out: jq '.{lists[0]}' {file.name} > rows.json"
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all there once: of two values, JSON's reader would lose the first in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise DataError(f"an object with {twice!r} twice; keep one of the two")
    return found


_JSON = json.JSONDecoder(object_pairs_hook=_once)


def _parse(text: str) -> Any:
    try:
        found = _JSON.decode(text)
    except json.JSONDecodeError as error:
        line = f" (line {error.lineno})" if error.lineno > 1 else ""
        raise DataError(f"broken JSON{line}: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise DataError(f"nested deeper than {_DEEPEST} levels") from error
    except DataError:
        raise
    except ValueError as error:  # Python reads no number of so many digits
        raise DataError("a number of thousands of digits; write it as text") from error
    if text.count("[") + text.count("{") > _DEEPEST and _is_deep(found):
        raise DataError(f"nested deeper than {_DEEPEST} levels")
    return found


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [below for one in level for below in _below(one)]
    return bool(level)


def _below(value: Any) -> Iterable[Any]:
    """What a list or an object holds."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(_no_object(value))
    return value


def _no_object(value: Any) -> str:
    more = " (a file that is one list is called .json)" if isinstance(value, list) else ""
    return f"a {type(value).__name__}; every row must be a JSON object with named columns{more}"


def _csv(file: Path, skip: _Skip) -> Iterator[RawRow]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    rows = list[tuple[int, list[str]]]()
    with _open(file, newline="") as lines:
        # strict: a quote that is never closed would swallow the rest of the file in silence
        reader = csv.reader(lines, delimiter="\t" if kind_of(file) == ".tsv" else ",", strict=True)
        try:
            rows += [(reader.line_num, cells) for cells in reader if cells]
        except csv.Error as error:
            raise DataError(f"{file}:{reader.line_num}: broken CSV: {error}") from error
    if not rows:
        return
    (_, header), *body = rows
    _check_header(header, file)
    columns = [_typed([cells[at] for _, cells in body if len(cells) == len(header)]) for at in range(len(header))]
    for number, (line, cells) in enumerate(body, 1):
        if not skip.over():
            yield _record(header, columns, cells, f"{file.name} row {number}", f"{file}:{line}")


def _check_header(header: Sequence[str], file: Path) -> None:
    if len(header) == 1 and (other := next((mark for mark in ";\t|" if mark in header[0]), None)):
        cure = "write it with commas, or with tabs as .tsv"
        raise DataError(f"{file}: one column, {header[0]!r}: its cells seem to be separated by {other!r}; {cure}")
    if twice := [name for name in dict.fromkeys(header) if header.count(name) > 1]:
        raise DataError(f"{file}: the header names {', '.join(map(repr, twice))} twice")


def _record(header: list[str], columns: list[Callable[[str], Any]], cells: list[str], where: str, place: str) -> RawRow:
    if len(cells) != len(header):
        return RawRow(place, fault=f"{len(cells)} cells, and the header has {len(header)} columns")
    try:
        _check_text("".join(cells))
    except DataError as error:
        return RawRow(place, fault=str(error))
    return RawRow(where, {name: read(one) for name, read, one in zip(header, columns, cells, strict=True)})


def _typed(cells: Sequence[str]) -> Callable[[str], Any]:
    """How the cells of a column are read: as numbers where every filled one is a number in its shortest form, so that
    nothing of it is lost (007 and 2.50 stay text); an empty one is null then.
    """
    filled = [one for one in cells if one]
    if filled and all(_INT.fullmatch(one) for one in filled):
        return lambda text: int(text) if text else None
    if filled and all(_INT.fullmatch(one) or _is_float(one) for one in filled):
        return lambda text: None if not text else int(text) if _INT.fullmatch(text) else float(text)
    return str


def _is_float(text: str) -> bool:
    try:
        return repr(float(text)) == text and text not in ("nan", "inf", "-inf")
    except ValueError:
        return False


def _parquet(file: Path, skip: _Skip) -> Iterator[RawRow]:
    with parquet.ParquetFile(file) as table:
        number = 0
        for group in range(table.metadata.num_row_groups):
            size = table.metadata.row_group(group).num_rows
            if skip.over(size):
                number += size
                continue
            for batch in table.iter_batches(_BATCH, row_groups=[group]):
                for values in batch.to_pylist():
                    number += 1
                    if not skip.over():
                        yield RawRow(f"{file.name} row {number}", values)


_READERS: dict[str, Callable[[Path, _Skip], Iterator[RawRow]]] = {
    ".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet,
}  # fmt: skip
