"""How often each prompt was answered right: counted in a run, kept in a file, and read by later runs.

A prompt is known by its messages, so that the same question behind another system message or instruction counts anew.
Left out: what is done with the numbers (`tasks.dataset` chooses by them, `tasks.order` orders by them).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partita.records import Group
from partita.tasks.files import DataError
from partita.tasks.split import digest

FILE = "pass_rates.jsonl"
"""How the file is called in a run folder."""


@dataclass
class PassRates:
    """Tries and right ones by the digest of a prompt's messages. right_at: the least raw reward of a right sample."""

    right_at: float = 1.0
    known: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def observe(self, groups: Iterable[Group]) -> None:
        """Count the samples of these groups; those without a reward are none."""
        for group in groups:
            rewards = group.rewards
            if rewards:
                self._add(digest(group.prompt.messages), len(rewards), sum(one >= self.right_at for one in rewards))

    def rate(self, messages: Sequence[Mapping[str, Any]]) -> float | None:
        """The share of right ones among all tries at a prompt with these messages; None where there was none."""
        tries, right = self.known.get(digest(messages), (0, 0))
        return right / tries if tries else None

    def _add(self, prompt: str, tries: int, right: int) -> None:
        before = self.known.get(prompt, (0, 0))
        self.known[prompt] = (before[0] + tries, before[1] + right)

    def lines(self) -> str:
        """The file: one prompt a line, in the order in which they were first seen."""
        told = ({"prompt": name, "tries": tries, "right": right} for name, (tries, right) in self.known.items())
        return "".join(f"{json.dumps(one)}\n" for one in told)

    @classmethod
    def read(cls, files: Sequence[Path]) -> PassRates:
        """The counts of several files, those of one prompt added up. Raises DataError naming the file and the line."""
        found = cls()
        for file in files:
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"pass_rates.files: {file} cannot be read: {error}") from error
            for number, line in enumerate(text.splitlines(), 1):
                found._add(*_counted(line, f"pass_rates.files: {file}:{number}"))
        return found

    def state_dict(self) -> dict[str, Any]:
        """All counts, and what counted as right."""
        return {"right_at": self.right_at, "known": {name: list(counts) for name, counts in self.known.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved counts. Those of another `right_at` say nothing: counting begins anew."""
        saved = state["known"] if state["right_at"] == self.right_at else {}
        self.known = {name: (tries, right) for name, (tries, right) in saved.items()}


def _counted(line: str, where: str) -> tuple[str, int, int]:
    try:
        found = json.loads(line)
        prompt, tries, right = found["prompt"], found["tries"], found["right"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{where}: not a line of {{prompt, tries, right}}: {line[:80]!r}") from error
    if not isinstance(prompt, str) or type(tries) is not int or type(right) is not int or not 0 <= right <= tries:
        raise DataError(f"{where}: {right!r} right of {tries!r} tries is no count")
    return prompt, tries, right
