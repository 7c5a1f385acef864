"""Pages that are made from code: write them, or say which of those on disk are out of date.

Left out: what the pages say; see `reference.py` and `algorithm_pages.py`.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHOWN = 20  # lines of difference in one message


def stale(pages: Mapping[Path, str], command: str) -> list[str]:
    """One readable message for each page whose text on disk is not the generated one."""
    found: list[str] = []
    for path, text in pages.items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old == text:
            continue
        changes = difflib.unified_diff(
            old.splitlines(), text.splitlines(), "on disk", "from the code", lineterm="", n=0
        )
        lines = [*changes][2:]
        more = [f"... and {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN else []
        what = "is out of date" if path.exists() else "is missing"
        head = f"{path.relative_to(ROOT)} {what}; run `python {command}`"
        found.append("\n  ".join([head, *lines[:SHOWN], *more]))
    return found


def main(pages: Mapping[Path, str], command: str, purpose: str) -> None:
    """Write the pages; with --check compare only, and exit 1 when one differs."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page on disk differs")
    if parser.parse_args().check:
        if found := stale(pages, command):
            sys.exit("\n".join(found))
        return
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
