"""A run's folder: how it is named, what config it holds, which checkpoint it goes on from.

runs/<experiment>/<trial>/  config.yaml  python.json  metrics.jsonl  reward.svg  samples/  batches/  checkpoints/  best/
export/  export_critic/  launch/
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

from safetensors import SafetensorError

from partita.config import Loaded
from partita.launch.roles import FOLDER
from partita.report.reporter import Reporter
from partita.run import RunConfig, load_run_config
from partita.train.checkpoint import latest_checkpoint

CONFIG, CHECKPOINTS, EXPORT, CRITIC_EXPORT = "config.yaml", "checkpoints", "export", "export_critic"


class RunFolderError(RuntimeError):
    """A run folder is missing, taken, or not one."""


class DiskError(RuntimeError):
    """A file could not be written because the disk is full."""


class Named(Protocol):
    """What a config says about where its run lies."""

    @property
    def output_dir(self) -> str: ...
    @property
    def experiment_name(self) -> str: ...
    @property
    def trial_name(self) -> str | None: ...


def given_folder() -> Path | None:
    """The run folder that a launcher has made for this process; None where none started it."""
    given = os.environ.get(FOLDER)
    return Path(given) if given else None


def begun_folder() -> Path | None:
    """`given_folder`, where a run has begun in it: this process goes on with that."""
    given = given_folder()
    return given if given is not None and (given / CONFIG).exists() else None


def new_folder(config: Named, command: str = "train") -> Path:
    """Make the folder of a new run of this command, or take the one that a launcher has made for it.

    Raises RunFolderError when it cannot be made or the trial name is taken.
    """
    if (given := given_folder()) is not None:
        return given
    parent = Path(config.output_dir) / config.experiment_name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return _claim(parent, config.trial_name, command)
    except OSError as error:
        raise RunFolderError(f"{parent} cannot be made: {error.strerror}; set output_dir") from error


def _claim(parent: Path, trial: str | None, command: str) -> Path:
    if trial is not None:
        folder = parent / trial
        if (folder / CONFIG).exists():
            raise RunFolderError(
                f"{folder} holds a run already: go on with it (partita {command} --resume {quote(str(folder))}), or choose "
                "another trial_name"
            )
        folder.mkdir(exist_ok=True)
        return folder
    for number in range(1, 10_000):
        folder = parent / f"{number:03d}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise RunFolderError(f"{parent} holds 9999 numbered runs: set trial_name or another experiment_name")


def run_config_of(folder: Path, overrides: Sequence[str]) -> Loaded[RunConfig]:
    """The config that a run was started with, with overrides on top. Raises RunFolderError for a folder without one."""
    _check_is_run(folder)
    return load_run_config([folder / CONFIG], overrides)


def resume_point(folder: Path) -> Path | None:
    """The checkpoint that the run in `folder` goes on from; None where none was written yet: it starts at step 0.

    Raises RunFolderError where there are checkpoints and none is whole, and for a folder that is no run's.
    """
    _check_is_run(folder)
    root = folder / CHECKPOINTS
    newest, there = latest_checkpoint(root), sorted(path.name for path in root.glob("step_*"))
    if newest is None and there:
        raise RunFolderError(
            f"{folder} has no whole checkpoint to go on from, all are damaged: {', '.join(there)}. Restore one of them, or "
            f"remove them ({root}) to start at step 0 again"
        )
    return newest


def check_start(state: Mapping[str, Any], started: int, path: str) -> None:
    """Raises RunFolderError where a run goes on from weights that it did not start from: those its adapters are added to, and
    what its policy is compared with.
    """
    if state.get("started", started) != started:  # a run of before has noted none
        raise RunFolderError(
            f"actor.path={path} holds other weights than when this run began, and they are still in use (adapters, or the "
            "reference): put the former ones back, or start a new run"
        )


@contextmanager
def disk_full_is_readable(folder: Path, command: str) -> Iterator[None]:
    """Raise DiskError where the block fails to write below `folder` for want of space; `command` is what to do then."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskError(f"{folder} cannot be written to: {error}. Free some space, then: {command}") from error


def _check_is_run(folder: Path) -> None:
    if not (folder / CONFIG).exists():
        near = sorted(str(path.parent) for path in folder.glob(f"*/{CONFIG}"))
        hint = f"; did you mean {near[-1]}?" if near else ""
        raise RunFolderError(f"{folder} is not a run folder: it has no {CONFIG}{hint}")


@contextmanager
def told_how_to_go_on(folder: Path, command: str, reporter: Reporter) -> Iterator[None]:
    """A run that cannot go on says how it can: `command`, from its last whole checkpoint."""
    with disk_full_is_readable(folder, command):
        try:
            yield
        except BaseException:
            if last := latest_checkpoint(folder / CHECKPOINTS):
                reporter.console.warn(f"stopped; to go on from {last.name}: {command}")
            raise
