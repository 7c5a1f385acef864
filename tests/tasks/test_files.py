import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partita.tasks.files import DataError, read_path

ROWS = [{"question": "1+1?", "answer": "2"}, {"question": "Straße → ?", "answer": "3"}]


def values(path, split="train"):
    return [row.values for row in read_path(path, split)]


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_the_same_rows_from_every_kind_of_file(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(ROWS))
    (tmp_path / "b.json").write_text(json.dumps(ROWS))
    (tmp_path / "c.json").write_text(lines(ROWS))
    (tmp_path / "d.csv").write_text("question,answer\n1+1?,2\nStraße → ?,3\n")
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "e.parquet")
    for name in ("a.jsonl", "b.json", "c.json", "d.csv", "e.parquet"):
        assert values(tmp_path / name) == ROWS, name
    assert [row.where for row in read_path(tmp_path / "a.jsonl", "train")] == ["a.jsonl row 1", "a.jsonl row 2"]


def test_byte_order_mark_crlf_blank_lines_and_no_last_newline(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + lines(ROWS).replace("\n", "\r\n\r\n").rstrip().encode())
    assert values(file) == ROWS
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbfquestion,answer\r\n1+1?,2\r\n")
    assert values(tmp_path / "rows.csv") == ROWS[:1]


def test_a_line_separator_inside_a_text_does_not_end_the_row(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "a\u2028b", "answer": "1"}\n')
    assert values(tmp_path / "rows.jsonl") == [{"question": "a\u2028b", "answer": "1"}]


def test_a_broken_line_is_named_with_file_and_line(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(DataError, match=r"rows.jsonl:3: broken JSON"):
        values(tmp_path / "rows.jsonl")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    with pytest.raises(DataError, match=r"list.jsonl:1: a list; every row must be a JSON object"):
        values(tmp_path / "list.jsonl")


def test_files_that_cannot_be_read_say_why(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": "\xff"}\n')
    (tmp_path / "rows.csv").write_text("a,b\n1,2,3\n")
    (tmp_path / "rows.parquet").write_text("no parquet")
    (tmp_path / "rows.txt").write_text("x")
    for name, words in [
        ("rows.jsonl", "not UTF-8 text at byte 7"),
        ("rows.csv", "row 1: more cells than the header"),
        ("rows.parquet", "not readable as parquet"),
        ("rows.txt", "unknown kind of file; known are .jsonl"),
        ("row.jsonl", "no such file; .* has rows.csv, rows.jsonl, rows.parquet"),
        ("nowhere/rows.jsonl", "there is no folder"),
    ]:
        with pytest.raises(DataError, match=words):
            values(tmp_path / name)


def test_of_a_folder_only_the_files_of_the_split_are_read(tmp_path):
    (tmp_path / "train-0.jsonl").write_text(lines(ROWS[:1]))
    (tmp_path / "train-1.jsonl").write_text(lines(ROWS[1:]))
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "part.jsonl").write_text(lines([{"question": "held out", "answer": "1"}]))
    assert values(tmp_path, "train") == ROWS
    assert values(tmp_path, "test") == [{"question": "held out", "answer": "1"}]
    with pytest.raises(DataError, match=r"no file of split 'validation'; the folder has test/part.jsonl"):
        values(tmp_path, "validation")


def test_a_folder_whose_files_name_no_split_is_read_whole(tmp_path):
    with pytest.raises(DataError, match=r"no \.jsonl"):
        values(tmp_path)
    (tmp_path / "algebra.jsonl").write_text(lines(ROWS[:1]))
    (tmp_path / "geometry.jsonl").write_text(lines(ROWS[1:]))
    assert values(tmp_path) == ROWS
