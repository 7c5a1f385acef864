import json
from decimal import Decimal

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partita.tasks.catalog import TASKS
from partita.tasks.dataset import ColumnsConfig, DataError, DatasetConfig, gold_text, load_rows
from partita.tasks.graders.math import math_correct
from partita.tasks.settings import BOXED_INSTRUCTION

BAKERY = [
    {
        "question": "A bakery packs 24 rolls in a box and fills 45 boxes. How many rolls?",
        "answer": "One box holds 24.\nSo 24*45=<<24*45=1080>>1080 rolls.\n#### 1,080",
    },
    {"question": "It was 3 degrees, then 7 colder. What now?", "answer": "3-7=<<3-7=-4>>-4.\n#### -4"},
    {"question": "A pen costs $0.75. What do 3 cost?", "answer": "3*0.75=<<3*.75=2.25>>2.25.\n#### 2.25"},
]


@pytest.fixture
def load(tmp_path):
    def load(rows, **keys):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load_rows(DatasetConfig(path=str(file), **keys), seed=1)

    return load


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
    with pytest.raises(DataError, match=r"train_dataset: 1 of 4 rows .*on_bad_row=drop.*\n.*row 4: 'answer'"):
        load(rows)
    loaded = load(rows, on_bad_row="drop")
    assert len(loaded.rows) == 3
    assert any(note.startswith("1 of 4 rows left out") and "row 4" in note for note in loaded.notes)


def test_answers_can_be_plain(load):
    loaded = load([{"question": "1+1?", "answer": "2"}])
    assert loaded.rows[0].answer == "2" and loaded.functions == ()
    assert loaded.rows[0].messages[0]["content"] == "1+1?"
    assert load([{"question": "a", "answer": "x #### 3"}], answer_format="plain").rows[0].answer == "x #### 3"
    with pytest.raises(DataError, match=r"answer_format=plain"):
        load([{"question": "1+1?", "answer": "2"}], answer_format="gsm8k")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (42, "42"),
        (42.0, "42"),
        (2.25, "2.25"),
        ("  42 ", "42"),
        (-0.5, "-0.5"),
        (Decimal("1.50"), "1.50"),
        (10**20, "1" + "0" * 20),
    ],
)
def test_gold_numbers_become_text(value, text):
    assert gold_text(value, "answer") == text
    assert math_correct(f"\\boxed{{{text}}}", text) == 1.0


@pytest.mark.parametrize("value", [True, [42], None, {"a": 1}, "", " ", float("nan"), float("inf")])
def test_other_gold_values_are_refused_with_row_and_field(load, value):
    with pytest.raises(DataError, match=r"row 2: 'answer' is .*must be text or a number"):
        load([{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": value}])


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
    (row,) = load(rows, columns=columns).rows
    assert row.messages[0]["content"] == "5+4^2?" and row.answer == "21"
    assert load([{"prompt": "a", "target": 33}], columns=ColumnsConfig(answer=None)).rows[0].answer is None
    with pytest.raises(DataError, match=r"no 'reward_model.truth'"):
        load(rows, columns=ColumnsConfig(prompt="prompt", answer="reward_model.truth"))
    with pytest.raises(DataError, match=r"columns prompt and question could all be the prompt; set columns.prompt"):
        load([{"prompt": "a", "question": "b", "answer": "c"}])


def test_conversations_stay_as_they_are_and_get_no_second_instruction(load):
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi", "name": None},
        {"role": "assistant", "tool_calls": [{"name": "add"}]},
        {"role": "tool", "content": "3"},
    ]
    (row,) = load([{"messages": talk, "answer": "#### 3"}], instruction=None).rows
    assert [message["role"] for message in row.messages] == ["system", "user", "assistant", "tool"]
    assert row.messages[1] == {"role": "user", "content": "Hi"} and row.messages[2]["content"] == ""
    told = load([{"messages": talk, "answer": "3"}], instruction="Use \\boxed{}.").rows[0]
    assert told.messages[1]["content"] == "Hi\nUse \\boxed{}." and told.messages[3]["content"] == "3"
    with pytest.raises(DataError, match=r"ends with a message of 'assistant'"):
        load([{"messages": talk[:3], "answer": "3"}])
    with pytest.raises(DataError, match=r"has a system message of its own"):
        load([{"messages": talk, "answer": "3"}], system="Think.")
    system = load([{"prompt": "Hi", "answer": "3"}], system="Think.").rows[0].messages
    assert [message["content"] for message in system] == ["Think.", "Hi"]


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


def test_keys_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match=r"answer_format=gsm8k needs an answer column"):
        DatasetConfig(answer_format="gsm8k", columns=ColumnsConfig(answer=None))
