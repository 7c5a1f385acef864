"""What a judge has said and what it has used up, in files that a kill cannot take back.

A reply is one line of JSON, written when it came, so that a run that goes on asks nothing twice; what was used up is counted
beside the run in a small file that is replaced after every request. Both hold digests, replies and counts: no key, no prompt.
Left out: when something is asked (`judges.client`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from partita.tasks.adapters import RewardSetupError
from partita.tasks.judges.settings import BudgetConfig
from partita.tasks.judges.verdicts import Reply

FOLDER = "judges"
"""Of a run folder."""


@dataclass
class Spent:
    """Counts of a whole run. requests: all that were sent; retries: those that were not the first try of something; replies:
    those that an answer came back for, after `seconds` altogether; unmetered: of them, those that did not say how many tokens
    they used; hits: what was not asked as its reply was known.
    """

    requests: int = 0
    retries: int = 0
    replies: int = 0
    hits: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    unmetered: int = 0
    seconds: float = 0.0

    def cost(self, budget: BudgetConfig) -> float | None:
        """By the prices of a million tokens; None without prices."""
        if budget.price_in is None or budget.price_out is None:
            return None
        return (self.tokens_in * budget.price_in + self.tokens_out * budget.price_out) / 1e6

    def over(self, budget: BudgetConfig) -> str:
        """The limit that is reached and what was used, empty while there is none."""
        used = {
            "max_requests": self.requests, "max_tokens": self.tokens_in + self.tokens_out, "max_cost": self.cost(budget)
        }  # fmt: skip
        for name, value in used.items():
            limit = getattr(budget, name)
            if limit is not None and value is not None and value >= limit:
                return f"budget.{name}={limit:g} is reached ({value:g} used)"
        return ""


class Ledger:
    """Replies by the digest of their request, and `spent`; in memory until `keep`. For one thread."""

    def __init__(self, name: str) -> None:
        self.spent = Spent()
        self._name = name
        self._replies: dict[str, Reply] = {}
        self._lines: int | None = None
        self._counts: Path | None = None

    def keep(self, run: Path | None, shared: Path | None, *, replies: bool) -> None:
        """Go on from the files of this judge, and write there from now on: counts below the folder of the `run`, and replies
        there too, or in the `shared` folder. Raises RewardSetupError for a folder or file that cannot be used.
        """
        where = shared or (run / FOLDER if run else None)
        try:
            if run is not None:
                (run / FOLDER).mkdir(parents=True, exist_ok=True)
                self._counts = run / FOLDER / f"{self._name}.json"
                self.spent = _read_counts(self._counts)
            if where is not None and replies:
                where.mkdir(parents=True, exist_ok=True)
                self._open(where / f"{self._name}.jsonl")
        except (OSError, ValueError, TypeError) as error:
            raise RewardSetupError(f"reward.judges.{self._name}: {where or run} cannot be used: {error}") from error

    def _open(self, file: Path) -> None:
        data = file.read_bytes() if file.exists() else b""
        for line in data.splitlines():
            if known := _read_line(line):
                self._replies[known[0]] = known[1]
        # appended to in one piece, so that runs that share the file do not write into each other's lines
        self._lines = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if data and not data.endswith(b"\n"):  # a kill cut it short: what follows must not become part of it
            os.write(self._lines, b"\n")

    def known(self, key: str) -> Reply | None:
        """The reply to a request, if it has been given."""
        return self._replies.get(key)

    def learn(self, key: str, reply: Reply) -> None:
        """Keep a reply."""
        self._replies[key] = reply
        if self._lines is not None:
            os.write(self._lines, json.dumps({"request": key, **asdict(reply)}).encode() + b"\n")

    def write_counts(self) -> None:
        """Put what was used up into the file, the old or the new counts at any moment."""
        if self._counts is not None:
            aside = self._counts.with_suffix(".partial")
            aside.write_text(json.dumps(asdict(self.spent)))
            aside.replace(self._counts)

    def close(self) -> None:
        """Let go of the file."""
        if self._lines is not None:
            os.close(self._lines)
            self._lines = None


def _read_counts(file: Path) -> Spent:
    if not file.exists():
        return Spent()
    found: Mapping[str, Any] = json.loads(file.read_text())
    return Spent(**{item.name: found[item.name] for item in fields(Spent) if item.name in found})


def _read_line(line: bytes) -> tuple[str, Reply] | None:
    """None for a line that a kill cut short: its request is sent again."""
    try:
        found = json.loads(line)
        yes = found["yes"]
        return str(found["request"]), Reply(
            str(found["text"]), str(found["finish"]), None if yes is None else float(yes)
        )
    except (ValueError, KeyError, TypeError):
        return None
