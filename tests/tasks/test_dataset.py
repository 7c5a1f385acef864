import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from task_rows import BAKERY, SOLVED

from partita.tasks.catalog import TASKS
from partita.tasks.dataset import ColumnsConfig, DataError, DatasetConfig, load_rows
from partita.tasks.graders.math import math_correct
from partita.tasks.rates import PassRates
from partita.tasks.settings import BOXED_INSTRUCTION, MixedSourceConfig, PassRatesConfig
from partita.tasks.split import digest


def test_word_problems_as_downloaded(load):
    loaded = load(BAKERY)
    assert [row.answer for row in loaded.rows] == ["1080", "-4", "2.25"]
    assert loaded.functions == (math_correct,)
    (message,) = loaded.rows[0].messages
    assert message == {"role": "user", "content": f"{BAKERY[0]['question']}\n{BOXED_INSTRUCTION}"}
    assert loaded.rows[0].row["answer"] == BAKERY[0]["answer"]  # a reward can still have it; no prompt does
    assert not any("<<" in message["content"] for row in loaded.rows for message in row.messages)
    assert load(BAKERY, instruction=None).rows[0].messages[0]["content"] == BAKERY[0]["question"]
    assert load(BAKERY, instruction="Answer with \\boxed{}.").rows[0].messages[0]["content"].endswith("\\boxed{}.")


def test_a_word_problem_without_its_mark_is_an_error_or_is_counted(load):
    rows = [*BAKERY, {"question": "How many?", "answer": "It is 12."}]
    with pytest.raises(DataError, match=r"train_dataset: 1 of 4 rows .*on_bad_row=skip.*\n.*row 4: 'answer'"):
        load(rows)
    loaded = load(rows, on_bad_row="skip")
    assert len(loaded.rows) == 3
    assert any(note.startswith("1 of 4 rows left out") and "row 4" in note for note in loaded.notes)


