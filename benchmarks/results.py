"""Lines of `results/*.jsonl`: one per comparison, from interleaved pairs, and how a ratio is made of them.

Left out: which comparisons there are (`table.py` lists what each must reach).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Literal

PAIRS = 5
"""Fewer are a trial: of a comparison of fewer pairs no line is kept, unless it says itself how few it takes."""
FOLDER = Path(__file__).resolve().parent / "results"
Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class Line:
    """One comparison. `ours` and `peer_value` are medians over the pairs, in `unit`; `ratio` is the median of the ratios
    within a pair, with the smallest and the largest; above 1 we are ahead. tokens: of one run, ours and the peer's.

    A number without a peer (a rate of the machine, say) has peer "" and no ratio. least: the pairs without which a comparison
    is not kept; fewer than PAIRS only where more would tell nothing more.
    """

    name: str
    ours: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    tokens: Mapping[str, float] = field(default_factory=dict[str, float])
    pairs: int = 0
    note: str = ""
    least: int = PAIRS


def compare(
    name: str, ours: Sequence[float], peer: str, theirs: Sequence[float], unit: str, *, better: Better,
    tokens: tuple[float, float] | None = None,
) -> Line:  # fmt: skip
    """A line from what both sides measured, pair by pair. better: whether lower (seconds) or higher (rates) numbers are."""
    ratios = [b / a if better == "lower" else a / b for a, b in zip(ours, theirs, strict=True)]
    counted = {} if tokens is None else {"ours": tokens[0], "peer": tokens[1]}
    return Line(
        name, median(ours), unit, peer, median(theirs), median(ratios), min(ratios), max(ratios), counted, len(ratios)
    )  # fmt: skip


def share(name: str, part: Sequence[float], of: str, whole: Sequence[float], unit: str) -> Line:
    """A line whose ratio is part / whole, pair by pair: `ours` is the whole's measured number."""
    ratios = [a / b for a, b in zip(part, whole, strict=True)]
    return Line(name, median(whole), unit, of, median(part), median(ratios), min(ratios), max(ratios), {}, len(ratios))


def write(path: Path, lines: Sequence[Line], versions: Mapping[str, str], *, keep: bool = True) -> None:
    """Print lines; put them in place of those with the same name and peer, at their place, new ones at the end.

    keep: False prints only. Raises ValueError, and keeps nothing, where a comparison has fewer pairs than it takes.
    """
    for line in lines:
        print(told(line), flush=True)
    if not keep:
        return
    if few := [f"{line.name} ({line.pairs})" for line in lines if line.ratio is not None and line.pairs < line.least]:
        raise ValueError(f"nothing is kept: too few pairs of {', '.join(few)}; at least {PAIRS} are needed")
    stamp = {
        "machine": machine(), "date": date.today().isoformat(),
        "versions": ", ".join(f"{name} {number}" for name, number in sorted(versions.items())), "commit": commit(),
    }  # fmt: skip
    held = {key_of(line): line for line in read(path)}
    held |= {(line.name, line.peer): asdict(line) | stamp for line in lines}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in held.values()), encoding="utf-8")


def enough(text: str) -> int:
    """The pairs that a command line asks for. Raises ArgumentTypeError for too few to be kept, before hours are spent."""
    pairs = int(text)
    if pairs < PAIRS:
        raise ArgumentTypeError(
            f"{pairs} pairs are not kept, it takes {PAIRS}; --quick measures one and writes nothing"
        )
    return pairs


def read(path: Path) -> list[dict]:
    """The lines of a file as they stand there; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def key_of(line: Mapping) -> tuple[str, str]:
    """What makes two lines the same comparison."""
    return line["name"], line["peer"]


def told(line: Line) -> str:
    """For the terminal."""
    head = f"{line.name}: {line.ours:.4g} {line.unit}"
    if line.ratio is None or line.peer_value is None:
        return head
    spread = f"{line.ratio:.3g} ({line.ratio_min:.3g} to {line.ratio_max:.3g})"
    return f"{head}, {line.peer} {line.peer_value:.4g}, ratio {spread}, {line.pairs} pairs"


def commit() -> str:
    """The commit of this checkout, with a plus where files differ from it; empty outside of git."""
    asked = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(asked, cwd=FOLDER.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def machine() -> str:
    """CPU model, whether it multiplies bfloat16, cores that this process may use, memory, system."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), "CPU")
    fast = [name for name in ("amx_bf16", "avx512_bf16") if name in info]
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{model}{''.join(f' with {name}' for name in fast[:1])}, {cores} cores, {memory:.0f} GiB, {platform.system()}"
    )
