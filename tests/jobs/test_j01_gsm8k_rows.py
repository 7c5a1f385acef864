"""GSM8K as downloaded: two columns, the gold answer behind the last ####, the worked solution never in a prompt."""

import json

import pytest

from partita.tasks.dataset import DataError, DatasetConfig, load_rows
from partita.tasks.graders.math import math_correct
from partita.tasks.settings import BOXED_INSTRUCTION

ROWS = [
    {
        "question": "A bakery packs 24 rolls in a box and fills 45 boxes on Monday. How many rolls is that?",
        "answer": "One box holds 24 rolls.\nSo Monday needs 24*45=<<24*45=1080>>1080 rolls.\n#### 1,080",
    },
    {
        "question": "It was 3 degrees at noon and 7 degrees colder at night. What did the thermometer show?",
        "answer": "It fell below zero: 3-7=<<3-7=-4>>-4.\n#### -4",
    },
    {
        "question": "A pen costs $0.75. What do 3 pens cost, in dollars?",
        "answer": "3*0.75=<<3*.75=2.25>>2.25 dollars.\n#### 2.25",
    },
]
WITHOUT = {"question": "How many?", "answer": "It is 12."}


@pytest.fixture
def load(tmp_path):
    def load(rows, **keys):
        file = tmp_path / "bakery.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return load_rows(DatasetConfig(path=str(file), **keys), seed=1)

    return load


def test_the_file_is_read_as_it_is(load):
    loaded = load(ROWS)
    assert [row.answer for row in loaded.rows] == ["1080", "-4", "2.25"]
    for row, given in zip(loaded.rows, ROWS, strict=True):
        assert row.messages == ({"role": "user", "content": f"{given['question']}\n{BOXED_INSTRUCTION}"},)
        assert row.row["answer"] == given["answer"]  # a reward can still ask for it
    own = load(ROWS, instruction="Put the final answer within \\boxed{}.").rows[0].messages[0]["content"]
    assert own == f"{ROWS[0]['question']}\nPut the final answer within \\boxed{{}}."
    assert loaded.functions == (math_correct,)


@pytest.mark.slow  # some answers need algebra, which runs in a process of its own
@pytest.mark.parametrize(
    ("row", "response", "reward"),
    [
        (0, "\\boxed{1080}", 1), (0, "\\boxed{1,080}", 1), (0, "\\boxed{1080.0}", 1), (0, "\\boxed{1081}", 0),
        (0, "\\boxed{24}", 0), (0, "I think 24*45=1080 but one broke, so \\boxed{1079}", 0), (0, "", 0),
        (1, "\\boxed{-4}", 1), (1, "\\boxed{4}", 0),
        (2, "\\boxed{\\$2.25}", 1), (2, "\\boxed{\\frac{9}{4}}", 1), (2, "\\boxed{225}", 0),
        (0, "The answer is 1080.", 1),  # without a box the last number counts
    ],
)  # fmt: skip
def test_the_data_bring_a_reward_that_says_so(load, row, response, reward):
    loaded = load(ROWS)
    (right,) = loaded.functions
    assert right(response, loaded.rows[row].answer) == reward


def test_a_solution_without_its_mark_is_never_the_gold_answer(load):
    with pytest.raises(
        DataError, match=r"1 of 4 rows cannot be used.*\n  bakery.jsonl row 4: 'answer' has no '#### answer'"
    ):
        load([*ROWS, WITHOUT])
    loaded = load([*ROWS, WITHOUT], on_bad_row="skip")
    assert [row.answer for row in loaded.rows] == ["1080", "-4", "2.25"]
    assert any(note.startswith("1 of 4 rows left out") for note in loaded.notes)
