import bz2
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partita.tasks.files import DataError, files_of, place_of, read_path, rows_after

ROWS = [{"question": "1+1?", "answer": "2a"}, {"question": "Straße → ?", "answer": "3"}]


def values(path, split="train"):
    return [row.values for row in read_path(path, split)]


def faults(path):
    return {row.where.removeprefix(f"{path.parent}/"): row.fault for row in read_path(path, "train") if row.fault}


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_the_same_rows_from_every_kind_of_file(tmp_path):
    text, table = lines(ROWS), "question,answer\n1+1?,2a\nStraße → ?,3\n"
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "b.json").write_text(json.dumps(ROWS))
    (tmp_path / "c.json").write_text(text)
    (tmp_path / "d.csv").write_text(table)
    (tmp_path / "e.tsv").write_text(table.replace(",", "\t"))
    (tmp_path / "f.ndjson").write_text(text)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "g.parquet", row_group_size=1)
    (tmp_path / "h.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "i.json.bz2").write_bytes(bz2.compress(json.dumps(ROWS).encode()))
    with pa.output_stream(str(tmp_path / "j.csv.zst"), compression="zstd") as packed:
        packed.write(table.encode())
    (tmp_path / "k.json").write_text(json.dumps(ROWS, indent=2))
    names = sorted(file.name for file in tmp_path.iterdir())
    assert len(names) == 11
    for name in names:
        assert values(tmp_path / name) == ROWS, name
    assert [row.where for row in read_path(tmp_path / "a.jsonl", "train")] == ["a.jsonl row 1", "a.jsonl row 2"]


def test_byte_order_mark_crlf_blank_lines_and_no_last_newline(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + lines(ROWS).replace("\n", "\r\n\r\n").rstrip().encode())
    assert values(file) == ROWS
    file.write_bytes(
        lines(ROWS[:1]).encode() + b"\xef\xbb\xbf" + lines(ROWS[1:]).encode()
    )  # two files, one behind the other
    assert values(file) == ROWS
    file.write_bytes(lines(ROWS).encode("utf-16"))  # as a redirection in Windows writes it
    assert values(file) == ROWS
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbfquestion,answer\r\n1+1?,2a\r\n")
    assert values(tmp_path / "rows.csv") == ROWS[:1]


def test_a_line_separator_inside_a_text_does_not_end_the_row(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "a\u2028b", "answer": "1"}\n')
    assert values(tmp_path / "rows.jsonl") == [{"question": "a\u2028b", "answer": "1"}]


def test_a_broken_line_is_named_with_file_and_line_and_the_others_are_read(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"a": 1}\n\n{"a": \n[1]\n{"a": "\xff"}\n{"a": 2}\n')
    assert [row.values for row in read_path(file, "train") if not row.fault] == [{"a": 1}, {"a": 2}]
    assert [row.where for row in read_path(file, "train")][-1] == "rows.jsonl row 5"
    assert faults(file) == {
        "rows.jsonl:3": "broken JSON (line 2): Expecting value at column 1",
        "rows.jsonl:4": "a list; every row must be a JSON object with named columns (a file that is one list is called .json)",
        "rows.jsonl:5": "not UTF-8 text at byte 7",
    }
    (tmp_path / "deep.jsonl").write_text("[" * 100_000 + "\n")
    assert faults(tmp_path / "deep.jsonl") == {"deep.jsonl:1": "nested deeper than 100 levels"}


def test_a_line_that_json_reads_with_a_loss_or_not_at_all_is_a_fault(tmp_path):
    def nested(levels):
        return '{"a": ' * (levels - 1) + "[]" + "}" * (levels - 1)

    file = tmp_path / "rows.jsonl"
    lines = ['{"a": 1, "b": {"x": 1, "y": 2, "x": 3}}', '{"a": %s}' % ("9" * 5000), nested(100), nested(101)]
    file.write_text("\n".join(lines))
    assert faults(file) == {
        "rows.jsonl:1": "an object with 'x' twice; keep one of the two",
        "rows.jsonl:2": "a number of thousands of digits; write it as text",
        "rows.jsonl:4": "nested deeper than 100 levels",
    }
    (tmp_path / "rows.json").write_text('{"a": ' * 100_000)
    assert faults(tmp_path / "rows.json") == {"rows.json:1": "nested deeper than 100 levels"}


def test_a_table_has_numbers_where_nothing_is_lost_by_it(tmp_path):
    (tmp_path / "rows.csv").write_text(
        'level,price,code,cost,note,nums\n1,0.5,007,2.50,,"[1, 2]"\n,3,008,1.00,x,"[3]"\n-2,,1,1e5,"a, ""b""\nc","[]"\n'
    )
    first, second, third = values(tmp_path / "rows.csv")
    assert first == {"level": 1, "price": 0.5, "code": "007", "cost": "2.50", "note": "", "nums": "[1, 2]"}
    assert (second["level"], second["price"], third["level"], third["price"]) == (None, 3, -2, None)
    assert third["note"] == 'a, "b"\nc'


def test_broken_tables_are_named_with_their_line(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_bytes(b'a,b\n1,"x\ny"\n1,2,3\n4\n\n5,\xff\n')
    assert values(file)[0] == {"a": 1, "b": "x\ny"}
    assert faults(file) == {
        "rows.csv:4": "3 cells, and the header has 2 columns",
        "rows.csv:5": "1 cells, and the header has 2 columns",
        "rows.csv:7": "not UTF-8 text at byte 1",
    }
    file.write_text('a,b\n1,"never closed\n2,3\n')
    with pytest.raises(DataError, match=r"rows.csv:3: broken CSV: unexpected end of data"):
        values(file)
    file.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(DataError, match="the header names 'a' twice"):
        values(file)
    file.write_text("question;answer\na;1\n")
    with pytest.raises(DataError, match="one column, 'question;answer': its cells seem to be separated by ';'"):
        values(file)


def test_files_that_cannot_be_read_say_why(tmp_path):
    (tmp_path / "rows.parquet").write_text("no parquet")
    (tmp_path / "rows.txt").write_text("x")
    (tmp_path / "rows.jsonl.gz").write_text("no gz")
    (tmp_path / "rows.parquet.gz").write_text("x")
    (tmp_path / "list.json").write_text('[{"a": 1},\n {"a": }]')
    (tmp_path / "held.json").write_text('{"data":\n [{"a": 1}]}')
    (tmp_path / "half.jsonl").write_bytes(b"\xff\xfea")
    for name, words in [
        ("rows.parquet", "not readable as parquet"),
        ("rows.txt", "unknown kind of file; known are .jsonl"),
        ("rows.parquet.gz", "unknown kind of file"),
        ("rows.jsonl.gz", "not readable as gz"),
        ("list.json", r"list.json: broken JSON \(line 2\): Expecting value at column 8"),
        ("held.json", r"one object that holds its rows in 'data'; take them out: jq '.data' held.json"),
        ("half.jsonl", "not UTF-8 text: 'utf-16"),
        ("row.jsonl", "no such file; .* has half.jsonl, held.json, list.json, rows.jsonl.gz, rows.parquet"),
        ("nowhere/rows.jsonl", "there is no folder"),
    ]:
        with pytest.raises(DataError, match=words):
            values(tmp_path / name)


def test_one_object_over_several_lines_is_one_row(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps({"a": 1, "b": [{"c": 2}]}, indent=1))
    assert values(tmp_path / "one.json") == [{"a": 1, "b": [{"c": 2}]}]
    (tmp_path / "some.json").write_text('[{"a": 1}, 2]')
    assert faults(tmp_path / "some.json") == {
        "some.json row 2": "a int; every row must be a JSON object with named columns"
    }


@pytest.mark.parametrize("skipped", [0, 1, 3, 4, 5, 9])
def test_rows_are_read_on_from_any_place_over_several_files(tmp_path, skipped):
    rows = [{"a": i} for i in range(9)]
    pq.write_table(pa.Table.from_pylist(rows[:3]), tmp_path / "a.parquet", row_group_size=2)
    (tmp_path / "b.jsonl").write_text(lines(rows[3:5]) + "\n" + lines(rows[5:6]))
    pq.write_table(pa.Table.from_pylist(rows[6:]), tmp_path / "c.parquet", row_group_size=1)
    files = files_of(tmp_path, "train")
    whole = list(rows_after(files, 0))
    assert [row.values for row in whole] == rows
    assert list(rows_after(files, skipped)) == whole[skipped:]


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


def test_hidden_copies_in_a_folder_are_not_rows_twice(tmp_path):
    (tmp_path / "train.jsonl").write_text(lines(ROWS))
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "train-checkpoint.jsonl").write_text(lines(ROWS))
    (tmp_path / "._train.jsonl").write_bytes(b"\x00\x05")
    assert values(tmp_path) == ROWS


@pytest.mark.parametrize(
    ("path", "why"), [("~nobody-of-this-name/rows.jsonl", "home directory"), ("a" * 5000, "File name too long")]
)
def test_what_cannot_be_a_path_is_named(path, why):
    with pytest.raises(DataError, match=f"{path[:200]}: cannot be a path: .*{why}"):
        place_of(path)
