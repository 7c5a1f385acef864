import re

import pytest

from partita.tasks.catalog import TASKS, Task, find_task
from partita.tasks.dataset import DataError, DatasetConfig, load_rows
from partita.tasks.functions import LoadError

FINITE = {"addition": 400, "multiplication": 64}


@pytest.mark.parametrize("name", TASKS)
def test_train_and_held_out_rows_never_overlap_whatever_the_seeds(name):
    task = TASKS[name]
    train = {row["question"] for seed in (1, 2) for row in task.rows("train", None, seed)}
    test = {row["question"] for seed in (1, 3) for row in task.rows("test", None, seed)}
    assert train and test and not train & test


@pytest.mark.parametrize("name", TASKS)
def test_the_same_arguments_give_the_same_rows_and_another_seed_others(name):
    rows = TASKS[name].rows
    assert rows("train", 20, 7) == rows("train", 20, 7) != rows("train", 20, 8)
    assert len(rows("train", 20, 7)) == len({row["question"] for row in rows("train", 20, 7)}) == 20


@pytest.mark.parametrize("name", TASKS)
def test_the_tasks_reward_accepts_its_own_answer_and_no_other(name):
    task = TASKS[name]
    (reward,) = task.functions
    for row in task.rows("test", 15, 1):
        assert reward(f"The answer is {row['answer']}.", row["answer"]) == 1.0
        assert reward(f"The answer is {int(row['answer']) + 1}.", row["answer"]) == 0.0
        assert reward("I do not know.", row["answer"]) == 0.0


@pytest.mark.parametrize(("name", "total"), FINITE.items())
def test_a_finite_task_holds_out_about_a_quarter_of_all_its_rows(name, total):
    train, test = TASKS[name].rows("train", None, 1), TASKS[name].rows("test", None, 1)
    assert len(train) + len(test) == total
    assert 0.2 <= len(test) / total <= 0.25


def test_both_orders_of_a_sum_are_on_the_same_side():
    train = {row["question"] for row in TASKS["addition"].rows("train", None, 1)}
    for question in train:
        a, b = re.findall(r"\d+", question)
        assert f"What is {b} + {a}?" in train


def numbers(question):
    return [int(n) for n in re.findall(r"\d+", question)]


def test_the_answers_are_true():
    for row in TASKS["largest"].rows("train", 200, 1):
        assert len(set(numbers(row["question"]))) == 4 and int(row["answer"]) == max(numbers(row["question"]))
        assert all(1 <= n <= 99 for n in numbers(row["question"]))
    for row in TASKS["addition"].rows("train", None, 1):
        assert int(row["answer"]) == sum(numbers(row["question"]))
    for row in TASKS["multiplication"].rows("train", None, 1):
        a, b = numbers(row["question"])
        assert int(row["answer"]) == a * b and min(a, b) >= 2 and max(a, b) <= 9
    for row in TASKS["letters"].rows("train", None, 1):
        assert int(row["answer"]) == sum(letter == row["letter"] for letter in row["word"])
    for row in TASKS["subtraction_stories"].rows("train", 300, 1):
        more, fewer = numbers(row["question"])
        assert int(row["answer"]) == more - fewer > 0 and "{" not in row["question"]


def test_stories_vary_and_letters_are_sometimes_absent():
    stories = TASKS["subtraction_stories"].rows("train", 300, 1)
    assert len({re.sub(r"\d+", "", row["question"]) for row in stories}) > 100
    counts = {row["answer"] for row in TASKS["letters"].rows("train", None, 1)}
    assert {"0", "1", "2"} <= counts


def test_a_finite_task_says_how_many_rows_it_has():
    with pytest.raises(ValueError, match=r"size=65: task 'multiplication' has 48 rows in its train split"):
        TASKS["multiplication"].rows("train", 65, 1)


def test_your_own_task_is_found_in_a_file(tmp_path):
    file = tmp_path / "colours.py"
    file.write_text(
        "from partita.tasks.catalog import Task\n\n"
        "def right(response, answer):\n    return float(answer in response)\n\n"
        "def rows(split, size, seed):\n    return [{'question': f'{split}?', 'answer': 'red'}] * (size or 2)\n\n"
        "colours = Task('colours', rows, (right,))\n\n"
        "def make():\n    return colours\n"
    )
    task = find_task(f"{file}:colours")
    assert isinstance(task, Task) and len(task.rows("test", 3, 1)) == 3
    assert find_task(f"{file}:make") is task
    with pytest.raises(LoadError, match=r"is a str; expected a partita"):
        find_task(f"{file}:__name__")
    with pytest.raises(LoadError, match=r"has no 'colors'"):
        find_task(f"{file}:colors")
    assert find_task("no_task") is None


def test_a_task_of_your_own_that_gives_no_rows_is_named(tmp_path):
    file = tmp_path / "odd.py"
    file.write_text("from partita.tasks.catalog import Task\nodd = Task('odd', lambda split, size, seed: ['a'], ())\n")
    with pytest.raises(DataError, match="task 'odd' gave a str as a row; a row is a dict with named columns"):
        load_rows(DatasetConfig(path=f"{file}:odd"), seed=1)
