"""Rows chosen by their columns."""

import pytest

from partita.tasks.dataset import DataError, DatasetConfig, load_rows


def test_rows_are_chosen_by_their_columns(load):
    rows = [{"prompt": str(i), "answer": "1", "level": i, "of": {"kind": "ab"[i % 2]}} for i in range(6)]

    def kept(**where):
        return [row.messages[0]["content"] for row in load(rows, where=where).rows]

    assert kept(level=3) == ["3"] and kept(level=[1, 2.0]) == ["1", "2"]
    assert kept(level={"min": 2, "max": 4}) == ["2", "3", "4"] and kept(level={"max": 1}) == ["0", "1"]
    assert kept(**{"of.kind": "b"}) == kept(of={"kind": ["b"]}) == ["1", "3", "5"]
    assert kept(level={"min": 2}, of={"kind": "a"}) == ["2", "4"]
    loaded = load(rows, where={"level": [4, 5]}, size=1)
    assert [row.uid.split("-")[0] for row in loaded.rows] == ["5"]
    assert load(rows, where={"level": [4, 5]}).notes[-1] == "2 of 6 rows are as `where` wants them"
    with pytest.raises(DataError, match=r"where: no column 'levl' \(near: level\); the columns are prompt, answer"):
        kept(levl=3)
    with pytest.raises(DataError, match=r"where: no row has level '3'; its values are 0, 1, 2, 3, 4, 5"):
        kept(level="3")
    with pytest.raises(DataError, match=r"where: no row has level at least 9; its values are"):
        kept(level={"min": 9})
    with pytest.raises(DataError, match=r"no row has level True"):
        kept(level=True)
    with pytest.raises(DataError, match=r"rows.jsonl: no row has all that `where` asks for"):
        kept(level=2, of={"kind": "b"})


def test_rows_that_are_not_chosen_say_nothing_about_the_others(load):
    rows = [{"prompt": "a", "answer": "1", "kind": "plain"}, {"prompt": "b", "answer": "x #### 2", "kind": "solved"}]
    assert [row.answer for row in load(rows, where={"kind": "plain"}).rows] == ["1"]
    assert [row.answer for row in load(rows, where={"kind": "solved"}).rows] == ["2"]
    with pytest.raises(DataError, match="1 of 2 rows cannot be used"):
        load(rows)


def test_a_row_that_cannot_be_read_is_counted_whatever_is_chosen(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "answer": "1", "level": 1}\n{\n{"prompt": "b", "answer": "1", "level": 2}\n')
    found = load_rows(DatasetConfig(path=str(file), where={"level": 2}, on_bad_row="skip"), seed=1)
    assert [row.messages[0]["content"] for row in found.rows] == ["b"]
    assert any(note.startswith("1 of 2 rows left out") for note in found.notes)
