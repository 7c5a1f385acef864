"""Experiment trackers as sinks: TensorBoard, Weights & Biases, Trackio. The only module that imports them.

Each import happens when its tracker is opened: a run that uses none of them needs none of them.
Left out: samples, which stay in the run folder.
"""

from __future__ import annotations

import importlib
import json
import math
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from partita.report.records import StepRecord

Settings = Mapping[str, Any]


class MissingTrackerError(ImportError):
    """A tracker was asked for that is not installed."""


def open_tracker(
    name: str, folder: Path, *, project: str, run_name: str, settings: Settings, resume_step: int = 0
) -> TensorBoardSink | WandbSink | TrackioSink:
    """The sink for a tracker's name. Raises MissingTrackerError, ValueError for an unknown name."""
    if name == "tensorboard":
        return TensorBoardSink(folder / "tensorboard", settings, resume_step)
    if name == "wandb":
        return WandbSink(folder, project, run_name, settings)
    if name == "trackio":
        return TrackioSink(project, run_name, settings)
    raise ValueError(f"report.trackers: unknown tracker {name!r}. Choices: tensorboard, wandb, trackio")


def require_trackers(names: Iterable[str]) -> None:
    """Raise MissingTrackerError for the first tracker that cannot be imported, before the slow part of a run's start."""
    for name in names:
        _require(name, name)


class TensorBoardSink:
    """Scalars under the metric names; events after the step a run resumes from are hidden."""

    def __init__(self, folder: Path, settings: Settings, resume_step: int = 0) -> None:
        _require("tensorboard", "tensorboard")
        writer = _require("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(str(folder), purge_step=resume_step + 1 if resume_step else None)
        if not resume_step:
            config = json.dumps(settings, indent=2, default=str)
            self._writer.add_text("config", "    " + config.replace("\n", "\n    "))

    def step(self, record: StepRecord) -> None:
        """Write the finite values of one step."""
        for name, value in _finite(record).items():
            self._writer.add_scalar(name, value, record.step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbSink:
    """A Weights & Biases run; its id is kept in the run folder so that a resumed run continues it."""

    def __init__(self, folder: Path, project: str, run_name: str, settings: Settings) -> None:
        wandb = _require("wandb", "wandb")
        known = folder / "wandb_id.txt"
        if not known.exists():
            folder.mkdir(parents=True, exist_ok=True)
            known.write_text(secrets.token_hex(8), encoding="utf-8")
        self._run = wandb.init(
            project=project,
            name=run_name,
            id=known.read_text(encoding="utf-8").strip(),
            resume="allow",
            dir=str(folder),
            config=dict(settings),
        )

    def step(self, record: StepRecord) -> None:
        """Log the finite values of one step."""
        self._run.log(_finite(record), step=record.step)

    def close(self) -> None:
        """Finish the run, which waits for its upload."""
        self._run.finish()


class TrackioSink:
    """A Trackio run of the given name; a run of that name is continued."""

    def __init__(self, project: str, run_name: str, settings: Settings) -> None:
        trackio = _require("trackio", "trackio")
        self._run = trackio.init(project=project, name=run_name, resume="allow", config=dict(settings))

    def step(self, record: StepRecord) -> None:
        """Log the finite values of one step."""
        self._run.log(_finite(record), step=record.step)

    def close(self) -> None:
        """Finish the run, which waits for what is not yet stored."""
        self._run.finish()


def _require(module: str, tracker: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingTrackerError(
            f"report.trackers names {tracker}, which cannot be imported ({error}). "
            "Install it: pip install 'partita[trackers]', or leave it out of report.trackers"
        ) from error


def _finite(record: StepRecord) -> dict[str, float]:
    return {name: value for name, value in record.metrics.items() if math.isfinite(value)}
