"""How a role ended, and what a launch that cannot go on says of it.

Exit codes of roles and of the launcher: 0 done, 1 the run cannot go on, 2 a mistake of the user's, `EARLY` told to end.
"""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

EARLY = 75
"""Told to end before the last step, and did: with a checkpoint, from which the run can go on (EX_TEMPFAIL of sysexits.h)."""
LINES, TAIL = 20, 16_384  # last lines that are kept of a log, and bytes of it that are looked at
OF_ANOTHER = re.compile(r"connection|gloo|nccl|broken pipe|peer", re.IGNORECASE)


class LaunchError(RuntimeError):
    """A run of several processes cannot go on: one of them ended."""


class LaunchRefused(RuntimeError):
    """A process of the run found a mistake of the user's."""


@dataclass(frozen=True)
class Status:
    """What a role's process writes at its end. launch: the launch it belongs to. code: as `subprocess` has it, a signal is
    negative. at: seconds of the clock. lines: the last ones of its output.
    """

    launch: str
    code: int
    at: float
    lines: tuple[str, ...]

    @property
    def by_another(self) -> bool:
        """Whether it looks as if this role ended only because another one had: it lost a connection."""
        return self.code == 1 and any(OF_ANOTHER.search(line) for line in self.lines[-3:])


def write_status(file: Path, status: Status) -> None:
    """Write it whole or not at all."""
    write_json(file, asdict(status))


def read_status(file: Path, launch: str) -> Status | None:
    """What a role of this launch wrote; None where it did not come to that."""
    found = read_json(file)
    if found.get("launch") != launch:
        return None
    return Status(launch, int(found["code"]), float(found["at"]), tuple(found["lines"]))


def write_json(file: Path, value: object, mode: int = 0o666) -> None:
    """Write a file whole or not at all. mode: who may read and write it, as far as the process' umask lets them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as out:
        json.dump(value, out, indent=1)
    fresh.replace(file)


def read_json(file: Path) -> dict[str, Any]:
    """What a file of the launch says; nothing where it is not there, or not (yet) whole."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def last_lines(log: Path, since: int = 0) -> tuple[str, ...]:
    """The last lines of a log, of what was written after its first `since` bytes."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - TAIL))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-LINES:]


def how(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"by signal {-code}"
