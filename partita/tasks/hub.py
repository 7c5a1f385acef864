"""Reads a data set by its name on the Hugging Face hub, or from a folder that `datasets` saved.

Left out: files in a folder; see `tasks.files`.
"""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetNotFoundError

from partita.tasks.files import DataError, RawRow


def read_hub(name: str, subset: str | None, split: str) -> list[RawRow]:
    """All rows of one split. Raises DataError when the hub is out of reach or has no such data set, subset or split."""
    try:
        data = load_dataset(name, name=subset, split=split)
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
    return _rows(data, name, split)


def read_saved(folder: Path, split: str) -> list[RawRow]:
    """All rows of a folder written by `save_to_disk`. Raises DataError when none of its splits is `split`."""
    return _rows(load_from_disk(str(folder)), str(folder), split)


def _rows(data: object, name: str, split: str) -> list[RawRow]:
    if isinstance(data, DatasetDict):
        if split not in data:
            raise DataError(f"{name}: no split {split!r}; it has {', '.join(map(str, data))}")
        data = data[split]
    if not isinstance(data, Dataset):
        raise DataError(f"{name}: is a {type(data).__name__}, which cannot be read row by row")
    return [RawRow(f"{name} [{split}] row {number}", dict(row)) for number, row in enumerate(data, 1)]
