"""Reads a data set by its name on the Hugging Face hub, or from a folder that `datasets` saved: whole, or as it goes.

Left out: files in a folder; see `tasks.files`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, IterableDataset, load_dataset, load_from_disk
from datasets.exceptions import DatasetNotFoundError

from partita.tasks.files import DataError, RawRow


def read_hub(name: str, subset: str | None, split: str) -> list[RawRow]:
    """All rows of one split. Raises DataError when the hub is out of reach or has no such data set, subset or split."""
    return list(_rows(_loaded(name, subset, split, streaming=False), name, split, 0))


def stream_hub(name: str, subset: str | None, split: str, skip: int) -> Iterator[RawRow]:
    """The rows of one split behind the first `skip`, fetched as they are asked for. Raises DataError as `read_hub` does."""
    return _rows(_loaded(name, subset, split, streaming=True), name, split, skip)


def read_saved(folder: Path, split: str) -> list[RawRow]:
    """All rows of a folder written by `save_to_disk`. Raises DataError when none of its splits is `split`."""
    return list(stream_saved(folder, split, 0))


def stream_saved(folder: Path, split: str, skip: int) -> Iterator[RawRow]:
    """The rows of such a folder behind the first `skip`; they lie on the disk until they are asked for."""
    return _rows(load_from_disk(str(folder)), str(folder), split, skip)


def _loaded(name: str, subset: str | None, split: str, *, streaming: bool) -> object:
    try:
        return load_dataset(name, name=subset, split=split, streaming=streaming)
    except DatasetNotFoundError as error:
        raise DataError(
            f"{name!r}: neither a file, a folder, a built-in task nor a data set on the hub: {error}"
        ) from error
    except ConnectionError as error:
        raise DataError(
            f"{name!r}: not a file, folder or built-in task here, and the hub cannot be reached ({error}). "
            "Set path to a downloaded .jsonl, .json, .csv or .parquet file or a folder of them, "
            "or unset HF_HUB_OFFLINE where there is a network"
        ) from error
    except ValueError as error:  # unknown subset or split: the library's message lists those that exist
        raise DataError(f"{name!r} subset={subset!r} split={split!r}: {error}") from error


def _rows(data: Any, name: str, split: str, skip: int) -> Iterator[RawRow]:
    if isinstance(data, DatasetDict):
        if split not in data:
            raise DataError(f"{name}: no split {split!r}; it has {', '.join(map(str, data))}")
        data = data[split]
    if not isinstance(data, Dataset | IterableDataset):
        raise DataError(f"{name}: is a {type(data).__name__}, which cannot be read row by row")
    # neither kind reads what it skips, as far as its files allow
    rest = data.skip(skip) if skip else data
    for number, row in enumerate(rest, skip + 1):
        yield RawRow(f"{name} [{split}] row {number}", dict(row))
