"""Gold answers: numbers as text, what follows the last ####, what the last box holds."""

from decimal import Decimal

import pytest
from task_rows import SOLVED

from partita.tasks.dataset import ColumnsConfig, DataError
from partita.tasks.gold import gold_text
from partita.tasks.graders.math import math_correct
from partita.tasks.settings import BOXED_INSTRUCTION


def test_worked_solutions_have_their_answer_in_the_last_box(load):
    loaded = load(SOLVED)
    assert [row.answer for row in loaded.rows] == ["\\frac{5}{2}", "4"]
    assert loaded.functions == (math_correct,)
    assert loaded.rows[1].messages[0]["content"] == f"2+2?\n{BOXED_INSTRUCTION}"
    assert loaded.notes[0] == "prompts from 'problem', gold answers from 'solution' in the last \\boxed{}"
    with pytest.raises(DataError, match=r"row 3: 'solution' has no \\boxed\{answer\}: 'It is 12\.'"):
        load([*SOLVED, {"problem": "x", "solution": "It is 12."}])
    with pytest.raises(DataError, match=r"'solution' has neither #### nor"):
        load([{"problem": "x", "solution": "It is 12."}])
    plain = load([{"problem": "x", "solution": "It is 12."}], answer_format="plain")
    assert (plain.rows[0].answer, plain.functions) == ("It is 12.", ())
    both = [{**row, "answer": "7"} for row in SOLVED]
    assert [row.answer for row in load(both).rows] == ["7", "7"]  # the answer alone, where there is one


def test_a_heading_of_a_worked_solution_is_no_gold_answer(load):
    rows = [{"question": "a", "answer": "#### Step 1\nAdd.\n#### Step 2\nSo it is 42."}]
    with pytest.raises(
        DataError, match=r"row 1: 'answer' has 'Step 2\\nSo it is 42.' after its last ####, which is a heading"
    ):
        load(rows)
    assert load(rows, answer_format="plain").rows[0].answer == rows[0]["answer"]


def test_a_gold_answer_that_could_be_two_columns_is_asked_about(load):
    row = {"prompt": "a", "ground_truth": "1", "reward_model": {"ground_truth": "2"}}
    with pytest.raises(
        DataError,
        match=r"columns reward_model.ground_truth and ground_truth could all be the gold answer; set columns.answer",
    ):
        load([row])
    assert load([row], columns=ColumnsConfig(answer="ground_truth")).rows[0].answer == "1"


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


def test_a_gold_number_beyond_floats_stays_as_it_is():
    assert gold_text(10**400, "answer") == "1" + "0" * 400
