"""What the screen knows of a run, by hand-computed numbers."""

import math

import pytest

from partita.report.records import StepRecord
from partita.report.view import OFFLINE_COLUMNS, Headline, RunView, phases, step_seconds


def test_what_is_counted_inside_phases_is_no_phase():
    inside = {"time/generate": 3.0, "time/forward_backward": 2.0, "time/optimizer": 0.5, "time/overhead_share": 0.1}
    assert phases(StepRecord(1, {"time/sample": 4.0, "time/learn": 3.0, "time/step": 7.5} | inside)) == {
        "sample": 4.0,
        "learn": 3.0,
    }


def view_of(*metrics: dict[str, float], total: int = 10) -> RunView:
    view = RunView("t", total, clock=lambda: 100.0, started=40.0)
    for step, values in enumerate(metrics, start=1):
        view.add(StepRecord(step, values))
    return view


def test_time_left_follows_the_recent_steps() -> None:
    assert view_of().eta is None
    assert view_of({"time/step": 100.0}, *[{"time/step": 4.0}] * 10, total=16).eta == pytest.approx(20.0)


def test_time_left_ignores_the_steps_before_a_resume() -> None:
    view = view_of({"time/step": 100.0}, {"time/step": 100.0})
    view.first_step = 2
    assert view.eta is None
    view.add(StepRecord(3, {"time/step": 2.0}))
    assert (view.eta, view.elapsed) == (14.0, 60.0)


def test_seconds_of_a_step() -> None:
    record = StepRecord(1, {"time/sample": 4.0, "time/learn": 3.0, "reward/mean": 1.0})
    assert phases(record) == {"sample": 4.0, "learn": 3.0}
    assert step_seconds(record) == 7.0
    assert step_seconds(StepRecord(1, {**record.metrics, "time/step": 7.5})) == 7.5


def test_reached_compares_the_first_with_the_last_steps() -> None:
    values = [0.0, 0.1, 0.2, math.nan, 0.6, 0.7, 0.8]
    assert view_of(*({"reward/mean": v} for v in values)).reached() == (pytest.approx(0.1), pytest.approx(0.7), 3)
    assert view_of({"reward/mean": 0.5}).reached() == (0.5, 0.5, 1)
    assert view_of({}).reached() is None


def test_alerts() -> None:
    view = view_of({"reward/error_share": 0.0}, {"dead_steps": 2.0, "reward/error_share": 0.5})
    view.warnings = {"once": 1, "often": 3}
    assert view.alerts() == [
        "once",
        "often (3 times)",
        "optimizer steps without a learning signal, left out: 2 (in 1 of 2 steps)",
        "samples whose reward failed: 25.0% on average, 50.0% last",
    ]


def test_the_headline_is_what_a_run_is_about() -> None:
    view = view_of({"loss": 0.7, "reward/mean": 5.0}, {"loss": 0.4}, {"loss": 0.1})
    assert view.reached() == (5.0, 5.0, 1)
    view.headline = Headline("loss", "loss", "loss", OFFLINE_COLUMNS)
    assert view.reached() == (pytest.approx(0.7), pytest.approx(0.1), 1)


def test_columns_of_training_on_data_name_each_metric_once() -> None:
    metrics = [column.metric for column in OFFLINE_COLUMNS]
    assert len(metrics) == len(set(metrics))
