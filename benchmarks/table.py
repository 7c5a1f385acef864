"""The tables of docs/performance.md, made from `results/*.jsonl`; what each row must reach stands here.

usage: python benchmarks/table.py [--check]

Only what lies between the markers of the page is generated. A row without a result says so: nothing is left out because it
was not measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from results import FOLDER, key_of, read

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
COMMAND = "benchmarks/table.py"
BEGIN, END = "<!-- from benchmarks/results, by {command} -->", "<!-- end -->"
Kind = Literal["times", "share"]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """What the ratio of a comparison must reach. kind: how it is written. highest: the numbers are upper limits. why: a clause
    that says why the row falls short, shown while it does.
    """

    name: str
    peer: str
    floor: float
    goal: float | None
    kind: Kind = "times"
    highest: bool = False
    why: str = ""

    def short(self, ratio: float) -> str:
        """By how much a ratio falls short of the floor, or of the goal, and why; empty where it reaches both."""
        for what, limit in (("floor", self.floor), ("goal", self.goal)):
            if limit is not None and (ratio > limit if self.highest else ratio < limit):
                return f"{what} by {written(abs(limit - ratio), self.kind)}" + (f": {self.why}" if self.why else "")
        return ""


MEMORY = (round(1 / 0.6, 2), round(1 / 0.4, 2))  # 0.6 and 0.4 of the peer's
PRODUCTS = "products alone are two thirds and more of learning and of decoding (the rows of the bound)"
NARROW = "attention, norms, positions and sampling are hundreds of small operations a step around narrow products"
GOALS = (
    Goal("step fixed short", "trl bf16", 3.5, 5, why=PRODUCTS), Goal("step fixed long", "trl bf16", 6, 8.5, why=PRODUCTS),
    Goal("step natural short", "trl bf16", 5, 7, why=f"few responses end early, so it is nearly the fixed step; {PRODUCTS}"),
    Goal("step natural long", "trl bf16", 9, 12, why=f"a third is decode steps, as many as the longest response has; {PRODUCTS}"),
    Goal("memory fixed long", "trl bf16", *MEMORY),
    Goal("overhead fixed short", "outside model and optimizer", 0.12, 0.06, "share", highest=True),
    Goal("overhead fixed long", "outside model and optimizer", 0.12, 0.06, "share", highest=True),
    Goal("decode 8", "vllm cpu", 1.0, 1.3), Goal("decode 32", "vllm cpu", 1.0, 1.3),
    Goal("decode 64", "vllm cpu", 1.2, 1.6), Goal("decode 128", "vllm cpu", 1.2, 1.6),
    Goal("decode 64", "hf bf16 best batch", 2.5, 4, why=NARROW),
    Goal("bound decode 64", "products alone", 0.45, 0.65, "share", why=NARROW),
    Goal("bound training fixed long", "products alone", 0.48, 0.63, "share"),
    Goal("growth group 32", "group 8", 1.05, None, highest=True),
)  # fmt: skip
SHARES = ("bound ", "overhead ")
FILES = {
    "A whole step, its memory and what is not arithmetic": "step.jsonl",
    "Sampling": "rollout.jsonl",
    "Share of the bound, and rates of the machine": "bound.jsonl",
    "Growth": "growth.jsonl",
}
COLUMNS = "| comparison | ours | peer | its number | ratio (min to max) | tokens ours / peer | pairs | floor | goal | short by |"
RULE = "|---|---|---|---|---|---|---|---|---|---|"


def written(value: float | None, kind: Kind) -> str:
    """A ratio: times, or a share in per cent."""
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if kind == "share" else f"{value:.2f} x"


def number(value: float | None, unit: str) -> str:
    """Three digits and the unit."""
    if value is None:
        return ""
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {unit}"


def cells(row: Row, goal: Goal | None) -> list[str]:
    """One comparison."""
    kind: Kind = "share" if row["name"].startswith(SHARES) else "times"
    ratio, tokens, note = row["ratio"], row["tokens"], row["note"]
    spread = (
        ""
        if ratio is None
        else f"{written(ratio, kind)} ({written(row['ratio_min'], kind)} to {written(row['ratio_max'], kind)})"
    )
    return [
        row["name"], number(row["ours"], row["unit"]), row["peer"] + (f" ({note})" if note else ""),
        number(row["peer_value"], row["unit"]), spread,
        f"{tokens['ours']:,.0f} / {tokens['peer']:,.0f}" if tokens else "", str(row["pairs"]),
        written(goal.floor, goal.kind) if goal else "", written(goal.goal, goal.kind) if goal else "",
        goal.short(ratio) if goal and ratio is not None else "",
    ]  # fmt: skip


def table(rows: Sequence[Row]) -> list[str]:
    """Rows with a goal first, in the order of the goals."""
    goals = {(goal.name, goal.peer): goal for goal in GOALS}
    order = list(goals)

    def place(row: Row) -> int:
        return order.index(key_of(row)) if key_of(row) in goals else len(order)

    lines = [" | ".join(cells(row, goals.get(key_of(row)))) for row in sorted(rows, key=place)]
    return [COLUMNS, RULE, *(f"| {line} |" for line in lines)]


def generated(folder: Path = FOLDER) -> str:
    """All tables, what they were measured on, and the rows that are still to be measured."""
    lines, found = list[str](), set[tuple[str, str]]()
    for title, name in FILES.items():
        rows = read(folder / name)
        found |= {key_of(row) for row in rows}
        lines += [f"### {title}", ""]
        lines += [*table(rows), "", *measured_on(rows), ""] if rows else ["Not measured yet.", ""]
    missing = [f"{goal.name} against {goal.peer}" for goal in GOALS if (goal.name, goal.peer) not in found]
    lines += [f"Not measured yet: {'; '.join(missing)}.", ""] if missing else []
    return "\n".join(lines)


def measured_on(rows: Sequence[Row]) -> list[str]:
    """Machine, day and versions, each combination once."""
    return list(
        dict.fromkeys(f"{row['machine']}; {row['date']}; {row['versions']}; commit {row['commit']}." for row in rows)
    )


def page(text: str, folder: Path = FOLDER) -> str:
    """The page with its generated part made anew. Raises ValueError without the two markers."""
    begin = BEGIN.format(command=COMMAND)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"{PAGE}: no {begin} ... {END}")
    return f"{before}{begin}\n\n{generated(folder)}\n{END}{after}"


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is out of date")
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if parser.parse_args().check:
        if new != old:
            sys.exit(f"{PAGE.name} is out of date; run `python {COMMAND}`")
        return
    PAGE.write_text(new, encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
