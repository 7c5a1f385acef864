"""Where the servers are: addresses that were given, or files that whoever starts the servers writes at each start."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

TAIL_LINES, TAIL = 15, 16_384  # last lines of a log, and bytes of it that are looked at
ENDPOINTS, LOGS = "endpoints", "logs"


@dataclass(frozen=True)
class Address:
    """Of one server, as it is now. log: the file with what it says, where that is known."""

    url: str
    log: Path | None = None


class Addresses(Protocol):
    """Of a fixed number of servers, counted from 0."""

    def __len__(self) -> int:
        """How many servers there are."""
        ...

    def read(self, index: int) -> Address | None:
        """Where server `index` is now; None while it is not known."""
        ...

    def name(self, index: int) -> str:
        """How messages call server `index`."""
        ...


class Given:
    """Addresses that the config lists."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = [url.rstrip("/") for url in urls]

    def __len__(self) -> int:
        return len(self._urls)

    def read(self, index: int) -> Address | None:
        """See `Addresses`."""
        return Address(self._urls[index])

    def name(self, index: int) -> str:
        """See `Addresses`."""
        return f"rollout.servers[{index}] at {self._urls[index]}"


class Started:
    """Servers that the run's launcher starts: `endpoints/server-<i>.json` in its folder, replaced at each start.

    launch: its id, which the files must have: one of an earlier launch names a server that is gone.
    """

    def __init__(self, folder: Path, count: int, launch: str | None = None) -> None:
        self._folder, self._count, self._launch = folder, count, launch

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> Address | None:
        """See `Addresses`."""
        try:
            found = json.loads((self._folder / ENDPOINTS / f"server-{index}.json").read_bytes())
        except FileNotFoundError:
            return None
        if self._launch is not None and found.get("launch") != self._launch:
            return None
        return Address(found["url"].rstrip("/"), self._folder / LOGS / f"server-{index}.log")

    def name(self, index: int) -> str:
        """See `Addresses`."""
        return f"server-{index}"


def last_lines(address: Address | None) -> str:
    """What a server said last, as an ending for a message; empty where that is not known."""
    if address is None or address.log is None or not address.log.is_file():
        return ""
    with address.log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        lines = file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    return f"\nThe last lines of {address.log}:\n" + "\n".join(lines) if lines else ""
