"""What Python brings to a run beside its config, and the note of it in the run folder: a resume must bring the same.

Left out: comparing code. Names are compared; a function that was rewritten keeps its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from partita.records import Group
from partita.report.sinks import write_atomic
from partita.rollout.workflow import Workflow
from partita.runfolder import RunFolderError
from partita.tasks.binding import name_of

PYTHON = "python.json"
Rewards = Sequence[Callable[..., Any]]


@dataclass(frozen=True)
class Brought:
    """Names of the reward functions, the class of the workflow, and whether there was a filter of groups."""

    rewards: tuple[str, ...] = ()
    workflow: str | None = None
    filter: bool = False

    def __str__(self) -> str:
        parts = [f"reward {name}" for name in self.rewards]
        parts += [f"workflow {self.workflow}"] if self.workflow else []
        parts += ["a filter"] if self.filter else []
        return ", ".join(parts) or "nothing"

    def resume_command(self, folder: Path, *overrides: str) -> str:
        """How to go on with the run in `folder`: by the command line, or from Python where that brought something."""
        if self == Brought():
            return " ".join(["partita train --resume", quote(str(folder)), *overrides])
        rewards = f"rewards=[{', '.join(self.rewards)}], " if self.rewards else ""
        given = [f"workflow={self.workflow}(...)"] if self.workflow else []
        given += ["dynamic_filter_fn=..."] if self.filter else []
        return f"PPOTrainer(config, {rewards}resume={str(folder)!r}).train({', '.join(given)})"


@dataclass(frozen=True)
class Extras:
    """What a Python caller may bring beside the config: rewards as objects, a workflow, a group filter."""

    rewards: Rewards = ()
    workflow: Workflow | None = None
    keep: Callable[[Group], bool] | None = None

    @property
    def names(self) -> Brought:
        """What of it can be compared."""
        workflow = None if self.workflow is None else type(self.workflow).__qualname__
        return Brought(tuple(map(name_of, self.rewards)), workflow, self.keep is not None)

    def check(self, folder: Path) -> None:
        """Raise RunFolderError unless the run in `folder` was started with the same."""
        before, now = brought_to(folder), self.names
        if before != now:
            raise RunFolderError(
                f"{folder} was started with {before} from Python, and this resume brings {now}: it would train on something "
                f"else. Go on with: {before.resume_command(folder)}"
            )

    def note(self, folder: Path) -> None:
        """Write the names into a run folder; no file where nothing was brought."""
        if self.names == Brought():
            (folder / PYTHON).unlink(missing_ok=True)  # of a run that ended before it had begun
        else:
            write_atomic(folder / PYTHON, json.dumps(asdict(self.names), indent=2).encode())


def brought_to(folder: Path) -> Brought:
    """What Python brought to the run in `folder`. Raises RunFolderError for a note that cannot be read."""
    path = folder / PYTHON
    if not path.exists():
        return Brought()
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return Brought(tuple(known["rewards"]), known["workflow"], known["filter"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path}: not a note of what Python brought ({type(error).__name__}: {error})") from error
