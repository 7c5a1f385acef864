"""The reference page."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from partita.config import key, key_factory, reference_markdown, required


@dataclass(frozen=True)
class Data:
    """Rows from a file."""

    path: str = required("File | folder.")
    size: int = key(8, "Rows of a step.", ge=1)


@dataclass(frozen=True)
class Config:
    seed: int = key(1, "Seed.")
    train: Data | None = key(None, "Training.")
    valid: Data | None = key(None, "Validation.")
    suites: tuple[Data, ...] = key((Data("x", 2),), "Suites.")


@dataclass(frozen=True)
class Bare:
    data: Data | None = key(None, "Rows.")
    silent: int = 1
    also: list[int] = field(default_factory=list[int])


def test_one_table_for_each_section() -> None:
    assert (
        reference_markdown(Config, "Configuration")
        == """\
# Configuration

| key | type | default | meaning |
|---|---|---|---|
| `seed` | int | `1` | Seed. |

## `train`

Training. Absent (null) by default. Rows from a file.

| key | type | default | meaning |
|---|---|---|---|
| `train.path` | str | required | File \\| folder. |
| `train.size` | int; >= 1 | `8` | Rows of a step. |

## `valid`

Validation. Absent (null) by default. The same keys and defaults as `train`.

## `suites[]`

Suites. A list of sections. The same keys and defaults as `train`.
"""
    )


def test_every_key_must_be_documented() -> None:
    with pytest.raises(ValueError, match="keys without a doc: silent, also"):
        reference_markdown(Bare, "x")


def test_a_default_of_the_enclosing_section_is_the_one_listed() -> None:
    @dataclass(frozen=True)
    class Outer:
        data: Data = key_factory(lambda: Data("rows.jsonl", 3), "Rows.")

    assert "| `data.size` | int; >= 1 | `3` | Rows of a step. |" in reference_markdown(Outer, "x")
