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
from partita.tasks.settings import MixedSourceConfig, PassRatesConfig
from partita.tasks.split import digest
from partita.tasks.stream import Stream, stream_of

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
    head = load_rows(config, seed=1)
    assert [row.answer for row in head.rows] == list("0123") and head.functions == (math_correct,)
    assert head.notes[-1].endswith("read as it goes, 4 rows at a time; these are the first")
    assert head.rows[0].messages[0]["content"].startswith("What is 0?\n")
    with pytest.raises(DataError, match="train_dataset: no column called messages"):
        load_rows(DatasetConfig(path=write([{"x": 1}]), streaming=True), seed=1)
    with pytest.raises(DataError, match=r"train_dataset: .*: no rows"):
        load_rows(DatasetConfig(path=write([]), streaming=True), seed=1)


def test_bad_rows_stop_where_they_are_met_or_are_left_out_with_a_warning(write):
    rows = [*ROWS[:5], {"question": "x", "answer": "no mark"}, *ROWS[6:], {"question": "", "answer": "#### 1"}]
    source = stream(write(rows), shuffle=False)
    assert drawn(source, 4) == list("0123")
    with pytest.raises(
        DataError, match=r"1 of 4 rows cannot be used.*\n  rows.jsonl row 6: 'answer' has no '#### answer'"
    ):
        source.next()
    with pytest.warns(UserWarning, match=r"the first of .*rows.jsonl: rows.jsonl row 6") as told:
        assert drawn(stream(write(rows), shuffle=False, on_bad_row="skip"), 10) == [*"012346789", "0"]
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
    rates = PassRatesConfig([str(tmp_path / "rates")], min=0.1, unseen="skip")
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
            load_rows(DatasetConfig(path=path, streaming=True), seed=1)


def test_rows_held_out_of_a_stream_are_never_drawn_and_are_those_of_the_file_read_whole(write):
    path = write([{"question": f"What is {i}?", "answer": f"#### {i}"} for i in range(60)])
    whole = DatasetConfig(path=path, held_out=0.3)
    apart = {row.answer for row in load_rows(whole, seed=1, held_out=True).rows}
    streamed = DatasetConfig(path=path, held_out=0.3, streaming=True, buffer_rows=7)
    first = load_rows(streamed, seed=1, held_out=True)
    assert [row.answer for row in first.rows] == sorted(apart, key=int)[:7]
    assert first.notes[-1].endswith("7 rows at a time; these are the first that are held out")
    source = stream(path, held_out=0.3, buffer_rows=7)
    found = drawn(source, 60 - len(apart))
    assert sorted([*found, *apart], key=int) == [str(i) for i in range(60)] and source.epoch == 0
    with pytest.raises(DataError, match="valid_dataset: held_out=1e-09 holds out none of its rows"):
        load_rows(
            DatasetConfig(path=path, held_out=1e-9, streaming=True), seed=1, section="valid_dataset", held_out=True
        )


@pytest.fixture
def two(write):
    """A mix of two files that are streamed."""

    def two(seed=3, **keys):
        texts = [{"prompt": f"word {i}" + "." * (300 * (i == 4)), "answer": f"w{i}"} for i in range(5)]
        mix = {
            "sums": MixedSourceConfig(path=write(ROWS), weight=2),
            "words": MixedSourceConfig(path=write(texts, "words.jsonl"), columns=ColumnsConfig("prompt")),
        }
        config = DatasetConfig(mix=mix, streaming=True, **{"buffer_rows": 4, **keys})
        sieve = Sieve(rendering_of(byte_tokenizer(), config), config, 512, 8)
        return config, stream_of(config, sieve, seed)

    return two


def test_several_sources_are_streamed_by_their_weights(two):
    config, source = two()
    found = [source.next() for _ in range(30)]
    for start in range(0, 30, 3):
        assert sorted(one.row["mix"] for one in found[start : start + 3]) == ["sums", "sums", "words"]
    for name, size in (("sums", 10), ("words", 5)):
        own = [one.answer for one in found if one.row["mix"] == name]
        assert sorted(own[:size]) == sorted(own[size : 2 * size]) and len(set(own[:size])) == size
        assert all(one.uid.startswith(f"{name}/") for one in found if one.row["mix"] == name)
    head = load_rows(config, seed=1)
    assert [row.row["mix"] for row in head.rows] == ["sums"] * 4 + ["words"] * 4
    assert any(
        note.startswith("the sources bring different rewards (sums math_correct, words none)") for note in head.notes
    )


@pytest.mark.parametrize("taken", [0, 1, 7, 30])
def test_a_restored_mix_of_streams_goes_on_at_the_very_prompt(two, taken):
    source, other = two(max_length=200)[1], two(max_length=200)[1]
    drawn(source, taken)
    other.load_state_dict(json.loads(json.dumps(source.state_dict())))
    assert other.left_out == source.left_out
    assert drawn(other, 25) == drawn(source, 25) and other.left_out == source.left_out


def test_a_mix_of_streams_names_the_source_that_cannot_be_read(write):
    mix = {"ok": MixedSourceConfig(path=write(ROWS)), "made": MixedSourceConfig(path="largest")}
    with pytest.raises(DataError, match=r"train_dataset: mix.made: streaming reads files and data sets"):
        load_rows(DatasetConfig(mix=mix, streaming=True), seed=1)
    mix["made"] = MixedSourceConfig(path=write([{**row, "mix": 1} for row in ROWS], "named.jsonl"))
    with pytest.raises(DataError, match=r"mix.made: row 1-\w+ has a column 'mix', which is to name its source"):
        load_rows(DatasetConfig(mix=mix, streaming=True), seed=1)


def test_what_is_left_out_is_counted_and_the_count_goes_on(write):
    rows = [{"question": "a" * n, "answer": str(n)} for n in (1, 30, 2)] + [{"question": "", "answer": "1"}]
    path = write(rows)

    def made():
        return stream(path, shuffle=False, max_length=30, on_bad_row="skip", buffer_rows=2)

    with pytest.warns(UserWarning, match="on_bad_row=skip"):
        source = made()
        assert drawn(source, 2) == ["1", "2"] and source.left_out == 2
        other = made()
        other.load_state_dict(json.loads(json.dumps(source.state_dict())))
        assert drawn(other, 2) == drawn(source, 2) and other.left_out == source.left_out == 4
