"""A reporter keeps what it is given, shows the sample that teaches most, and leaves files alone until it starts."""

import os
import sys
from pathlib import Path

import pytest

from partita.records import Group, Prompt, Sample
from partita.report.config import ReportConfig
from partita.report.records import StepRecord
from partita.report.reporter import Reporter, RunFacts
from partita.report.sinks import open_sinks, read_samples
from partita.report.trackers import MissingTrackerError, require_trackers


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
