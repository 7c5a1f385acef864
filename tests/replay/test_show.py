"""What a replay shows of samples that did not pass through the model."""

from pathlib import Path

import pytest
from replaying import toy_config, toy_run

from partita.replay import show
from partita.replay.replay import Replay, Request, replay


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step, in which groups of equal rewards are left out."""
    return toy_run(tmp_path_factory.mktemp("run"), toy_config("drgrpo", steps=1, skip_dead_samples=True))


def asked(folder: Path, monkeypatch: pytest.MonkeyPatch, sample: int | None = None) -> Replay:
    monkeypatch.setattr(show, "token_texts", lambda *_: None)
    return replay(folder, Request(1, sample=sample))


def test_a_sample_that_was_left_out_is_shown_as_such(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list(enumerate(asked(folder, monkeypatch).saved.record.steps, 1))
    sample = next(taken.left_out[0] for _, taken in steps if taken.left_out and taken.current is not None)
    out = [number for number, taken in steps if sample in taken.left_out]
    found = asked(folder, monkeypatch, sample)
    *_, table = show.tables_of(found)
    assert table.rows == ()
    assert table.notes == (
        "nothing was learned from it",
        f"nothing of it could move: it did not pass through the model at optimizer step {', '.join(map(str, out))}",
    )
    told = show.document(found)["sample"]
    assert (told["optimizer_steps"], told["left_out"]) == ([], out)


def test_a_sample_that_passed_has_its_tokens_and_no_note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = next(taken.computed[0] for taken in asked(folder, monkeypatch).saved.record.steps if taken.current)
    *_, table = show.tables_of(asked(folder, monkeypatch, sample))
    assert len(table.rows) > 0 and len(table.notes) == 1


def test_beside_the_tokens_stands_how_many_samples_they_are_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(folder, monkeypatch)
    [table] = [table for table in show.tables_of(found) if table.title == "Optimizer steps again"]
    at = table.head.index("computed")
    assert table.head[at - 1 : at + 2] == ("samples", "computed", "tokens")
    want = [
        ("0", "-") if taken.current is None else (str(len(taken.computed)), str(len(taken.current.logprobs_T)))
        for taken in found.saved.record.steps
    ]
    assert [row[at : at + 2] for row in table.rows] == want
    assert any(row[at] != row[at - 1] for row in table.rows if row[at] != "0")
    told = show.document(found)["optimizer_steps"]
    assert [one["left_out"] for one in told] == [list(taken.left_out) for taken in found.saved.record.steps]
