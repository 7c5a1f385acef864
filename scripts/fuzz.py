"""Broken rows, configs, conversations, rewards and evaluations: each must be read whole, or be refused with its cause named.

usage: python scripts/fuzz.py --seconds 600 [--seed 1] [--only rows|conversations|configs|rewards|evals] [--case N]

Every input is made from (seed, area, number) alone, so a finding is seen again with `--only AREA --seed S --case N`, which also
keeps its files. Ends with code 1 where there was a finding.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fuzz_common import REFUSALS, Hang, Try, Wrong, check_message, quiet

AREAS = {
    "rows": ("fuzz_rows", "opened", r"train_dataset|rows\."),
    "conversations": ("fuzz_rows", "learned", r"train_dataset|rows\."),
    "configs": ("fuzz_configs", "opened", r"\w"),
    "rewards": ("fuzz_rewards", "opened", r"reward"),
    "evals": ("fuzz_evals", "opened", r"evaluator|row |pass_rates"),
}
"""Module, what opens it, and what a refusal must name."""
CPU_SECONDS, SECONDS = 15.0, 90.0
"""A case that computes, or takes, longer has hung."""
WARNINGS = 5  # different ones of one case; more are a flood


@dataclass(frozen=True)
class Finding:
    """A case that went wrong."""

    area: str
    case: int
    what: str

    def told(self, seed: int) -> str:
        """What to read and what to run."""
        again = f"python scripts/fuzz.py --seed {seed} --only {self.area} --case {self.case}"
        return f"FINDING in {self.area}: {self.what}\n  again: {again}"


@contextmanager
def limited() -> Iterator[None]:
    """Raise Hang within a block that goes on for too long."""

    def over(number: int, frame: object) -> None:
        raise Hang(f"more than {CPU_SECONDS:g} s of computing or {SECONDS:g} s in all")

    for name, timer, seconds in (
        (signal.SIGPROF, signal.ITIMER_PROF, CPU_SECONDS),
        (signal.SIGALRM, signal.ITIMER_REAL, SECONDS),
    ):
        signal.signal(name, over)
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)


def run_case(area: str, attempt: Try, seed: int, case: int, folder: Path) -> tuple[str, Finding | None]:
    """What one case came to, and the finding where it is none of what it may come to."""
    rng = random.Random(f"{seed}/{area}/{case}")
    with warnings.catch_warnings(record=True) as warned, limited():
        warnings.simplefilter("default")
        try:
            came, wrong = attempt(rng, folder), ""
        except REFUSALS as error:
            came, wrong = "refused", _unhelpful(str(error), AREAS[area][2])
        except Wrong as error:
            came, wrong = "wrong", str(error)
        except (Exception, Hang) as error:
            trace = "".join(traceback.format_exception(error)[-4:])
            came, wrong = "raised", f"{type(error).__name__}\n{trace[-1500:]}"
    if not wrong and len(warned) > WARNINGS:
        wrong = f"{len(warned)} warnings, the first: {warned[0].message}"
    return came, Finding(area, case, wrong) if wrong else None


def _unhelpful(message: str, names: str) -> str:
    try:
        check_message(message, names)
    except Wrong as error:
        return str(error)
    return ""


def fuzz(
    areas: Sequence[str], seconds: float, seed: int, cases: int | None = None, most: int = 25
) -> tuple[Counter[str], list[Finding]]:
    """Cases of all areas in turn: what they came to, and what is wrong. Ends when the time is up, after `cases` of each, or with
    `most` findings.
    """
    quiet()
    logging.disable(logging.WARNING)
    came, found, end = Counter[str](), list[Finding](), time.monotonic() + seconds
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        attempts = {area: _open(area, stack, root / area) for area in areas}
        case = 0
        while time.monotonic() < end and len(found) < most and case != cases:
            case += 1
            for area, attempt in attempts.items():
                folder = root / area / str(case)
                folder.mkdir()
                how, finding = run_case(area, attempt, seed, case, folder)
                came[f"{area} {how}"] += 1
                if finding is not None:
                    found.append(finding)
                    print(finding.told(seed), flush=True)
                shutil.rmtree(folder, ignore_errors=True)
    logging.disable(logging.NOTSET)
    return came, found


def _open(area: str, stack: ExitStack, folder: Path) -> Try:
    module, name, _ = AREAS[area]
    folder.mkdir(parents=True)
    return stack.enter_context(getattr(importlib.import_module(module), name)(folder))


def again(area: str, seed: int, case: int) -> Finding | None:
    """One case, its files kept."""
    quiet()
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (root / str(case)).mkdir()
    with ExitStack() as stack:
        came, finding = run_case(area, _open(area, stack, root / "open"), seed, case, root / str(case))
    print(f"{came}; its files are in {root / str(case)}")
    return finding


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=tuple(AREAS))
    parser.add_argument("--case", type=int, help="with --only: this case alone")
    given = parser.parse_args(words)
    if given.case is not None:
        if given.only is None:
            parser.error("--case needs --only")
        finding = again(given.only, given.seed, given.case)
        print(finding.told(given.seed) if finding else "nothing wrong")
        return int(finding is not None)
    came, found = fuzz([given.only] if given.only else list(AREAS), given.seconds, given.seed)
    for name, count in sorted(came.items()):
        print(f"{name}: {count}")
    print(f"{sum(came.values())} cases in {given.seconds:g} s, seed {given.seed}: {len(found)} findings")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
