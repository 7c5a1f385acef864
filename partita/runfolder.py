"""A run's folder: how it is named, what config it holds, which checkpoint it goes on from.

runs/<experiment>/<trial>/  config.yaml  metrics.jsonl  reward.svg  samples/  checkpoints/  export/
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from partita.config import Loaded
from partita.run import RunConfig, load_run_config

CONFIG, CHECKPOINTS, EXPORT = "config.yaml", "checkpoints", "export"


class RunFolderError(RuntimeError):
    """A run folder is missing, taken, or not one."""


def new_folder(config: RunConfig) -> Path:
    """Make the folder of a new run. Raises RunFolderError when it cannot be made or the trial name is taken."""
    parent = Path(config.output_dir) / config.experiment_name
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{parent} cannot be made: {error.strerror}; set output_dir") from error
    if config.trial_name is not None:
        folder = parent / config.trial_name
        if (folder / CONFIG).exists():
            raise RunFolderError(
                f"{folder} holds a run already: go on with it (partita train --resume {folder}), or choose another trial_name"
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
    path = folder / CONFIG
    if not path.exists():
        near = sorted(str(p.parent) for p in folder.glob(f"*/{CONFIG}"))
        hint = f"; did you mean {near[-1]}?" if near else ""
        raise RunFolderError(f"{folder} is not a run folder: it has no {CONFIG}{hint}")
    return load_run_config([path], overrides)