def test_a_row_that_cannot_be_read_follows_the_same_policy(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", \n{"prompt": "", "answer": "1"}\n')
    with pytest.raises(
        DataError, match=r"2 of 3 rows cannot be used; on_bad_row=skip .*\n  .*rows.jsonl:2: broken JSON"
    ):
        load_rows(DatasetConfig(path=str(file)), seed=1)
    loaded = load_rows(DatasetConfig(path=str(file), on_bad_row="skip"), seed=1)
    assert [row.uid.split("-")[0] for row in loaded.rows] == ["1"]
    assert any(note.startswith("2 of 3 rows left out") and "rows.jsonl:2" in note for note in loaded.notes)
    file.write_text("{\n")
    with pytest.raises(DataError, match=r"1 of 1 rows cannot be used:\n.*rows.jsonl:1: broken JSON"):
        load_rows(DatasetConfig(path=str(file), on_bad_row="skip"), seed=1)


def test_answers_can_be_plain(load):
    loaded = load([{"question": "1+1?", "answer": "2"}])
    assert loaded.rows[0].answer == "2" and loaded.functions == ()
    assert loaded.rows[0].messages[0]["content"] == "1+1?"
    assert load([{"question": "a", "answer": "x #### 3"}], answer_format="plain").rows[0].answer == "x #### 3"
    with pytest.raises(DataError, match=r"answer_format=plain"):
        load([{"question": "1+1?", "answer": "2"}], answer_format="gsm8k")


@pytest.mark.parametrize(
    "prompt", ["", "  ", None, [], 7, [{"role": "user"}], [{"content": "x"}], ["x"], [{"role": "user", "content": [1]}]]
)
def test_prompts_without_words_are_refused_with_their_row(load, prompt):
    with pytest.raises(DataError, match=r"rows.jsonl row 2: '?prompt"):
        load([{"prompt": "a", "answer": "1"}, {"prompt": prompt, "answer": "2"}])


def test_a_user_message_may_be_empty(load):
    messages = [{"role": "user", "content": ""}]
    assert load([{"prompt": messages, "answer": "1"}]).rows[0].messages == tuple(messages)


def test_a_misspelt_or_missing_column_is_named_with_its_neighbour(load):
    with pytest.raises(DataError, match=r"no column 'answer' \(near: answr\); the columns are question, answr"):
        load([{"question": "a", "answr": "1"}])
    with pytest.raises(DataError, match=r"no column called messages.*\(near: promt\)"):
        load([{"promt": "a", "answer": "1"}])
    rows = [{"prompt": str(i), "answer": "1"} for i in range(100)]
    del rows[41]["prompt"]
    with pytest.raises(DataError, match=r"1 of 100 rows .*\n.*rows.jsonl row 42: no 'prompt'"):
        load(rows)
    with pytest.raises(DataError, match=r"no column 'answer'; .* \(null if no reward needs it\)"):
        load([{"prompt": "a", "target": 33}])


def test_columns_can_be_named_and_reached_into(load):
    rows = [{"task": {"text": "5+4^2?"}, "reward_model": {"ground_truth": "21"}, "prompt": "not this"}]
    columns = ColumnsConfig(prompt="task.text", answer="reward_model.ground_truth")
    assert load(rows, columns=columns).functions == ()  # nothing says how they are judged
    (row,) = load(rows, columns=columns).rows
    assert row.messages[0]["content"] == "5+4^2?" and row.answer == "21"
    assert load([{"prompt": "a", "target": 33}], columns=ColumnsConfig(answer=None)).rows[0].answer is None
    with pytest.raises(DataError, match=r"no 'reward_model.truth'"):
        load(rows, columns=ColumnsConfig(prompt="prompt", answer="reward_model.truth"))
    with pytest.raises(DataError, match=r"columns prompt and question could all be the prompt; set columns.prompt"):
        load([{"prompt": "a", "question": "b", "answer": "c"}])


def test_a_struct_of_lists_is_read_as_the_messages_it_means(tmp_path):
    rows = [{"prompt": {"role": ["user"], "content": ["What is 7^2?"]}, "answer": "49"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (row,) = load_rows(DatasetConfig(path=str(tmp_path / "rows.parquet")), seed=1).rows
    assert row.messages == ({"role": "user", "content": "What is 7^2?"},)
    pq.write_table(pa.Table.from_pylist([{"prompt": {"text": "x"}, "answer": "49"}]), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"'prompt' is a struct with text; expected a list of"):
        load_rows(DatasetConfig(path=str(tmp_path / "rows.parquet")), seed=1)


def test_equal_rows_are_two_rows_unless_they_are_to_be_merged(load):
    rows = [{"prompt": "a", "answer": "1"}, {"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "1"}]
    loaded = load(rows)
    assert len({row.uid for row in loaded.rows}) == 3
    assert any("3 rows, 2 distinct prompts" in note for note in loaded.notes)
    assert [row.messages[0]["content"] for row in load(rows, dedup=True).rows] == ["a", "b"]


def test_size_takes_the_first_rows_and_no_more_than_there_are(load):
    rows = [{"prompt": str(i), "answer": "1"} for i in range(5)]
    assert [row.messages[0]["content"] for row in load(rows, size=2).rows] == ["0", "1"]
    with pytest.raises(DataError, match=r"size=6: .* has only 5 usable rows"):
        load(rows, size=6)
    with pytest.raises(DataError, match=r"no rows"):
        load([])


def test_a_built_in_task_brings_its_reward():
    loaded = load_rows(DatasetConfig(path="largest", size=10), seed=3)
    assert len(loaded.rows) == 10 and loaded.functions == TASKS["largest"].functions
    assert loaded.rows == load_rows(DatasetConfig(path="largest", size=10), seed=3).rows
    assert loaded.rows != load_rows(DatasetConfig(path="largest", size=10), seed=4).rows
    with pytest.raises(DataError, match=r"valid_dataset: split='dev': task 'largest' has the splits train and test"):
        load_rows(DatasetConfig(path="largest", split="dev"), seed=3, section="valid_dataset")


def test_a_path_that_leads_nowhere_says_what_could_be_set(tmp_path):
    for path, words in [
        (None, "path is not set; .* largest, addition"),
        ("largset", "near: largest"),
        (str(tmp_path / "x.jsonl"), "no such file"),
        ("openai/gsm8k", "the hub cannot be reached .*Set path to a downloaded"),
        (f"{tmp_path}/x.py:task", "no such file"),
    ]:
        with pytest.raises(DataError, match=rf"train_dataset: .*{words}"):
            load_rows(DatasetConfig(path=path), seed=1)


def test_a_saved_data_set_is_read_by_split(tmp_path):
    rows = [{"question": "1+1?", "answer": "2"}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"test": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "several")
    assert load_rows(DatasetConfig(path=str(tmp_path / "one")), seed=1).rows[0].answer == "2"
    assert len(load_rows(DatasetConfig(path=str(tmp_path / "several"), split="test"), seed=1).rows) == 1
    with pytest.raises(DataError, match=r"no split 'train'; it has test"):
        load_rows(DatasetConfig(path=str(tmp_path / "several")), seed=1)


def test_several_sources_each_read_in_its_own_way(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in BAKERY))
    (tmp_path / "b.jsonl").write_text(json.dumps(SOLVED[0]) + "\n")
    sources = {
        "bakery": MixedSourceConfig(path=str(tmp_path / "a.jsonl"), instruction=None, weight=3.0),
        "solved": MixedSourceConfig(path=str(tmp_path / "b.jsonl")),
    }
    loaded = load_rows(DatasetConfig(mix=sources), seed=1)
    assert [row.row["mix"] for row in loaded.rows] == ["bakery"] * 3 + ["solved"]
    assert [row.uid.split("-")[0] for row in loaded.rows] == ["bakery/1", "bakery/2", "bakery/3", "solved/1"]
    assert loaded.rows[0].messages[0]["content"] == BAKERY[0]["question"]
    assert loaded.rows[3].messages[0]["content"].endswith(BOXED_INSTRUCTION)
    assert loaded.functions == (math_correct,)
    assert loaded.notes[0] == "bakery: prompts from 'question', gold answers from 'answer' after the last ####"
    task = MixedSourceConfig(path="largest", size=4)
    loaded = load_rows(DatasetConfig(mix={**sources, "numbers": task}), seed=1)
    assert len(loaded.rows) == 8 and loaded.functions == ()
    assert loaded.notes[-1].startswith(
        "the sources bring different rewards (bakery math_correct, solved math_correct, numbers"
    )
    with pytest.raises(DataError, match=r"train_dataset: mix.none: .*no such file"):
        load_rows(DatasetConfig(mix={"none": MixedSourceConfig(path=str(tmp_path / "x.jsonl"))}), seed=1)
    (tmp_path / "c.jsonl").write_text('{"prompt": "a", "answer": "b", "mix": "c"}')
    with pytest.raises(DataError, match=r"mix.c: row 1-.* has a column 'mix'"):
        load_rows(DatasetConfig(mix={"c": MixedSourceConfig(path=str(tmp_path / "c.jsonl"))}), seed=1)
    with pytest.raises(ValueError, match=r"path, system beside mix: set it in each source, as mix.NAME.path"):
        DatasetConfig(mix=sources, path="largest", system="Be brief.")


def test_prompts_are_chosen_by_how_often_they_were_right(load, tmp_path):
    rows = [{"prompt": f"{i}?", "answer": str(i)} for i in range(4)]
    rates = PassRates(known={digest(row.messages): (8, 4 * i) for i, row in enumerate(load(rows).rows[:3])})
    (tmp_path / "rates.jsonl").write_text(rates.lines())
    files = [str(tmp_path / "rates.jsonl")]

    def kept(**keys):
        loaded = load(rows, pass_rates=PassRatesConfig(files=files, **keys))
        return [row.answer for row in loaded.rows], loaded.notes[-1]

    assert kept() == (["0", "1", "2", "3"], "pass rates known of 3 of 4 prompts; 4 kept")
    assert kept(min=0.1, max=0.9)[0] == ["1", "3"]
    assert kept(min=0.1, max=0.9, unseen="skip")[0] == ["1"]
    assert kept(max=0.5)[0] == ["0", "1", "3"]
    with pytest.raises(
        DataError,
        match=r"pass_rates leaves no prompt: .*known of 3 of 4 prompts; 0 kept, min 0.6, max 0.9, unseen=skip",
    ):
        kept(min=0.6, max=0.9, unseen="skip")
    assert kept(min=0.1, max=0.9)[0] == [row.answer for row in load(rows).rows if row.answer in "13"]
    assert len(
        load(rows, side=True, held_out=0.5, pass_rates=PassRatesConfig(files, min=0.1, unseen="skip")).rows
    ) == len(load(rows, side=True, held_out=0.5).rows)  # what is evaluated does not depend on what was trained
    with pytest.raises(ValueError, match="files is empty"):
        PassRatesConfig(min=0.1)
    with pytest.raises(ValueError, match=r"min=0.9 is above max=0.1"):
        PassRatesConfig(files=files, min=0.9, max=0.1)


def test_equal_rows_that_are_merged_are_counted(load):
    rows = [{"prompt": "a", "answer": "1"}, {"prompt": "a", "answer": "1"}, {"prompt": "", "answer": "1"}]
    notes = load(rows, dedup=True, on_bad_row="skip").notes
    assert any(note.startswith("1 of 3 rows left out (on_bad_row=skip)") for note in notes)
    assert "1 of 3 rows left out (dedup): equal to a row before" in notes
