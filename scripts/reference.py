"""Write docs/reference/config.md and docs/reference/offline.md: every key of every config, from the schema.

usage: python scripts/reference.py [--check]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pages

from partita.config import reference_markdown
from partita.offline.config import KINDS
from partita.run import RunConfig

FOLDER = pages.ROOT / "docs" / "reference"
PAGE, OFFLINE = FOLDER / "config.md", FOLDER / "offline.md"
COMMAND = "scripts/reference.py"
NOTE = f"Made from the code by `python {COMMAND}`; change the dataclass that declares a key, not this page."
ABOUT = (
    "The keys of [training on data](../training-on-data.md): of `partita sft`, `partita rm` and `partita dpo`. Those of "
    "`partita train`: [config.md](config.md)."
)
HEAD = ("| key | type | default | meaning |", "|---|---|---|---|")


def generated() -> dict[Path, str]:
    """The pages and their texts."""
    title, _, tables = reference_markdown(RunConfig, "Configuration").partition("\n\n")
    return {PAGE: f"{title}\n\n{NOTE}\n\n{tables}", OFFLINE: "\n\n".join(_offline()) + "\n"}


def _offline() -> list[str]:
    """What all three configs have, once; then what each has of its own."""
    texts = {kind: reference_markdown(config, kind).strip().split("\n\n## ") for kind, config in KINDS.items()}
    first, *others = texts.values()
    shared = {part for part in first if all(part in parts for parts in others)}
    rows = {kind: _rows(parts[0]) for kind, parts in texts.items()}
    common = [row for row in rows["sft"] if all(row in own for own in rows.values())]
    page = ["# Configuration of training on data", NOTE, ABOUT, "## All three commands", _table(common)]
    page += [f"## {part}" for part in first[1:] if part in shared]
    for kind, parts in texts.items():
        page += [f"## `partita {kind}`", parts[0].split("\n\n")[1]]
        page += [_table([row for row in rows[kind] if row not in common])]
        page += [f"## {part}" for part in parts[1:] if part not in shared]
    return page


def _rows(section: str) -> list[str]:
    return [line for line in section.splitlines() if line.startswith("| `")]


def _table(rows: Sequence[str]) -> str:
    return "\n".join([*HEAD, *rows])


if __name__ == "__main__":
    pages.main(generated(), COMMAND, "write docs/reference/config.md and docs/reference/offline.md from the schema")
