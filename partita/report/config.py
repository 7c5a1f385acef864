"""Config section `report`: what the console shows, which samples and numbers are kept, which trackers get the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partita.config.schema import key

ConsoleMode = Literal["auto", "live", "plain", "quiet"]
TrackerName = Literal["tensorboard", "wandb", "trackio"]


@dataclass(frozen=True)
class ReportConfig:
    """What a run shows and keeps; `metrics.jsonl` is always written."""

    console: ConsoleMode = key(
        "auto", "live view, one plain line per step, or quiet (warnings only). auto: live on a terminal, else plain"
    )
    sample_every: int = key(5, "steps between two samples shown in the console; 0 shows none", ge=0)
    save_samples_every: int = key(1, "steps between two files of all samples in samples/; 0 keeps none", ge=0)
    compress_samples: bool = key(False, "write sample files as .jsonl.gz")
    keep_batches: int | None = key(
        100, "steps whose numbers stay in batches/ for partita replay, the newest; 0 keeps none, null keeps all", ge=0
    )
    trackers: tuple[TrackerName, ...] = key((), "where the metrics go besides metrics.jsonl; needs partita[trackers]")
    tracker_project: str = key("partita", "project name for wandb and trackio")
