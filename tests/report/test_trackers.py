"""A tracker that is not installed is an error that says what to install; one that is gets the finite values."""

import math
from pathlib import Path

import pytest

from partita.report import trackers
from partita.report.records import StepRecord
from partita.report.trackers import MissingTrackerError, open_tracker


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(MissingTrackerError, match=r"report.trackers names wandb.*pip install 'partita\[trackers\]'"):
        trackers._require("partita_has_no_such_module", "wandb")


def test_an_unknown_name_lists_the_choices(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'tensorbord'\. Choices: tensorboard, wandb, trackio"):
        open_tracker("tensorbord", tmp_path, project="", run_name="", settings={})


@pytest.mark.slow
def test_tensorboard_gets_each_step_once_over_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resume_step, last in ((0, 5), (3, 6)):
        sink = open_tracker("tensorboard", tmp_path, project="", run_name="", settings={}, resume_step=resume_step)
        for step in range(resume_step + 1, last + 1):
            sink.step(StepRecord(step, {"reward/mean": float(step), "bad": math.nan}))
        sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [
        (i, float(i)) for i in range(1, 7)
    ]
    assert events.Tags()["scalars"] == ["reward/mean"]
