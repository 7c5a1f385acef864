"""Files are strict JSON, complete or absent, and a resumed run leaves the same ones as a run that was not killed."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from partita.report.config import ReportConfig
from partita.report.records import StepRecord
from partita.report.sinks import (
    BatchSink,
    JsonlSink,
    ReportFileError,
    SampleSink,
    open_sinks,
    read_metrics,
    read_samples,
    strict_json,
    write_atomic,
)

INJECTION = "<script>alert(1)</script> [bold]x[/bold] \x1b[31m"


def parse(line: str) -> dict[str, object]:
    """A strict parser: bare NaN and Infinity are errors."""

    def refuse(name: str) -> None:
        raise AssertionError(f"not JSON: {name}")

    return json.loads(line, parse_constant=refuse)


def write_steps(sink: JsonlSink, first: int, last: int) -> None:
    for step in range(first, last + 1):
        sink.step(StepRecord(step, {"reward/mean": step / 10}))
    sink.close()


def test_each_line_is_strict_json_and_bad_values_are_null_and_counted(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "run" / "metrics.jsonl")
    sink.step(StepRecord(1, {"a": 0.5, "b": math.nan, "c": math.inf}))
    line = (tmp_path / "run" / "metrics.jsonl").read_text()  # on disk before close
    sink.close()
    assert parse(line) == {"step": 1, "a": 0.5, "b": None, "c": None, "nan_values": 2}


def test_killed_and_resumed_gives_the_file_of_an_uninterrupted_run(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    write_steps(JsonlSink(whole), 1, 6)
    write_steps(JsonlSink(broken), 1, 5)
    with broken.open("a") as file:
        file.write('{"step": 6, "rew')  # killed in the middle of a line
    write_steps(JsonlSink(broken, resume_step=3), 4, 6)
    assert broken.read_bytes() == whole.read_bytes()


def test_a_line_cut_inside_a_character_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "x": 1.0}\n' + '{"step": 2, "né'.encode()[:-1])
    assert read_metrics(path) == [StepRecord(1, {"x": 1.0})]


def test_a_new_run_starts_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(JsonlSink(path), 1, 3)
    JsonlSink(path).close()
    assert path.read_bytes() == b""


def test_a_foreign_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for foreign in ("hello", "[1]", '{"steps": 2}', '{"step": 2, "reward/mean": "high"}'):
        path.write_text(f'{{"step": 1}}\n{foreign}\n')
        with pytest.raises(ReportFileError, match=r"metrics\.jsonl:2: not the record of a step"):
            JsonlSink(path, resume_step=1)
        assert path.read_text() == f'{{"step": 1}}\n{foreign}\n'


def test_read_metrics_gives_null_back_as_nan(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.step(StepRecord(1, {"a": math.nan}))
    sink.close()
    (record,) = read_metrics(tmp_path / "m.jsonl")
    assert math.isnan(record.metrics["a"])


@pytest.mark.parametrize("compress", [False, True])
def test_samples_keep_every_character(tmp_path: Path, compress: bool) -> None:
    long = "x" * 1_000_000
    rows = [
        {"response": INJECTION, "advantages": [0.5, math.nan]},
        {"response": long},
        {"response": "\u2028 \ud800 数"},
    ]
    path = SampleSink(tmp_path, compress=compress).write(12, rows)
    assert path.name == ("step_000012.jsonl.gz" if compress else "step_000012.jsonl")
    back = read_samples(path)
    assert [row["response"] for row in back] == [INJECTION, long, "\u2028 \ud800 数"]
    assert back[0] == {"step": 12, "response": INJECTION, "advantages": [0.5, None]}


def test_sample_files_after_the_resumed_step_are_removed(tmp_path: Path) -> None:
    sink = SampleSink(tmp_path, every=2)
    for step in (2, 4, 6):
        sink.write(step, [{"response": ""}])
    (tmp_path / "notes.txt").write_text("mine")
    SampleSink(tmp_path, resume_step=4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "step_000002.jsonl", "step_000004.jsonl"]


def test_the_numbers_of_the_newest_steps_stay_and_a_resume_removes_later_ones(tmp_path: Path) -> None:
    def names() -> list[int]:
        return [int(path.stem.removeprefix("step_")) for path in sorted(tmp_path.glob("step_*"))]

    sink = BatchSink(tmp_path, keep=3)
    for step in range(1, 6):
        sink.write(step, {"x": torch.arange(step)}, {"step": step, "bad": math.nan})
    assert names() == [3, 4, 5]
    (tmp_path / "notes.txt").write_text("mine")
    BatchSink(tmp_path, keep=3, resume_step=4).write(5, {}, {})
    assert names() == [3, 4, 5]
    BatchSink(tmp_path, keep=0, resume_step=3)
    assert names() == [3]
    every = BatchSink(tmp_path, keep=None, resume_step=3)
    every.write(900, {}, {})
    assert names() == [3, 900]
    assert (tmp_path / "notes.txt").exists()


def test_numbers_are_tensors_beside_strict_json_the_same_bytes_every_time(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    tensors = {"b": shared, "a": shared[::2], "c": shared.bool()}  # one memory, and not contiguous
    first = BatchSink(tmp_path / "x").write(1, tensors, {"z": math.inf, "a": [1, "é"]})
    second = BatchSink(tmp_path / "y").write(1, dict(reversed(tensors.items())), {"z": math.inf, "a": [1, "é"]})
    assert first.read_bytes() == second.read_bytes()
    with safe_open(first, "pt") as file:
        assert file.metadata() == {"partita": '{"z": null, "a": [1, "é"]}'}
        assert file.get_tensor("a").tolist() == [0.0, 2.0, 4.0]


def test_which_steps_keep_samples(tmp_path: Path) -> None:
    assert [step for step in range(1, 7) if SampleSink(tmp_path, every=3).due(step)] == [3, 6]
    assert not SampleSink(tmp_path, every=0).due(3)


def test_atomic_write_leaves_no_partial_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"old")
    write_atomic(tmp_path / "a", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"new")]


def test_strict_json_keeps_text_readable() -> None:
    assert strict_json({"t": "数", 1: (math.inf, True, None)}) == '{"t": "数", "1": [null, true, null]}'


def test_metrics_are_always_kept(tmp_path: Path) -> None:
    (sink,) = open_sinks(ReportConfig(), tmp_path, run_name="r", settings={})
    sink.step(StepRecord(1, {}))
    sink.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
