"""Run case files through the parts of the product and compare every number: values, gradients, decisions.

usage: python tests/conformance.py DIR

Every JSON file of DIR is one case: kind, inputs, config, expected, tolerance. One line per case, `ok NAME` or `FAIL NAME:
field: expected, got (max error)`, then how many passed. Exit code 1 if any failed, also where a kind, an input or a
configuration value is not known: nothing is skipped. All in float64.
Left out: maths. `conforming` turns padded rows into packed tokens and back and configurations into keys; the numbers are the
product's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from conforming.case import Unknown, read
from conforming.runs import check


def judge(path: Path) -> tuple[str, list[str]]:
    """The case's name and what is wrong with it."""
    try:
        case = read(path)
    except Unknown as error:
        return path.stem, [str(error)]
    return case.name, check(case)


def main(arguments: Sequence[str]) -> int:
    """Print a line per case; 0 where all passed."""
    parser = argparse.ArgumentParser(description="Run case files through the parts of the product.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder of JSON files, one case each")
    folder = parser.parse_args(arguments).folder
    paths = sorted(folder.glob("*.json"))
    if not paths:
        print(f"no JSON files in {folder}", file=sys.stderr)
        return 1
    failed = 0
    for path in paths:
        name, wrong = judge(path)
        failed += bool(wrong)
        print(f"FAIL {name}: {'; '.join(wrong)}" if wrong else f"ok {name}", flush=True)
    print(f"{len(paths) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
