"""The model of the best evaluation, kept in the run folder while the run goes on, as `best/step_000012`.

Left out: which evaluation is the best (`ends.EarlyStop`).
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

from partita.ends import EarlyStop
from partita.models.export import whole

BEST = "best"


def best_folder(run: Path, step: int) -> Path:
    """Where the model of a best evaluation is kept while the run goes on."""
    return run / BEST / f"step_{step:06d}"


def restore_best(run: Path, export: Path, stop: EarlyStop | None, finished: int) -> list[str]:
    """Put the model of the best evaluation in the place of `export`, which holds that after `finished` steps, where the early stop
    asks for it; a line about it.
    """
    step = None if stop is None else stop.chosen
    if stop is None or step is None or step == finished:
        return []
    kept = best_folder(run, step)
    if not kept.exists():
        warnings.warn(f"{kept} is gone: {export} holds the last weights, not the best", stacklevel=2)
        return []
    with whole(export) as part:
        shutil.copytree(kept, part, dirs_exist_ok=True)
    return [f"export/ holds the weights after step {step}, the best: {stop.config.metric} {stop.best:.4g}"]


def remove_beaten(run: Path, step: int) -> None:
    """Keep the model of `step` only; after a checkpoint that knows it as the best."""
    for folder in (run / BEST).glob("*"):
        if folder != best_folder(run, step):
            shutil.rmtree(folder)
