"""What is wrong with a configuration: every problem with its path, and the names that were probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from partita.config.schema import Key

_ALIKE = 0.65  # below this, two names share letters by chance
_ALIKE_ELSEWHERE = 0.8
_ALIKE_FOREIGN = 0.9  # a foreign name may be misspelt too
_BESIDE = 0.3  # a misspelling in place is likelier than one that is in the wrong section as well
_LONGEST = 1500  # characters of a path or a message that are shown: values may be endless
_SPREAD = 0.2  # a match this much worse than the best one is noise


@dataclass(frozen=True)
class Problem:
    """One complaint: the dotted path or the file and line, what is wrong, and where the value came from."""

    path: str
    message: str
    source: str = ""

    def __str__(self) -> str:
        path, message = _shortened(self.path), _shortened(self.message)
        return f"{path}: {message}" + (f" [{self.source}]" if self.source else "")


class ConfigError(ValueError):
    """A configuration that cannot be used. `problems` has all that was found; the text has one line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        head = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"{head} in the configuration:", *(f"  {one}" for one in self.problems)]))


@dataclass(frozen=True)
class Names:
    """The declared paths of a config, and hints from foreign names (`max_prompt_length`) to paths or to advice."""

    known: Mapping[str, Key]
    hints: Mapping[str, str]

    def near(self, path: str, *, whole: bool = False) -> str:
        """A sentence with what `path` was probably meant to be, or nothing.

        Ranked by likeness of the last component; the same name elsewhere in the tree counts as well. Keys of the same
        section are named by their last component, unless `whole` paths are asked for.
        """
        parent, _, name = path.rpartition(".")
        hint = self.hints.get(path, "") or self._hint(name)
        if hint and hint not in self.known:
            return f" {hint}"
        scores: dict[str, float] = {hint: 2.0} if hint else {}
        for known in self.known:
            home, _, last = known.rpartition(".")
            beside = _same_place(home, parent)
            alike = _alike(name, last)
            if known not in scores and alike >= (_ALIKE if beside else _ALIKE_ELSEWHERE):
                scores[known] = alike + (_BESIDE if beside else 0.0)
        best = sorted(scores, key=lambda known: -scores[known])[:3]
        close = [known for known in best if scores[known] >= scores[best[0]] - _SPREAD]
        shown = [f"{_shown(known, '' if whole else parent)} ({self.known[known].summary})" for known in close]
        return f" Near: {', '.join(shown)}." if shown else ""

    def _hint(self, name: str) -> str:
        best = max(self.hints, key=lambda foreign: _alike(name, foreign), default="")
        return self.hints[best] if best and _alike(name, best) >= _ALIKE_FOREIGN else ""


def near_value(value: object, choices: Iterable[object]) -> str:
    """A sentence with the choice that a misspelt value is closest to, or nothing."""
    scores = {str(one): _alike(str(value), str(one)) for one in choices}
    best = max(scores, key=lambda name: scores[name], default="")
    return f" Near: {best}." if scores.get(best, 0.0) >= _ALIKE else ""


def _shortened(text: str) -> str:
    """A text of bounded length: its beginning and its end, where the reason often stands."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 400]} ... {text[-400:]}"


def _shown(known: str, parent: str) -> str:
    home, _, last = known.rpartition(".")
    return last if _same_place(home, parent) else known


def _alike(one: str, other: str) -> float:
    """Likeness of two names between 0 and 1; case and the kind of dash do not count."""
    return SequenceMatcher(None, one.lower().replace("-", "_"), other.lower().replace("-", "_")).ratio()


def _same_place(declared: str, parent: str) -> bool:
    ours, theirs = declared.split("."), parent.split(".")
    return len(ours) == len(theirs) and all(a in (b, "*") for a, b in zip(ours, theirs, strict=True))
