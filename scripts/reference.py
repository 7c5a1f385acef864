"""Write docs/reference/config.md: every key of a run's config, from the schema.

usage: python scripts/reference.py [--check]
"""

from __future__ import annotations

from pathlib import Path

import pages

from partita.config import reference_markdown
from partita.run import RunConfig

PAGE = pages.ROOT / "docs" / "reference" / "config.md"
COMMAND = "scripts/reference.py"


def generated() -> dict[Path, str]:
    """The page and its text."""
    note = f"Made from the code by `python {COMMAND}`; change the dataclass that declares a key, not this page.\n"
    title, _, tables = reference_markdown(RunConfig, "Configuration").partition("\n\n")
    return {PAGE: f"{title}\n\n{note}\n{tables}"}


if __name__ == "__main__":
    pages.main(generated(), COMMAND, "write docs/reference/config.md from the schema")
