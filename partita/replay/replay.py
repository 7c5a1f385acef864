"""One replay: what was asked for, and everything that was found.

Left out: how it is shown (`show`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.models.load import ModelLoadError, load_tokenizer
from partita.replay.again import Again, Difference, compute_again, step_config
from partita.replay.exact import Exact, exact
from partita.replay.others import Other, as_trained, judge, other_config
from partita.replay.saved import SavedStep, read_step
from partita.run import RunConfig
from partita.runfolder import EXPORT, RunFolderError, run_config_of


class ReplayMismatch(RuntimeError):
    """A step does not come out again as it was trained."""


@dataclass(frozen=True)
class Request:
    """What to look at. presets: other algorithms. changes: `actor.key=value`, on top of each of them, or without any on
    top of the trained one. sample: whose tokens to show, counted from 0. exact: true gradients, too.
    """

    step: int
    presets: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    sample: int | None = None
    exact: bool = False


@dataclass(frozen=True)
class Replay:
    """A step of the run in `folder`. told: the trained algorithm, then the others."""

    folder: Path
    request: Request
    saved: SavedStep
    again: Again
    told: tuple[Other, ...]
    exact: Exact | None

    @property
    def computed(self) -> tuple[Other, ...]:
        """The algorithms that had all that they need, the trained one first."""
        return tuple(one for one in self.told if one.algorithm is not None)

    def check(self) -> None:
        """Raise ReplayMismatch where something differs by more than rounding."""
        if self.again.wrong:
            raise ReplayMismatch(_loud(self.folder, self.request.step, self.again.wrong))


def replay(folder: Path, request: Request) -> Replay:
    """Compute a step again, beside other algorithms.

    Raises RunFolderError for a step that is not there or cannot be read, and ConfigError for an algorithm that is none.
    """
    run = run_config_of(folder, []).value
    saved = read_step(folder, request.step)
    config = step_config(run, saved.setting)
    _check_sample(saved, request)
    trained = saved.setting.algorithm
    names = dict.fromkeys(request.presets) or dict.fromkeys([None] if request.changes else [])
    others = {_title(name or trained, request.changes): other_config(config, name, request.changes) for name in names}
    again = compute_again(config, saved)
    told = [as_trained("trained" if trained is None else f"trained ({trained})", again)]
    told += [judge(title, one, again, saved) for title, one in others.items()]
    gradients = exact(folder, config, saved, told) if request.exact else None
    return Replay(folder, request, saved, again, tuple(told), gradients)


def token_texts(folder: Path, config: RunConfig, ids: Sequence[int]) -> list[str] | None:
    """The text of each token by itself, None where the run's tokenizer is not at hand."""
    exported = folder / EXPORT
    path = str(exported) if exported.exists() else config.tokenizer_path or config.actor.path
    try:
        tokenizer = load_tokenizer(path, config.actor.trust_remote_code)
    except ModelLoadError:
        return None
    return [str(tokenizer.decode([token])) for token in ids]


def _title(base: str | None, changes: Sequence[str]) -> str:
    return " with ".join(filter(None, [base or "trained", ", ".join(changes)]))


def _check_sample(saved: SavedStep, request: Request) -> None:
    many = saved.batch.samples
    if request.sample is not None and request.sample >= many:
        raise RunFolderError(f"--sample {request.sample}: step {request.step} has samples 0 to {many - 1}")


def _loud(folder: Path, step: int, wrong: Sequence[Difference]) -> str:
    return (
        f"step {step} of {folder} does NOT come out again as it was trained:\n"
        + "\n".join(f"  {one}" for one in wrong)
        + "\nThe file was changed, or written by a version of partita that computed something else"
    )
