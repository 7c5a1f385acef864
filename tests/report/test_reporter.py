"""A reporter keeps what it is given, shows the sample that teaches most, and leaves files alone until it starts."""

import os
import sys
import threading
from pathlib import Path

import pytest

from partita.records import Group, Prompt, Sample
from partita.report.config import ReportConfig
from partita.report.records import StepRecord
from partita.report.reporter import Reporter, RunFacts
from partita.report.sinks import open_sinks, read_metrics, read_samples
from partita.report.trackers import MissingTrackerError, require_trackers
from partita.report.view import OFFLINE_COLUMNS, Headline


def group(serial: int, *rewards: float | None, answer: str | None = None) -> Group:
    samples = [Sample([], "stop", f"says {reward}", reward) for reward in rewards]
    return Group(serial, Prompt(f"p{serial}", (), "two and two?", {"answer": "2 + 2\n#### 4"}, answer=answer), samples)


def reporter(folder: Path, resume_step: int = 0) -> Reporter:
    return Reporter(ReportConfig(console="plain", sample_every=1), RunFacts(folder, "ünï/001", 3, {}, resume_step))


def test_the_screen_shows_the_widest_group_its_best_sample_and_the_answer_it_was_judged_by(tmp_path, capsys) -> None:
    made = reporter(tmp_path)
    made.start({})
    groups = [group(0, None, None), group(1, 0.5, 0.5, answer="3"), group(2, None, 0.0, 1.0, answer="4")]
    made.step(StepRecord(1, {"reward/mean": 0.5}), groups, None)
    made.finish({})
    made.close()
    shown = capsys.readouterr().out
    assert "response  says 1.0" in shown
    assert "answer    4\n" in shown
    assert len(read_samples(tmp_path / "samples" / "step_000001.jsonl")) == 7
    assert "ünï/001" in (tmp_path / "reward.svg").read_bytes().decode("utf-8")


def test_files_of_the_run_are_untouched_until_the_start(tmp_path: Path) -> None:
    metrics, late = tmp_path / "metrics.jsonl", tmp_path / "samples" / "step_000002.jsonl"
    metrics.write_text('{"step": 1}\n{"step": 2}\n')
    late.parent.mkdir()
    late.write_text("")
    made = reporter(tmp_path, resume_step=1)
    made.close()
    assert metrics.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert late.exists()
    made.start({})
    made.close()
    assert metrics.read_text() == '{"step": 1}\n'
    assert not late.exists()


@pytest.mark.parametrize("keep", [0, 1, None])
def test_numbers_are_kept_from_the_start_on_unless_none_are_wanted(tmp_path: Path, keep: int | None) -> None:
    late = tmp_path / "batches" / "step_000003.safetensors"
    late.parent.mkdir()
    late.write_bytes(b"")
    made = Reporter(ReportConfig(console="quiet", keep_batches=keep), RunFacts(tmp_path, "x", 3, {}, 2))
    assert made.batches is None and late.exists()
    made.start({})
    made.close()
    assert (made.batches is None) == (keep == 0)
    assert not late.exists()


class Slow:
    """A tracker whose network stalls until it is let go on, and then fails or not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.free, self.error, self.seen = threading.Event(), error, list[int]()

    def step(self, record: StepRecord) -> None:
        assert self.free.wait(60)
        if self.error is not None:
            raise self.error
        self.seen.append(record.step)

    def close(self) -> None:
        pass


def test_no_step_waits_for_a_tracker_and_none_is_lost(tmp_path: Path) -> None:
    made, slow = reporter(tmp_path), Slow()
    made.start({})
    made.sinks.append(slow)
    for step in range(1, 6):
        made.step(StepRecord(step, {}), [], None)  # would never return if it waited
    assert slow.seen == []
    slow.free.set()
    made.wait()
    assert slow.seen == [1, 2, 3, 4, 5]
    assert [record.step for record in read_metrics(tmp_path / "metrics.jsonl")] == slow.seen
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("report")]


def test_what_could_not_be_kept_is_raised_before_the_next_checkpoint(tmp_path: Path) -> None:
    made, broken = reporter(tmp_path), Slow(OSError(28, "No space left on device"))
    made.start({})
    made.sinks.append(broken)
    broken.free.set()
    made.step(StepRecord(1, {}), [], None)
    with pytest.raises(OSError, match="No space left"):
        made.wait()
    made.step(StepRecord(2, {}), [], None)
    with pytest.raises(OSError, match="No space left"):
        made.close()
    assert not open_files(tmp_path)


class Stubborn:
    closed = 0

    def step(self, record: StepRecord) -> None:
        pass

    def close(self) -> None:
        Stubborn.closed += 1
        raise OSError("will not close")


def test_a_sink_that_does_not_close_keeps_no_other_open(tmp_path: Path) -> None:
    made = reporter(tmp_path)
    made.start({})
    made.sinks += [Stubborn(), Stubborn()]
    with pytest.raises(OSError, match="will not close"):
        made.close()
    assert Stubborn.closed == 2
    assert not open_files(tmp_path)


def test_a_missing_tracker_is_named_and_leaves_no_file_open(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)  # as if it were not installed
    with pytest.raises(MissingTrackerError, match="names trackio"):
        require_trackers(["trackio"])
    with pytest.raises(MissingTrackerError, match="names trackio"):
        open_sinks(ReportConfig(trackers=("trackio",)), tmp_path, run_name="", settings={})
    assert (tmp_path / "metrics.jsonl").exists()
    assert not open_files(tmp_path)


def open_files(folder: Path) -> list[str]:
    """Files below `folder` that this process holds open."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [target for link in links if os.path.islink(link) and (target := os.readlink(link)).startswith(str(folder))]


def test_the_picture_is_of_the_headline(tmp_path: Path) -> None:
    told = Headline("loss", "loss", "loss", OFFLINE_COLUMNS)
    made = Reporter(ReportConfig(console="quiet"), RunFacts(tmp_path, "sft/001", 2, {}, headline=told))
    made.start({})
    made.step(StepRecord(1, {"loss": 0.5}), (), None)
    made.step(StepRecord(2, {"loss": 0.25}), (), None)
    made.finish({})
    made.close()
    picture = (tmp_path / "loss.svg").read_text()
    assert "sft/001: loss by step" in picture and "reward" not in picture
    assert not (tmp_path / "reward.svg").exists()
    assert [record.metrics["loss"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [0.5, 0.25]
