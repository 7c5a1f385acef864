"""Tables of text: aligned columns for a terminal or a pipe, and Markdown.

Left out: colours and boxes; a table stays readable when it is piped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A heading, columns of text, and lines below them. The first column is of names, the others mostly of numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> list[str]:
        """Aligned columns."""
        lines = [self.head, *self.rows] if self.rows else []
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))] if lines else []
        shown = [
            "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        ]  # fmt: skip
        return [self.title, *(f"  {line}".rstrip() for line in shown), *(f"  {note}" for note in self.notes), ""]

    def markdown(self) -> list[str]:
        """A table of Markdown."""
        rule = tuple("---" if i == 0 else "---:" for i in range(len(self.head)))
        table = list(map(_row, (self.head, rule, *self.rows))) if self.rows else []
        notes = [f"- {note}" for note in self.notes]
        return [f"## {self.title}", "", *table, *([""] if table and notes else []), *notes, ""]


def _row(cells: Sequence[str]) -> str:
    """A row of Markdown, whatever tokens are in it."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
