"""Sources that are read as they go: every row once an epoch, in a fixed order, and on from the very prompt after a kill."""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_model import byte_tokenizer

from partita.tasks.dataset import ColumnsConfig, DataError, DatasetConfig, load_rows
from partita.tasks.graders.math import math_correct
from partita.tasks.hub import stream_hub
from partita.tasks.prompt import PromptError, Sieve
from partita.tasks.rates import PassRates
from partita.tasks.rendering import rendering_of
from partita.tasks.settings import PassRatesConfig
from partita.tasks.split import digest
from partita.tasks.stream import Stream, load_head

ROWS = [{"question": f"What is {i}?", "answer": f"#### {i}"} for i in range(10)]


@pytest.fixture
def write(tmp_path):
    def write(rows, name="rows.jsonl"):
        file = tmp_path / name
        if file.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=3)
        elif file.suffix == ".jsonl":
            file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        else:
            datasets.Dataset.from_list(rows).save_to_disk(file)
        return str(file)

    return write


def stream(path, seed=3, **keys):
    config = DatasetConfig(path=path, streaming=True, **{"buffer_rows": 4, **keys})
    return Stream(config, Sieve(rendering_of(byte_tokenizer(), config), config, 512, 8), seed)


def drawn(source, count):
    return [source.next().answer for _ in range(count)]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "saved"])
def test_every_row_comes_once_an_epoch_block_by_block(write, name):
    path = write(ROWS, name)
    found = drawn(stream(path), 20)
    for epoch in (found[:10], found[10:]):
        assert [sorted(epoch[:4]), sorted(epoch[4:8]), sorted(epoch[8:])] == [list("0123"), list("4567"), list("89")]
    assert found[:10] != found[10:] and found[:4] != sorted(found[:4])
    assert drawn(stream(path), 20) == found == drawn(stream(write(ROWS)), 20)
    assert drawn(stream(path, seed=4), 20) != found
    assert drawn(stream(path, shuffle=False), 12) == [*map(str, range(10)), "0", "1"]
    assert sorted(drawn(stream(path, buffer_rows=99), 10)) == [str(i) for i in range(10)]
    assert drawn(stream(write(ROWS[:8])), 9)[8] in "0123"  # an end between two blocks


@pytest.mark.parametrize("taken", [0, 1, 4, 9, 10, 13, 27])
def test_a_restored_stream_goes_on_at_the_very_prompt(write, taken):
    path = write(ROWS, "rows.parquet")
    source, other = stream(path), stream(path)
    drawn(source, taken)
    other.load_state_dict(json.loads(json.dumps(source.state_dict())))
    assert drawn(other, 25) == drawn(source, 25)


def test_a_place_in_other_data_or_another_order_is_refused(write):
    state = stream(write(ROWS)).state_dict()
    for changed, words in [
        (stream(write(ROWS), seed=4), "is for seed=3, this run has seed=4"),
        (stream(write(ROWS), buffer_rows=5), "first_block="),
        (stream(write(ROWS), shuffle=False), "shuffle=True"),
        (stream(write(ROWS[1:])), "first_block="),
    ]:
        with pytest.raises(ValueError, match=words):
            changed.load_state_dict(state)


def test_a_data_set_of_the_hub_is_fetched_as_it_goes(write, tmp_path):
    write(ROWS, "train.jsonl")  # a folder is laid out as a repository is
    rows = list(stream_hub(str(tmp_path), None, "train", 7))
    assert [row.values for row in rows] == ROWS[7:] and rows[0].where.endswith("[train] row 8")


def test_the_first_block_decides_and_brings_the_reward(write):
    config = DatasetConfig(path=write(ROWS), streaming=True, buffer_rows=4)
    head = load_head(config)
    assert [row.answer for row in head.rows] == list("0123") and head.functions == (math_correct,)
    assert head.notes[-1].endswith("read as it goes, 4 rows at a time; these are the first")
    assert head.rows[0].messages[0]["content"].startswith("What is 0?\n")
    with pytest.raises(DataError, match="train_dataset: no column called messages"):
        load_head(DatasetConfig(path=write([{"x": 1}]), streaming=True))
    with pytest.raises(DataError, match=r"train_dataset: .*: no rows"):
        load_head(DatasetConfig(path=write([]), streaming=True))


def test_bad_rows_stop_where_they_are_met_or_are_left_out_with_a_warning(write):
    rows = [*ROWS[:5], {"question": "x", "answer": "no mark"}, *ROWS[6:], {"question": "", "answer": "#### 1"}]
    source = stream(write(rows), shuffle=False)
    assert drawn(source, 4) == list("0123")
    with pytest.raises(
        DataError, match=r"1 of 4 rows cannot be used.*\n  rows.jsonl row 6: 'answer' has no '#### answer'"
    ):
        source.next()
    with pytest.warns(UserWarning, match=r"the first of .*rows.jsonl: rows.jsonl row 6") as told:
        assert drawn(stream(write(rows), shuffle=False, on_bad_row="drop"), 10) == [*"012346789", "0"]
    assert len(told) == 1


def test_rows_are_chosen_as_they_come(write, tmp_path):
    rows = [{**row, "level": i % 5} for i, row in enumerate(ROWS)]
    source = stream(write(rows), where={"level": 4}, buffer_rows=2, shuffle=False)
    assert drawn(source, 3) == ["4", "9", "4"]  # no row of the first block is one
    with pytest.raises(DataError, match=r"where: no column 'levl' \(near: level\)"):
        stream(write(rows), where={"levl": 4})
    with pytest.raises(DataError, match="not one of its rows became a prompt"):
        stream(write(rows), where={"level": 7}).next()
    plain = {"columns": ColumnsConfig(answer=None), "instruction": None}
    messages = load_rows(DatasetConfig(path=write(ROWS), **plain), seed=1).rows[3].messages
    (tmp_path / "rates").write_text(PassRates(known={digest(messages): (4, 2)}).lines())
    rates = PassRatesConfig([str(tmp_path / "rates")], min=0.1, unseen="drop")
    source = stream(write(ROWS), pass_rates=rates, **plain)
    assert [source.next().uid.split("-")[0] for _ in range(2)] == ["4", "4"]


def test_prompts_that_are_too_long_are_left_out_where_they_are_met(write):
    rows = [{"question": "a" * n, "answer": str(n)} for n in (1, 30, 2, 30, 30, 3)]
    source = stream(write(rows), shuffle=False, max_length=30)
    assert drawn(source, 4) == ["1", "2", "3", "1"] and source.left_out == 5
    source = stream(write(rows[:1] + rows[2:]), shuffle=False, max_length=30, too_long="error", buffer_rows=2)
    assert drawn(source, 2) == ["1", "2"]
    with pytest.raises(PromptError, match=r"row 3-.* has 52 tokens, at most 30 are allowed"):
        source.next()


def test_what_can_only_be_read_whole_is_not_streamed(write, tmp_path):
    (tmp_path / "rows.csv").write_text("question,answer\na,b\n")
    for path, words in [
        (str(tmp_path / "rows.csv"), "rows.csv can only be read whole; make it a .jsonl or .parquet file"),
        ("largest", "path=largest is neither; leave streaming out"),
        (None, "path=None is neither"),
        (str(tmp_path / "no.jsonl"), "no such file"),
        ("some/data", "the hub cannot be reached"),
    ]:
        with pytest.raises(DataError, match=words):
            load_head(DatasetConfig(path=path, streaming=True))
    with pytest.raises(DataError, match="valid_dataset: streaming is for the rows that are trained on"):
        load_rows(DatasetConfig(path=write(ROWS), streaming=True), seed=1, section="valid_dataset")
